"""Speed of preparing sudoku data on one thread, compared with plain Python; and speed of SparseSignSGD on a large table."""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import command
from benchmarks.runs import enough, shown, spread
from benchmarks.sudoku import plain
from benchmarks.timing import call, cpu_seconds, memory_mb, timed
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.neural.optimizers import SparseSignSGD
from ensemble.recipes.sudoku import puzzles, readers
from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.layers import PuzzleEmbedding
from ensemble.recipes.sudoku.orbits import canonical_forms
from ensemble.recipes.sudoku.symmetry import symmetries_of

GENERATED = {
    "6 with 18 clues": (6, 18, 20_000, 300),
    "9 with 40 clues": (9, 40, 4_000, 60),
    "9 with 32 clues": (9, 32, 4_000, 60),
    "9 minimal": (9, 0, 1_000, 20),
}
"""Side, clues (0: minimal puzzles), and the numbers of puzzles that this project and plain Python generate in a round."""
GENERATED_ONCE = {"16 with 130 clues": (16, 130, 200), "16 minimal": (16, 0, 10)}
"""Side, clues, and the number of puzzles that this project generates once; plain Python would take too long."""
NUM_17_PLAIN = 10
"""Puzzles with 17 clues that plain Python solves in a round."""
BATCH = 768
BATCHES = 20
"""Puzzles in a batch of which symmetric images are computed, and such batches in a round."""
TABLE_ROWS, TABLE_WIDTH, TABLE_STEPS = 10_000_000, 128, 100
Work = Callable[[int], object]
"""Work on some puzzles, given the number of the round."""


@command
def sudoku_data(rounds: int = 5, clues_17: str = "") -> dict[str, Any]:
    """Puzzles generated, solved, brought to canonical form and transformed per CPU second of one thread; two minutes.

    The results also have ratios to plain Python in the same round, and the seconds until a process has its first puzzles.

    rounds : measurements of this project, each followed by one of plain Python
    clues_17 : a file of 9 × 9 puzzles with 17 clues, one on each line, such as G. Royle's list; empty to leave them out
    """
    enough(rounds, 1, purpose="a median")
    nine = board_of(9)
    if clues_17:
        given = readers.read([Path(clues_17)], nine, Census()).puzzles
        if ((given > 0).sum(axis=1) != 17).any():
            raise UserError(f"clues_17={clues_17} has puzzles with another number of clues: give a file with 17 each")
    generated = {}
    for name, (side, clues, num_ours, num_plain) in GENERATED.items():
        board = board_of(side)
        reference = partial(plain.generate, board, num_plain, clues)
        rates = _compared(rounds, _generator(board, clues, num_ours), num_ours, reference, num_plain)
        generated[name] = shown(f"generate {name}", rates)
    for name, (side, clues, count) in GENERATED_ONCE.items():
        generated[name] = _rates(1, _generator(board_of(side), clues, count), count)
    boards, solutions = generate(nine, 0, 2_000)
    solved = {"9 minimal": solving(rounds, nine, boards, 40)}
    if clues_17:
        drawn = given[np.random.default_rng(0).permutation(len(given))[:5_000]]
        solved["9 with 17 clues"] = solving(rounds, nine, drawn, NUM_17_PLAIN)
    print(f"solve: {solved}", flush=True)
    canonical_forms(nine, boards[:1], solutions[:1], 1)  # compiles
    forms = _rates(rounds, lambda number: canonical_forms(nine, boards, solutions, 1), len(boards))

    def transform(number: int) -> None:
        for epoch in range(BATCHES):
            symmetries_of(nine, number, epoch, np.arange(BATCH)).apply(boards[:BATCH])

    images = _rates(rounds, transform, BATCHES * BATCH)
    return {
        "rounds": rounds,
        "generate": generated,
        "solve": solved,
        "canonical_forms": {"9": forms},
        "symmetric_images": {"9": images},
        "first_puzzles": _first_puzzles(),
    }


