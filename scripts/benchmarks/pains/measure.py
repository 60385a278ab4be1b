"""Problems that users of plain Accelerate report, reproduced by the same training with it and with this project.

Each module of `COMPLAINTS` reproduces one complaint with plain Accelerate and with this project, both started by
`accelerate launch`. Its `ISSUES` are the issues and advisories that report it. `reproduces` in the results is false for a
complaint that does not occur with Accelerate 1.15.
"""

import dataclasses
import importlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runs import refuse_unknown, shown

COMPLAINTS = (
    "stateful_loader", "reshuffled_epoch", "skipped_batches", "sharded_stream", "code_on_load", "missing_processes",
    "changed_ranks", "uneven_accumulation", "checkpoint_stall",
)  # fmt: skip
"""The modules of this folder, each of which reproduces one complaint."""


@command
def pains(only: tuple[str, ...] = (), short: bool = False) -> dict[str, Any]:
    """Problems reported by users of plain Accelerate, reproduced with it and with this project; ten minutes.

    only : complaints to reproduce, named as the files of scripts/benchmarks/pains; empty for all
    short : fewer variants of each training, as in CI
    """
    refuse_unknown("only", only, COMPLAINTS)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys(only or COMPLAINTS):
            module = importlib.import_module(f"benchmarks.pains.{name}")
            (Path(folder) / name).mkdir()
            variants, here, *more = module.reproduce(Path(folder) / name, short)
            (_, plain), *others = variants.items()
            result = {
                "threads": list(module.ISSUES),
                "reproduces": plain.is_wrong,
                "absent_here": not here.is_wrong,
                "plain": dataclasses.asdict(plain),
                "here": dataclasses.asdict(here),
                **({"other_variants": {variant: dataclasses.asdict(side) for variant, side in others}} if others else {}),
                **(more[0] if more else {}),
            }
            results[name] = shown(name, result)
    return results
