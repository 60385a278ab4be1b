"""A stateful DataLoader repeats rows when a DDP run resumes: accelerate#3938, fixed by #3952.

The thread has two ranks and rows in order. The same training is also tried with rows in a random order, resumed in its first
and in its second epoch.
"""

from pathlib import Path
from typing import Any

from benchmarks.pains import sides

THREADS = ("accelerate#3938", "accelerate#3952")
FIRST, SECOND = 5, 17
"""The steps of the checkpoints, in the first and the second epoch of 12 steps."""


def rank(settings: Any) -> None:
    from benchmarks.pains import plain

    plain.train(settings)


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    variants = resumes(folder, "in_order", "sampler=stateful", "shuffle=false", at=(FIRST,))
    if not short:
        variants |= resumes(folder, "shuffled", "sampler=stateful", at=(FIRST, SECOND))
    first, *others = variants.values()
    return {
        "plain": first,
        "here": sides.interrupted_here(folder, FIRST),
        "others": dict(zip(list(variants)[1:], others, strict=True)),
    }


def resumes(folder: Path, name: str, *words: str, at: tuple[int, ...], ranks: int = sides.RANKS) -> dict[str, sides.Side]:
    """An uninterrupted run, and a resume from each of the steps `at`."""
    words = (*words, f"batch_size={sides.BATCH_SIZE * sides.RANKS // ranks}")
    whole = sides.plain("stateful_loader", folder / name, *words, f"save_at={list(at)}", ranks=ranks)
    found = {}
    for step in at:
        after = sides.plain(
            "stateful_loader", folder / f"{name}-{step}", *words, f"resume={whole / f'step_{step}'}", ranks=ranks
        )
        found[f"{name}, resumed at step {step}"] = sides.resumed(after, whole, step)
    return found
