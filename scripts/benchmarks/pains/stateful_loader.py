"""A stateful DataLoader repeats rows when a DDP run resumes: accelerate#3938, fixed by #3952.

The issue is about two ranks and rows in order. The same training is repeated with rows in a random order, and resumed in the
second epoch.
"""

from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

ISSUES = ("accelerate#3938", "accelerate#3952")
FIRST, SECOND = 5, 17
"""The steps of the checkpoints, in the first and in the second epoch; an epoch has 12 steps."""


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    variants = resumed(folder, "in_order", FIRST, sampler="stateful", shuffle=False)
    if not short:
        variants |= resumed(folder, "shuffled", SECOND, sampler="stateful")
    return variants, sides.interrupted_here(folder, FIRST)


def resumed(folder: Path, name: str, step: int, ranks: int = sides.RANKS, **settings: Any) -> dict[str, sides.Side]:
    """A run that resumes from a step of an uninterrupted run, compared with the remaining steps of that run."""
    settings |= {"ranks": ranks, "batch_size": sides.BATCH_SIZE * sides.RANKS // ranks}
    whole = sides.plain("stateful_loader", folder / name, save_at=(step,), **settings)
    after = sides.plain("stateful_loader", folder / f"{name}-resumed", resume=str(whole / f"step_{step}"), **settings)
    return {f"{name}, resumed at step {step}": sides.compared(after, rows.steps(whole)[step:])}
