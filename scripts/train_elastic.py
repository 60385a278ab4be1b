"""Train a neural member on one machine, and continue with fewer ranks when one is lost permanently.

    python scripts/train_elastic.py --config_file accelerate_configs/multi_gpu.yaml --num_processes 4 --recipe hot_sellers \\
        data=runs/demo/prepared out=runs/demo/members/transformer batch_size=1536

It launches `scripts/train.py --resume auto` with the same settings, as `accelerate launch` would. After a loss it launches
the largest number of remaining ranks that divides the batch; the global batches stay the same. Exit codes: 0 done, 1 failed,
2 user error, 75 stopped by a signal after saving.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ensemble import configuration, errors, recipe
from ensemble.errors import UserError
from ensemble.neural import elastic
from ensemble.neural.division import check_multiple
from ensemble.neural.settings import check, config_class, resolve

TRAIN = str(Path(__file__).resolve().with_name("train.py"))


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config_file", type=Path, metavar="YAML", help="the accelerate configuration of one machine")
    parser.add_argument("--num_processes", type=int, metavar="N", help="ranks if none is lost; default: those of the YAML")
    parser.add_argument("--capacity", metavar="FILE", help="a file with the number of available ranks, read repeatedly")
    parser.add_argument(
        "--max_losses",
        type=int,
        default=3,
        metavar="N",
        help="the number of losses without a new checkpoint between them that are tolerated; one more ends the job",
    )
    options, words = parser.parse_known_args()
    recipe_option = recipe.option(recipe.DEFAULT, "recipe to train", recipe.TRAINED)
    named = recipe.named(recipe_option.parse_known_args(words)[0].recipe)
    schema: Any = config_class(named.name)
    settings: Any = configuration.from_command_line(schema, __doc__, [parser, recipe_option])
    if schema.batch_size == 0:  # the recipe derives it from the data
        make = named.require("training", "make", "has no neural network to train")
        settings = resolve(make(settings.recipe, settings.data), settings)
    check(settings)
    if options.config_file is None:
        raise UserError("--config_file is missing: give a file of accelerate_configs/, such as multi_cpu.yaml")
    hardware = elastic.hardware_of(options.config_file)
    ranks = hardware.get("num_processes", 1) if options.num_processes is None else options.num_processes
    if ranks < 1:
        given = f"{options.config_file}: num_processes=" if options.num_processes is None else "--num_processes "
        raise UserError(f"{given}{ranks} is impossible: it must be at least 1")
    if options.max_losses < 0:
        raise UserError(f"--max_losses {options.max_losses} is impossible: it must be at least 0")
    check_multiple("batch_size", settings.batch_size, ranks, f"{ranks} ranks")
    job = elastic.Job(
        command=[TRAIN, *words],
        settings=settings,
        yaml=options.config_file,
        num_ranks=ranks,
        capacity=Path(options.capacity) if options.capacity else None,
        max_losses=options.max_losses,
    )
    sys.exit(elastic.supervise(job, lambda sentence: print(f"train_elastic: {sentence}", file=sys.stderr, flush=True)))


if __name__ == "__main__":
    errors.run(main)
