"""Train a neural member with Accelerate; the YAML names the hardware, the settings name the learning.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers \
        data=runs/demo/prepared out=runs/demo/members/transformer

Exit codes beside those of every script: 75 after SIGTERM, SIGINT or SIGUSR1, when all was saved: go on with --resume auto.
The launcher's own code says only that a worker failed; the word in the run's file `status` tells more.
"""

import argparse
import sys
from typing import Any

from ensemble import config, errors
from ensemble.neural.config import RECIPES, config_class


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", default="hot_sellers", choices=RECIPES, help="what is learned")
    parser.add_argument(
        "--resume",
        default="",
        metavar="auto|last|FOLDER",
        help="go on from the newest sound checkpoint in out: auto starts if there is none, last demands one; "
        "or begin a new run with a checkpoint of another",
    )
    parser.add_argument("--resume-override", action="store_true", help="go on with other learning settings than before")
    parser.add_argument("--profile", action="store_true", help="write a trace of some steps, which opens in Perfetto")
    parser.add_argument("--dry-run", action="store_true", help="print settings, memory and batch algebra, and stop")
    words, _ = parser.parse_known_args()
    settings: Any = config.from_command_line(config_class(words.recipe), __doc__, [parser])

    from ensemble.neural import launch

    accelerator = launch.start(settings)

    from ensemble.data import manifest
    from ensemble.neural import loop, recipes, trial

    told = launch.from_main_process(accelerator, config.to_dict(settings))
    settings = config.from_dict(config_class(words.recipe), told)
    with launch.together(accelerator):
        recipe = recipes.load(words.recipe).make(settings.recipe, settings.data)
        if accelerator.is_local_main_process:  # each node may have a copy of its own
            manifest.verify(settings.data)
    if words.dry_run:
        if accelerator.is_main_process:
            print(trial.describe(recipe, settings, accelerator))
        return
    summary = loop.train(recipe, settings, accelerator, words.resume, words.resume_override, words.profile)
    if accelerator.is_main_process:
        print("  ".join(f"{name} {value}" for name, value in summary.items()), file=sys.stderr)
    if summary["status"] == "preempted":
        sys.exit(errors.PREEMPTED)


if __name__ == "__main__":
    errors.run(main)
