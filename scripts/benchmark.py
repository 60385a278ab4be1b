"""Measure what the README states, and write it to slurm/results/NAME.json with hardware, versions, date and command.

python scripts/benchmark.py help_times | seeds | real | panel | memory | loader | overhead | scaling | knobs
"""

import importlib
from pathlib import Path

from ensemble import config, errors
from ensemble.benchmark_config import SCHEMAS

MODULES = {"overhead": "benchmark_training", "scaling": "benchmark_scaling", "knobs": "benchmark_knobs"}


def main() -> None:
    name, settings = config.from_subcommands(SCHEMAS, __doc__)

    if name == "overhead-rank":
        from ensemble.neural import launch
        from ensemble.neural.config import TrainConfig

        accelerator = launch.start(TrainConfig())

        from ensemble import benchmark_training

        benchmark_training.overhead_rank(accelerator, settings.rounds, Path(settings.out))
        return

    from ensemble import benchmark
    from ensemble.data import manifest

    if name == "basic-panel":
        benchmark.basic_panel(settings.source, settings.out)
        return
    arguments = config.to_dict(settings)
    results = Path(arguments.pop("results"))
    about = benchmark.environment()
    module = importlib.import_module(f"ensemble.{MODULES.get(name, 'benchmark')}")
    found = getattr(module, name)(**arguments)
    results.mkdir(parents=True, exist_ok=True)
    manifest.write_json(results / f"{name}.json", {"environment": about, **found})
    print(f"written to {results / f'{name}.json'}")


if __name__ == "__main__":
    errors.run(main)
