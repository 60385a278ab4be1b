"""Train a neural member with Accelerate; the YAML names the hardware, the settings name the learning.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers \
        data=runs/demo/prepared out=runs/demo/members/transformer
"""

import argparse
import sys
from typing import Any

from ensemble import config, errors
from ensemble.neural.config import RECIPES, config_class


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", default="hot_sellers", choices=RECIPES, help="what is learned")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in out")
    words, _ = parser.parse_known_args()
    settings: Any = config.from_command_line(config_class(words.recipe), __doc__, [parser])

    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble.data import manifest
    from ensemble.neural import loop, recipes

    recipe = recipes.load(words.recipe).make(settings.recipe, settings.data)
    if accelerator.is_main_process:
        manifest.verify(settings.data)
    summary = loop.train(recipe, settings, accelerator, words.resume)
    if accelerator.is_main_process:
        print("  ".join(f"{name} {value}" for name, value in summary.items()), file=sys.stderr)
    accelerator.end_training()


if __name__ == "__main__":
    errors.run(main)
