"""Train a neural member with Accelerate. The YAML file describes the hardware, and the settings describe the training.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers \\
        data=runs/demo/prepared out=runs/demo/members/transformer

Exit codes: 0 done, 1 failed, 2 user error, 75 stopped by SIGTERM, SIGINT, SIGUSR1 or SIGHUP after a checkpoint was
written (continue with --resume auto). The launcher's exit code only shows that a worker failed. The reason is in the file
`status` of the run.
"""

import sys
from typing import Any

from ensemble import configuration, errors, recipe
from ensemble.neural.settings import config_class


def main() -> None:
    parser = recipe.option(recipe.DEFAULT, "recipe to train", recipe.TRAINED)
    parser.add_argument(
        "--resume",
        default="",
        metavar="auto|last|FOLDER",
        help="auto or last: continue from the newest undamaged checkpoint in out; if there is none, auto starts a new run, "
        "and last is an error. FOLDER: start a new run from the checkpoint in this folder",
    )
    parser.add_argument("--resume-override", action="store_true", help="resume with other settings, except batch_size")
    parser.add_argument("--profile", action="store_true", help="write a trace of some steps, for Perfetto, to OUT/profile")
    parser.add_argument("--predict", default="", metavar="FOLDER", help="also write the member's prediction files to FOLDER")
    parser.add_argument(
        "--deadline",
        type=float,
        default=0.0,
        metavar="TIME",
        help="time at which the training must end, in seconds since 1970, as from `date +%%s`; unlike max_seconds, it "
        "also limits the time for starting",
    )
    parser.add_argument("--dry-run", action="store_true", help="print settings, memory and batch sizes, without training")
    options, _ = parser.parse_known_args()
    if options.resume_override and not options.resume:
        raise errors.UserError("--resume-override needs --resume: add --resume last, auto or a checkpoint")
    schema = config_class(recipe.named(options.recipe).name)
    settings: Any = configuration.from_command_line(schema, __doc__, [parser])

    from ensemble.neural import launch

    accelerator = launch.start(settings)

    from ensemble import folders
    from ensemble.neural import loop, preflight, refit, speed
    from ensemble.predictor import members

    if options.deadline:
        settings = refit.with_deadline(settings, options.deadline, options.resume)
    settings = configuration.from_dict(schema, launch.from_main_process(configuration.to_dict(settings)))
    with launch.together(accelerator):
        make = recipe.named(options.recipe).require("training", "make", "has no neural network to train")
        # Each node may have a copy of the data, which one of its ranks reads in full
        is_full = settings.verify == "full" and accelerator.is_local_main_process
        manifest = folders.read_manifest(settings.data, is_full)
        recipe.check_named(options.recipe, manifest, settings.data, has_network=True)
        if options.predict:
            members.check_files(settings.out, manifest, options.predict)
        neural_recipe = make(settings.recipe, settings.data)
        preflight.check_neural(options.recipe, neural_recipe, manifest)
    if options.dry_run:
        description = preflight.describe(neural_recipe, settings, accelerator)  # on all ranks: a recipe may communicate
        if accelerator.is_main_process:
            print(description)
        return
    train = refit.train if settings.refit_epochs else loop.train
    with speed.explained_nondeterminism():
        summary = train(neural_recipe, settings, accelerator, options.resume, options.resume_override, options.profile)
    if accelerator.is_main_process:
        print("  ".join(f"{name} {value}" for name, value in summary.items()), file=sys.stderr)
    if summary["status"] == "preempted":
        sys.exit(errors.PREEMPTED)
    if options.predict:
        members.predict_with_ranks(settings.out, accelerator, settings.data, options.predict)


if __name__ == "__main__":
    errors.run(main)
