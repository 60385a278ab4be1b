"""A stateful DataLoader repeats rows when a DDP run resumes: accelerate#3938, fixed by #3952.

The thread has two ranks and rows in order. The same training is repeated with rows in a random order, resumed in the first
and in the second epoch.
"""

from pathlib import Path

from benchmarks.pains import rows, sides

THREADS = ("accelerate#3938", "accelerate#3952")
FIRST, SECOND = 5, 17
"""The steps of the checkpoints, in the first and the second epoch of 12 steps."""


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    variants = resumes(folder, "in_order", "sampler=stateful", "shuffle=false", at=(FIRST,))
    if not short:
        variants |= resumes(folder, "shuffled", "sampler=stateful", at=(FIRST, SECOND))
    return variants, sides.interrupted_here(folder, FIRST)


def resumes(folder: Path, name: str, *words: str, at: tuple[int, ...], ranks: int = sides.RANKS) -> dict[str, sides.Side]:
    """An uninterrupted run, and a resume from each of the steps `at`, compared with the rest of that run."""
    words = (*words, f"batch_size={sides.BATCH_SIZE * sides.RANKS // ranks}")
    whole = sides.plain("stateful_loader", folder / name, *words, f"save_at={list(at)}", ranks=ranks)
    results = {}
    for step in at:
        resume = f"resume={whole / f'step_{step}'}"
        after = sides.plain("stateful_loader", folder / f"{name}-{step}", *words, resume, ranks=ranks)
        results[f"{name}, resumed at step {step}"] = sides.compared(after, rows.steps(whole)[step:])
    return results
