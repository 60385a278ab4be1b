"""Raw reviews to prepared data: a folder that train.py, train_trees.py and predict.py read.

python scripts/prepare_data.py out=runs/demo/prepared                                    # a generated market
python scripts/prepare_data.py out=runs/beauty 'source=[hub:All_Beauty]' 'metadata=[hub:All_Beauty]'
python scripts/prepare_data.py out=runs/mine 'source=[reviews/*.jsonl.gz]' 'metadata=[meta.jsonl.gz]'
"""

import argparse
from typing import Any

from ensemble import config, errors
from ensemble.data.config import PREPARE


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", default="hot_sellers", choices=PREPARE, help="what the data are for")
    words, _ = parser.parse_known_args()
    settings: Any = config.from_command_line(PREPARE[words.recipe], __doc__, [parser])

    from ensemble.data import panel

    about = panel.prepare(settings)
    for split, facts in about["splits"].items():
        print(f"{split:>10}  {facts['first_week']} … {facts['last_week']}  {facts['rows']:,} rows, {facts['hot']:,} hot")
    print(f"{settings.out}: {about['products']:,} products, fingerprint {about['fingerprint']}")


if __name__ == "__main__":
    errors.run(main)