@command
def sudoku_table() -> dict[str, Any]:
    """Steps of SparseSignSGD on a table of 10 million rows: CPU time and memory; it needs 5 GB of memory."""
    torch.set_num_threads(1)
    embedding = PuzzleEmbedding(TABLE_ROWS, TABLE_WIDTH)
    torch.nn.init.ones_(embedding.table)  # only when memory is written does the system allocate it
    before = round(memory_mb(), 1)
    optimizer = SparseSignSGD([embedding.table], lr=0.01, weight_decay=0.1)
    generator, seconds, used = torch.Generator().manual_seed(0), [], set()

    def step(ids: torch.Tensor, target: torch.Tensor) -> None:
        (embedding(ids) * target).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(TABLE_STEPS):
        ids = torch.randint(TABLE_ROWS, (BATCH,), generator=generator)
        target = torch.randn(BATCH, TABLE_WIDTH, generator=generator)
        seconds.append(cpu_seconds(partial(step, ids, target)))
        used |= set(ids.tolist())
    num_changed = sum(int((part != 1).any(dim=1).sum()) for part in embedding.table.split(100_000))
    assert num_changed == len(used)
    return {
        "table_mb": round(embedding.table.nbytes / 1e6),
        "peak_mb_before_the_first_step": before,
        "peak_mb": round(memory_mb(), 1),
        "rows_trained": num_changed,
        "cpu_ms_a_step": round(1e3 * statistics.median(seconds), 2),
    }


def _compared(rounds: int, ours: Work, num_ours: int, reference: Work, num_reference: int) -> dict[str, Any]:
    """The rates of this project and of the reference, measured alternately, and their ratio in each round."""
    pairs = [(_rate(ours, num_ours, number), _rate(reference, num_reference, number)) for number in range(rounds)]
    our_rates, reference_rates = zip(*pairs, strict=True)
    ratios = [our_rate / reference_rate for our_rate, reference_rate in pairs]
    return {
        "per_cpu_s": spread(our_rates),
        "plain_python_per_cpu_s": spread(reference_rates),
        "times_plain_python": {"median": statistics.median(ratios), "least": min(ratios)},
    }


def _rates(rounds: int, work: Work, count: int) -> dict[str, Any]:
    """The rates over all rounds, of work on `count` puzzles each."""
    return {"per_cpu_s": spread([_rate(work, count, number) for number in range(rounds)])}


def _rate(work: Work, count: int, number: int) -> float:
    """Puzzles per CPU second in round `number`."""
    return count / cpu_seconds(partial(work, number))


def generate(board: Board, clues: int, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return puzzles.generate(board, seed=seed, first=0, count=count, clues=clues, threads=1)


def _generator(board: Board, clues: int, count: int) -> Work:
    generate(board, clues, 1)  # compiles
    return partial(generate, board, clues, count)


def solving(rounds: int, board: Board, given: np.ndarray, num_plain: int) -> dict[str, Any]:
    """Rates of proving that each puzzle has one solution; plain Python solves the next puzzles in each round."""
    puzzles.solve(board, given[:1], 1)  # compiles
    solver = plain.Solver(board)

    def reference(number: int) -> None:
        for puzzle in given.take(range(number * num_plain, (number + 1) * num_plain), axis=0, mode="wrap"):
            assert solver.num_solutions([1 << digit - 1 if digit else 0 for digit in puzzle.tolist()], 2) == 1

    def ours(number: int) -> None:
        assert (puzzles.solve(board, given, 1).results == 1).all()

    return _compared(rounds, ours, len(given), reference, num_plain)


def _first_puzzles() -> dict[str, dict[str, float]]:
    """Seconds of a process that generates a few puzzles, first without compiled code in the cache, then with it.

    Its peak memory is left out: the system reports at least that of this process, which has imported PyTorch.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = ["env", f"NUMBA_CACHE_DIR={cache}", f"PYTHONPATH={os.pathsep.join(sys.path[1:])}"]
        words = [*environment, sys.executable, *call(plain.first_puzzles, out=Path(cache) / "none")]
        runs = {name: timed(words) for name in ("compiled", "from_the_cache")}
    return {name: {unit: used[unit] for unit in ("wall_s", "cpu_s")} for name, used in runs.items()}
