"""Fit an ensemble to a table, or to the raw data of another recipe, and write its report.

    python scripts/fit.py 'source=[people.csv]' target=income out=runs/people time_limit=120
    python scripts/ensemble_predictor.py predict ensemble=runs/people/ensemble 'source=[new.csv]' out=runs/new

The command prepares the data, trains the members, combines them, and writes OUT/report.html. With a table, members are
trained on the folds of a cross-validation; rows without a target are forecast, and all others are used for training unless
test=… holds some out. With time_limit=0, the same data and seed give the same trees.

For a recipe whose members rank items, further members are trained on the highest-ranked items. OUT/all compares all members.

With --stage the command runs a part of the fit as a task of a cluster, as in slurm/fit.slurm. The stages are, in this order:
prepare; copies (of each tree member, one for each fold), in many tasks; members (the tree members), in several tasks. The
command without --stage and with --resume auto then completes the fit.
"""

import sys
from contextlib import suppress
from typing import Any

from ensemble import configuration, errors, recipe
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.settings import STAGES, config_class


def main() -> None:
    parser = recipe.option("table", "recipe of the raw data", recipe.FITTED)
    parser.add_argument("--resume", default="", choices=("auto",), help="continue the fit in out, if there is one")
    parser.add_argument("--stage", default="", choices=STAGES, help="run only this part of the fit; needs time_limit=0")
    parser.add_argument("--task", type=int, default=0, metavar="I", help="number of this task of the stage, from 0")
    parser.add_argument("--num-tasks", type=int, default=1, metavar="N", help="number of tasks that share the stage")
    parser.add_argument("--status", default="", metavar="FOLDER", help="folder for a file `status`, like that of a training")
    options, _ = parser.parse_known_args()
    settings: Any = configuration.from_command_line(config_class(options.recipe), __doc__, [parser])
    budget = Budget(settings.time_limit)

    from ensemble.pipeline import plan, run, stages

    try:
        with stages.status_kept(options.status):
            if options.stage:
                return stages.run(options.stage, settings, options.recipe, options.task, options.num_tasks)
            board = run.fit(settings, options.recipe, bool(options.resume), budget)
    except plan.Preempted as member:
        print(f"stopped while {member} was trained: continue with --resume auto", file=sys.stderr)
        sys.exit(errors.PREEMPTED)
    except (SystemExit, KeyboardInterrupt) as stop:
        if isinstance(stop, KeyboardInterrupt) or stop.code in (errors.HUNG_UP, errors.TERMINATED):
            print("stopped: continue with --resume auto", file=sys.stderr)
        raise
    with suppress(BrokenPipeError):  # the reader of the output has ended, as after `| head`, but the fit is complete
        print("\n".join(run.lines(board)))


if __name__ == "__main__":
    errors.run(main)
