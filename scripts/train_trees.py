"""Train a tree member, or a linear one, on the CPU cores of one node, or of several.

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/members/xgboost
    python scripts/train_trees.py library=lightgbm data=runs/demo/prepared out=runs/demo/members/lightgbm --resume auto
    python scripts/train_trees.py library=both data=runs/demo/prepared out=runs/demo/members

On N nodes, the same command is started once on each, with RANK (0 to N - 1), WORLD_SIZE=N, MASTER_ADDR and MASTER_PORT,
where rank 0 listens, in the environment; slurm/train_tree_models.slurm does this. Each rank trains on its shard of the rows
with the library's own collective calls. All ranks end with the same trees, and rank 0 writes the member.

With search.trials or search.seconds, settings are searched on validation instead, and the best are written as YAML for
--config; this needs pip install 'accelerate-ensemble[search]'. With --resume auto, the command resumes a search, or joins
one of other processes:

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/search search.trials=50
    python scripts/train_trees.py --config runs/demo/search/best.yaml data=runs/demo/prepared out=runs/demo/members/tuned

Until the member is finished, its checkpoints and the file `status` are in OUT.checkpoint. The first line of `status` is
running (also after a kill), preempted, lost (a rank or its machine died) or failed; after the last two, a second line is the
reason. The exit code is 75 if SIGTERM, SIGINT, SIGUSR1 or SIGHUP ended the training after its state was saved: continue with
--resume auto (only XGBoost and LightGBM save a state; others start again). Other codes: 0 done, 1 failed, 2 user error.
"""

import dataclasses
import os
import sys

from ensemble import configuration, errors, recipe
from ensemble.trees.settings import TreesConfig


def main() -> None:
    parser = recipe.option()
    parser.add_argument(
        "--resume",
        default="",
        choices=("auto", "last"),
        help="resume from the newest valid checkpoint of out; auto starts anew if there is none, last fails",
    )
    options, _ = parser.parse_known_args()
    settings = configuration.from_command_line(TreesConfig, __doc__, [parser])

    from ensemble import folders
    from ensemble.trees import distributed, threads

    if options.recipe or settings.verify == "full":
        manifest = folders.read_manifest(settings.data, settings.verify == "full")
        recipe.check_named(options.recipe, manifest, settings.data)

    rank_info = distributed.rank_info(os.environ)
    if settings.library == "both":
        from ensemble.trees import both

        summary = both.train(settings, sys.argv, rank_info)
    else:
        settings = dataclasses.replace(settings, threads=threads.configure(settings.threads))
        if settings.folds:
            from ensemble.trees import bagging

            summary = bagging.train(settings, options.resume, rank_info)
        elif settings.search.trials or settings.search.seconds:
            from ensemble.trees import search

            summary = search.search(settings, options.resume, rank_info)
            print(summary.pop("table"))
        else:
            from ensemble.trees import train

            summary = train.train(settings, options.resume, rank_info)
    if rank_info.rank == 0:
        print("  ".join(f"{name} {value}" for name, value in summary.items() if not isinstance(value, dict)))
    if summary["status"] == "preempted":
        sys.exit(errors.PREEMPTED)


if __name__ == "__main__":
    errors.run(main)
