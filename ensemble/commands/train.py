"""Train a neural member with Accelerate; the YAML names the hardware, the settings name the learning.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers \
        data=runs/demo/prepared out=runs/demo/members/transformer

Exit codes beside those of every script: 75 after SIGTERM, SIGINT or SIGUSR1, when all was saved: go on with --resume auto.
The launcher's own code says only that a worker failed; the word in the run's file `status` tells more.
"""

import sys
from typing import Any

from ensemble import configuration, errors, recipe
from ensemble.neural.settings import config_class


def main() -> None:
    parser = recipe.option(recipe.DEFAULT, f"what is learned: {', '.join(recipe.BUILT_IN)}, or a package of your own")
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
    schema = config_class(words.recipe)
    settings: Any = configuration.from_command_line(schema, __doc__, [parser])

    from ensemble.neural import launch

    accelerator = launch.start(settings)

    from ensemble import folders
    from ensemble.neural import loop, preflight

    settings = configuration.from_dict(schema, launch.from_main_process(accelerator, configuration.to_dict(settings)))
    with launch.together(accelerator):
        make = recipe.named(words.recipe).require("training", "make", "has no neural network to train")
        # Each node may have a copy of its own, which one of its ranks reads in full
        is_full = settings.verify == "full" and accelerator.is_local_main_process
        recipe.check_named(words.recipe, folders.read_manifest(settings.data, is_full), settings.data, is_training=True)
        trained = make(settings.recipe, settings.data)
        recipe.check_neural(words.recipe, trained)
    if words.dry_run:
        if accelerator.is_main_process:
            print(preflight.describe(trained, settings, accelerator))
        return
    summary = loop.train(trained, settings, accelerator, words.resume, words.resume_override, words.profile)
    if accelerator.is_main_process:
        print("  ".join(f"{name} {value}" for name, value in summary.items()), file=sys.stderr)
    if summary["status"] == "preempted":
        sys.exit(errors.PREEMPTED)


if __name__ == "__main__":
    errors.run(main)
