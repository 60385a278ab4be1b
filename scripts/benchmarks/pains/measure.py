"""Problems that users of plain Accelerate report, reproduced: the same training with it and with this project.

    make pains

Each module of `COMPLAINTS` names the threads and reproduces one complaint, on both sides through `accelerate launch`. The
output has one line for each complaint. A complaint that does not reproduce with Accelerate 1.15 is reported as such.
"""

import dataclasses
import importlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pains.settings import COMPLAINTS
from ensemble.errors import UserError


def pains(only: list[str], short: bool) -> dict[str, Any]:
    """For each complaint: its threads, both sides, whether it reproduces, and whether it is absent here."""
    if unknown := [name for name in only if name not in COMPLAINTS]:
        raise UserError(f"only={unknown[0]} is no complaint: choose of {', '.join(COMPLAINTS)}")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in only or COMPLAINTS:
            module = importlib.import_module(f"benchmarks.pains.{name}")
            (Path(folder) / name).mkdir()
            variants, here, *more = module.reproduce(Path(folder) / name, short)
            (_, plain), *others = variants.items()
            results[name] = {
                "threads": list(module.THREADS),
                "reproduces": plain.is_wrong,
                "absent_here": not here.is_wrong,
                "plain": dataclasses.asdict(plain),
                "here": dataclasses.asdict(here),
                **({"other_variants": {variant: dataclasses.asdict(side) for variant, side in others}} if others else {}),
                **(more[0] if more else {}),
            }
            print(f"{name}: plain Accelerate {plain.sentence}; this project {here.sentence}", flush=True)
            for variant, side in others:
                print(f"    {variant}: {side.sentence}", flush=True)
    return results
