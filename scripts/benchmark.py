"""Measure what the README states, and write it to slurm/results/NAME.json with hardware, versions, date and command.

python scripts/benchmark.py help_times | seeds | real | panel | memory | loader | overhead | scaling | knobs | threads
                            | trees | autogluon | next_item | next_item_growth
"""

import importlib
from pathlib import Path

from benchmarks.settings import SCHEMAS

from ensemble import configuration, errors

MODULES = {
    "help_times": "commands", "seeds": "commands", "real": "commands",
    "panel": "data", "memory": "data", "loader": "data",
    "overhead": "overhead", "scaling": "scaling", "knobs": "knobs",
    "threads": "trees", "trees": "trees", "autogluon": "autogluon",
    "next_item": "next_item", "next_item_growth": "next_item_growth",
}  # fmt: skip


def main() -> None:
    name, settings = configuration.from_subcommands(SCHEMAS, __doc__)

    if name == "overhead-rank":
        from ensemble.neural import launch
        from ensemble.neural.settings import TrainConfig

        accelerator = launch.start(TrainConfig())

        from benchmarks import overhead

        overhead.overhead_rank(accelerator, settings.rounds, Path(settings.out))
        return

    if name == "trees-run":
        from benchmarks import trees_run

        trees_run.run(settings)
        return

    if name == "next-item-run":
        from benchmarks import next_item_run

        next_item_run.run(settings)
        return

    if name == "basic-panel":
        from benchmarks import data

        data.basic_panel(settings.source, settings.out)
        return

    from benchmarks import timing

    from ensemble import folders

    arguments = configuration.to_dict(settings)
    results = Path(arguments.pop("results"))
    about = timing.environment()
    module = importlib.import_module(f"benchmarks.{MODULES[name]}")
    found = getattr(module, name)(**arguments)
    results.mkdir(parents=True, exist_ok=True)
    folders.write_json(results / f"{name}.json", {"environment": about, **found})
    print(f"written to {results / f'{name}.json'}")


if __name__ == "__main__":
    errors.run(main)
