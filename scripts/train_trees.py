"""Train a tree member on the CPU.

python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/members/xgboost
python scripts/train_trees.py library=lightgbm data=runs/demo/prepared out=runs/demo/members/lightgbm
"""

import dataclasses

from ensemble import config, errors
from ensemble.trees.config import TreesConfig


def main() -> None:
    settings = config.from_command_line(TreesConfig, __doc__)

    from ensemble.trees import threads

    settings = dataclasses.replace(settings, threads=threads.settle(settings.threads))

    from ensemble.trees import member

    summary = member.train(settings)
    print("  ".join(f"{name} {value}" for name, value in summary.items()))


if __name__ == "__main__":
    errors.run(main)
