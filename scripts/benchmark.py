"""Measure the figures of the READMEs, and write them to slurm/results/NAME.json with hardware, versions, date and command.

python scripts/benchmark.py NAME [key=value ...]        # NAME --help describes the settings
python scripts/benchmark.py figures [check=true]        # update the figures in the READMEs from those files, or compare them
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import commands

from ensemble import configuration, errors


def main() -> None:
    if sys.argv[1:2] == ["call"]:  # the command that `timing.call` returns
        address, arguments_json, out = sys.argv[2:]
        result = function(*address.split(":"))(*json.loads(arguments_json))
        if result is not None:
            Path(out).write_text(json.dumps(result), encoding="utf-8")
        return
    known = commands.known()
    chosen = {name: function(known[name].module, name) for name in sys.argv[1:2] if name in known}
    schemas = {name: commands.schema(measure) for name, measure in chosen.items()}
    schemas = schemas or {name: commands.described(command.sentence) for name, command in known.items()}
    name, settings = configuration.from_subcommands(schemas, __doc__)

    from benchmarks import timing

    from ensemble import folders

    arguments = configuration.to_dict(settings)
    results = Path(arguments.pop("results"))
    folders.refuse_unwritable(results / f"{name}.json")
    environment = timing.environment()
    figures = chosen[name](**arguments)
    if figures is not None:
        results.mkdir(parents=True, exist_ok=True)
        folders.write_json(results / f"{name}.json", {"environment": environment, **figures})
        print(f"written to {results / f'{name}.json'}")


def function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    errors.run(main)
