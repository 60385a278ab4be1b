"""What users of plain Accelerate report, reproduced: the same training with it and with this project.

    make pains

Each module of `COMPLAINTS` names the threads and reproduces one complaint, on both sides through `accelerate launch`. One
line of the output is one complaint. What plain Accelerate 1.15 does no longer is reported as such.
"""

import dataclasses
import importlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pains.settings import COMPLAINTS
from ensemble.errors import UserError


def pains(only: list[str], short: bool) -> dict[str, Any]:
    """Each complaint: its threads, both sides, and whether it reproduces and is absent here."""
    if unknown := [name for name in only if name not in COMPLAINTS]:
        raise UserError(f"only={unknown[0]} is no complaint: choose of {', '.join(COMPLAINTS)}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in only or COMPLAINTS:
            module = importlib.import_module(f"benchmarks.pains.{name}")
            (Path(folder) / name).mkdir()
            sides = module.reproduce(Path(folder) / name, short)
            others = sides.pop("others", {})
            more = sides.pop("more", {})
            found[name] = {
                "threads": list(module.THREADS),
                "reproduces": sides["plain"].is_wrong,
                "absent_here": not sides["here"].is_wrong,
                **{side: dataclasses.asdict(of) for side, of in sides.items()},
                **({"other_variants": {of: dataclasses.asdict(side) for of, side in others.items()}} if others else {}),
                **more,
            }
            print(f"{name}: plain Accelerate {sides['plain'].sentence}; this project {sides['here'].sentence}", flush=True)
            for variant, side in others.items():
                print(f"    {variant}: {side.sentence}", flush=True)
    return found
