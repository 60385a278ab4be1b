"""Train a tree member on the CPU cores of one node, or of several.

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/members/xgboost
    python scripts/train_trees.py library=lightgbm data=runs/demo/prepared out=runs/demo/members/lightgbm --resume auto
    python scripts/train_trees.py library=both data=runs/demo/prepared out=runs/demo/members

On N nodes, start the same command once on each, with RANK (0 to N - 1), WORLD_SIZE=N, and MASTER_ADDR and MASTER_PORT of
rank 0 in the environment, as slurm/train_tree_models.slurm does. Each rank trains on its shard of the rows with the
collective of the library. All ranks end with the same trees, and rank 0 writes the member.

With search.trials or search.seconds, hyperparameters are searched by their score on validation (pip install -e '.[search]'),
and the best are written as YAML for --config. With --resume auto a search is continued. Several processes may share a
search:

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/search search.trials=50
    python scripts/train_trees.py --config runs/demo/search/best.yaml data=runs/demo/prepared out=runs/demo/members/tuned

Until the member is complete, its checkpoints and the file `status` are in OUT.checkpoint. The status is running (or killed,
if no process runs), preempted, lost (a rank or its machine has ended) or failed, with the reason. Exit codes beside those of
every script: 75 after SIGTERM, SIGINT or SIGUSR1, when everything was saved: continue with --resume auto.
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
        help="continue from the newest undamaged checkpoint of out: auto starts a new training if there is none, last fails",
    )
    words, _ = parser.parse_known_args()
    settings = configuration.from_command_line(TreesConfig, __doc__, [parser])

    from ensemble import folders
    from ensemble.trees import distributed, threads

    if words.recipe or settings.verify == "full":
        manifest = folders.read_manifest(settings.data, settings.verify == "full")
        recipe.check_named(words.recipe, manifest, settings.data)

    where = distributed.place(os.environ)
    if settings.library == "both":
        from ensemble.trees import both

        summary = both.train(settings, sys.argv, where)
    else:
        settings = dataclasses.replace(settings, threads=threads.settle(settings.threads))
        if settings.folds:
            from ensemble.trees import bagging

            summary = bagging.train(settings, words.resume, where)
        elif settings.search.trials or settings.search.seconds:
            from ensemble.trees import search

            summary = search.search(settings, words.resume, where)
            print(summary.pop("table"))
        else:
            from ensemble.trees import train

            summary = train.train(settings, words.resume, where)
    if where.rank == 0:
        print("  ".join(f"{name} {value}" for name, value in summary.items() if not isinstance(value, dict)))
    if summary["status"] == "preempted":
        sys.exit(errors.PREEMPTED)


if __name__ == "__main__":
    errors.run(main)
