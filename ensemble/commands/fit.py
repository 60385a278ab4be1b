"""One command: a table to a fitted ensemble with its report; or another recipe's raw data.

    python scripts/fit.py 'source=[people.csv]' target=income out=runs/people time_limit=120
    python scripts/ensemble_predictor.py predict ensemble=runs/people/ensemble 'source=[new.csv]' out=runs/new

It prepares the data, trains all members on the folds of a cross-validation, combines them, and writes OUT/report.html. Every
row with a target trains; rows without one are forecast. The same seed and data and time_limit=0 give the same trees.

Of a recipe whose members rank items, further members train on the items that these rank highest, and OUT/all compares all.

With --stage it does a part of that as a task of a cluster, as slurm/fit.slurm does: prepare, then copies in many tasks, then
members in some. The command without --stage and with --resume auto then goes on from what they have done.
"""

import sys
from typing import Any

from ensemble import configuration, errors, recipe
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.settings import STAGES, config_class

DEFAULT = "table"


def main() -> None:
    parser = recipe.option(DEFAULT, f"what the raw data are: {', '.join(recipe.BUILT_IN)}, or a package of your own")
    parser.add_argument("--resume", default="", choices=("auto",), help="go on with the fit in out, if there is one")
    parser.add_argument("--stage", default="", choices=STAGES, help="do only this part of the fit, with time_limit=0")
    parser.add_argument("--task", type=int, default=0, metavar="I", help="the number of this task of the stage, from 0")
    parser.add_argument("--num-tasks", type=int, default=1, metavar="N", help="of which it does every N-th piece of work")
    parser.add_argument("--status", default="", metavar="FOLDER", help="write a file status there, as trainings do")
    words, _ = parser.parse_known_args()
    settings: Any = configuration.from_command_line(config_class(words.recipe), __doc__, [parser])
    budget = Budget(settings.time_limit)

    from ensemble.pipeline import plan, run, stages

    try:
        with stages.status_kept(words.status):
            if words.stage:
                return stages.run(words.stage, settings, words.recipe, words.task, words.num_tasks)
            board = run.fit(settings, words.recipe, bool(words.resume), budget)
    except plan.Preempted as stopped:
        print(f"stopped while {stopped} was trained: go on with --resume auto", file=sys.stderr)
        sys.exit(errors.PREEMPTED)
    print("\n".join(run.lines(board)))


if __name__ == "__main__":
    errors.run(main)
