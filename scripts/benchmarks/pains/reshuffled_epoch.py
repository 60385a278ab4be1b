"""A run that resumes in the middle of an epoch uses its rows in another order: transgenic#59, accelerate#2016, #4233.

Accelerate's default sampler is tested on one process, as in the first issue. `use_seedable_sampler` with `set_epoch` avoids
the problem.
"""

from pathlib import Path

from benchmarks.pains import sides
from benchmarks.pains.stateful_loader import FIRST, SECOND, resumed

ISSUES = ("wyim-pgl/transgenic#59", "accelerate#2016", "accelerate#4233")


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    variants = resumed(folder, "one_process", FIRST, ranks=1)
    if not short:
        variants |= resumed(folder, "seedable_sampler", SECOND, sampler="seedable")
    return variants, sides.interrupted_here(folder, SECOND)
