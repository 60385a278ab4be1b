"""Prepare the raw data of a recipe, such as reviews or a table: a folder for train.py, train_trees.py and predict.py.

python scripts/prepare_data.py out=runs/demo/prepared                                    # a generated market
python scripts/prepare_data.py out=runs/mine 'source=[reviews/*.jsonl.gz]' 'metadata=[meta.jsonl.gz]'
python scripts/prepare_data.py --recipe table 'source=[people.csv]' target=income out=runs/people
python scripts/prepare_data.py --recipe emulator num_times=4 out=runs/sea_ice/prepared                # generated sea ice
python scripts/prepare_data.py --recipe sudoku side=6 clues=18 out=runs/sudoku/prepared               # generated puzzles
python scripts/prepare_data.py --recipe next_item 'source=[beauty.txt.gz]' out=runs/beauty/prepared   # users and their items
python scripts/prepare_data.py --recipe candidates data=runs/beauty/prepared 'rankings=[runs/beauty/rankings]' \\
out=runs/beauty/candidates          # the highest-ranked items of next_item members, to be ranked by trees and an ensemble
"""

from typing import Any

from ensemble import configuration, errors, recipe


def main() -> None:
    parser = recipe.option(recipe.DEFAULT, "recipe of the data")
    name = parser.parse_known_args()[0].recipe
    settings: Any = configuration.from_command_line(recipe.prepare_config(name), __doc__, [parser])

    from ensemble.data import prepared

    prepare = recipe.named(name).require("prepare", "prepare", "cannot prepare data")
    manifest = prepared.write(name, prepare, settings)
    for split, facts in manifest["splits"].items():
        other_facts = [f"{fact.replace('_', ' ')} {value}" for fact, value in facts.items() if fact != "rows"]
        print(f"{split:>10}  {facts['rows']:,} rows  {'  '.join(other_facts)}")
    print(f"{settings.out}: fingerprint {manifest['fingerprint']}")


if __name__ == "__main__":
    errors.run(main)
