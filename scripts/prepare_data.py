"""Raw reviews, or any table, to prepared data: a folder that train.py (reviews), train_trees.py and predict.py read.

python scripts/prepare_data.py out=runs/demo/prepared                                    # a generated market
python scripts/prepare_data.py out=runs/beauty 'source=[hub:All_Beauty]' 'metadata=[hub:All_Beauty]'
python scripts/prepare_data.py out=runs/mine 'source=[reviews/*.jsonl.gz]' 'metadata=[meta.jsonl.gz]'
python scripts/prepare_data.py --recipe table 'source=[people.csv]' target=income out=runs/people
python scripts/prepare_data.py --recipe candidates data=runs/beauty/prepared 'rankings=[runs/beauty/rankings]' \\
    out=runs/beauty/candidates          # what next_item members rank highest, for trees and an ensemble to rank again
"""

import argparse
from collections.abc import Callable
from typing import Any

from ensemble import config, errors
from ensemble.data.config import PREPARE


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", default="hot_sellers", choices=PREPARE, help="what the data are for")
    words, _ = parser.parse_known_args()
    settings: Any = config.from_command_line(PREPARE[words.recipe], __doc__, [parser])

    from ensemble.data import candidates, panel, sequences, table

    prepare: dict[str, Callable[[Any], dict[str, Any]]] = {
        "candidates": candidates.prepare,
        "hot_sellers": panel.prepare,
        "next_item": sequences.prepare,
        "table": table.prepare,
    }
    about = prepare[words.recipe](settings)
    for split, facts in about["splits"].items():
        others = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if name != "rows"]
        print(f"{split:>10}  {facts['rows']:,} rows  {'  '.join(others)}")
    print(f"{settings.out}: fingerprint {about['fingerprint']}")


if __name__ == "__main__":
    errors.run(main)
