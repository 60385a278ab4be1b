"""Measure the figures of the READMEs, and write them to slurm/results/NAME.json with hardware, versions, date and command.

python scripts/benchmark.py NAME
python scripts/benchmark.py figures [check=true]      # update the figures in the READMEs from those files, or compare them
"""

import importlib
from pathlib import Path

from benchmarks.results import Results, commands

from ensemble import configuration, errors

TOPICS = sorted(file.parent.name for file in Path(__file__).parent.glob("benchmarks/*/settings.py"))
"""The folders of scripts/benchmarks with commands."""


def main() -> None:
    topic_of: dict[str, str] = {}
    schemas: dict[str, type] = {}
    for topic in TOPICS:
        topic_schemas = commands(importlib.import_module(f"benchmarks.{topic}.settings"))
        schemas |= topic_schemas
        topic_of |= dict.fromkeys(topic_schemas, topic)
    name, settings = configuration.from_subcommands(schemas, __doc__)
    package = f"benchmarks.{topic_of[name]}"
    if not isinstance(settings, Results):  # a process that a benchmark starts, or `figures`, which write no JSON file
        importlib.import_module(f"{package}.run").run(settings)
        return

    from benchmarks import timing

    from ensemble import folders

    arguments = configuration.to_dict(settings)
    results = Path(arguments.pop("results"))
    environment = timing.environment()
    figures = getattr(importlib.import_module(f"{package}.{settings.module}"), name)(**arguments)
    results.mkdir(parents=True, exist_ok=True)
    folders.write_json(results / f"{name}.json", {"environment": environment, **figures})
    print(f"written to {results / f'{name}.json'}")


if __name__ == "__main__":
    errors.run(main)
