"""What the data of sudoku cost, in CPU seconds of one thread, beside plain Python; and the compilation of the first run."""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sudoku import plain, selection, throughput, training
from benchmarks.timing import SCRIPTS, timed
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.neural.optimizers import SparseSignSGD
from ensemble.recipes.sudoku import puzzles, readers
from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.layers import PuzzleEmbedding
from ensemble.recipes.sudoku.orbits import canonical_forms
from ensemble.recipes.sudoku.symmetry import symmetries_of

GENERATED = {
    "4 minimal": (4, 0, 20_000, 500),
    "6 minimal": (6, 0, 5_000, 200),
    "6 with 18 clues": (6, 18, 20_000, 300),
    "9 with 40 clues": (9, 40, 4_000, 60),
    "9 with 32 clues": (9, 32, 4_000, 60),
    "9 minimal": (9, 0, 1_000, 20),
}
"""Side, clues, and the numbers of puzzles of ours and of plain Python in each round."""
NUM_ALONE = {"16 with 130 clues": (16, 130, 200), "16 minimal": (16, 0, 10)}
NUM_17_PLAIN = 10
BATCH = 768
BATCHES = 20


def sudoku_data(rounds: int, clues_17: str) -> dict[str, Any]:
    """Puzzles a CPU second, the ratio to plain Python of each round, and seconds of the first puzzles of a process."""
    generated = {}
    for name, (side, clues, num_ours, num_plain) in GENERATED.items():
        generated[name] = _compared(rounds, *_generating(board_of(side), clues, num_ours, num_plain))
        print(f"generate {name}: {generated[name]}", flush=True)
    alone = {
        name: {"per_cpu_s": _summary([_rate(*_ours(board_of(side), clues, count), 0)])}
        for name, (side, clues, count) in NUM_ALONE.items()
    }
    nine, six = board_of(9), board_of(6)
    minimal = _made(nine, 0, 2_000)
    solved = {"9 minimal": _compared(rounds, *_solving(nine, minimal[0], 40))}
    if clues_17:
        found = readers.read([Path(clues_17)], nine, Census()).puzzles
        if ((found > 0).sum(axis=1) != 17).any():
            raise UserError(f"clues_17={clues_17} has puzzles with another number of clues: give a file with 17 each")
        chosen = found[np.random.default_rng(0).permutation(len(found))[:5_000]]
        solved["9 with 17 clues"] = _compared(rounds, *_solving(nine, chosen, NUM_17_PLAIN))
    print(f"solve: {solved}", flush=True)
    forms, images = {}, {}
    for name, board, made in (("6", six, _made(six, 18, 5_000)), ("9", nine, minimal)):
        canonical_forms(board, made[0][:1], made[1][:1], 1)  # compiled
        of_forms, of_images = partial(_compare, board, *made), partial(_transform, board, made[0][:BATCH])
        forms[name] = {"per_cpu_s": _summary([_rate(of_forms, len(made[0]), number) for number in range(rounds)])}
        images[name] = {"per_cpu_s": _summary([_rate(of_images, BATCHES * BATCH, number) for number in range(rounds)])}
    return {
        "rounds": rounds,
        "generate": generated | alone,
        "solve": solved,
        "canonical_forms": forms,
        "symmetric_images": images,
        "first_puzzles": _first_puzzles(),
    }


def _compare(board: Board, found: np.ndarray, solutions: np.ndarray, number: int) -> None:
    canonical_forms(board, found, solutions, 1)


def _transform(board: Board, batch: np.ndarray, number: int) -> None:
    for epoch in range(BATCHES):
        symmetries_of(board, number, epoch, np.arange(len(batch))).apply(batch)


Work = Callable[[int], Any]
"""A piece of work, by the number of its round."""


def sudoku_demo(seeds: int) -> dict[str, Any]:
    """See training.py."""
    return training.measured(seeds)


def sudoku_9x9(folder: str, clues: tuple[int, ...], epochs: int) -> dict[str, Any]:
    """See training.py."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return training.nine(Path(folder), tuple(clues), epochs)


def sudoku_table(num_rows: int, width: int, batch_size: int, steps: int) -> dict[str, Any]:
    """The table itself in MB, peak memory of the process without it and with training, and CPU milliseconds of a step."""
    torch.set_num_threads(1)
    embedding = PuzzleEmbedding(num_rows, width)
    torch.nn.init.ones_(embedding.table)  # otherwise the system has not given the memory yet
    before = _peak_mb()
    optimizer = SparseSignSGD([embedding.table], lr=0.01, weight_decay=0.1)
    generator, seconds, moved = torch.Generator().manual_seed(0), [], set()
    for _ in range(steps):
        ids = torch.randint(num_rows, (batch_size,), generator=generator)
        target = torch.randn(batch_size, width, generator=generator)
        began = time.process_time()
        (embedding(ids) * target).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
        moved |= set(ids.tolist())
    touched = sum(int((part != 1).any(dim=1).sum()) for part in embedding.table.split(100_000))
    assert touched == len(moved)
    return {
        "table_mb": round(embedding.table.nbytes / 1e6),
        "peak_mb_before_the_first_step": before,
        "peak_mb": _peak_mb(),
        "rows_trained": touched,
        "cpu_ms_a_step": round(1e3 * statistics.median(seconds), 2),
    }


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1)


def sudoku_selection(epochs: int) -> dict[str, Any]:
    """See selection.py."""
    return selection.measured(epochs)


def sudoku_throughput(hrm: str, trm: str, widths: tuple[int, ...], batch_size: int, rounds: int) -> dict[str, Any]:
    """See throughput.py."""
    folder_of = {name: folder for name, folder in (("hrm", hrm), ("trm", trm)) if folder}
    if not folder_of:
        raise UserError("hrm= and trm= are both empty: give the folder of at least one reference")
    return throughput.measured(folder_of, tuple(widths), batch_size, rounds)


def _compared(rounds: int, ours: Work, num_ours: int, theirs: Work, num_theirs: int) -> dict[str, Any]:
    """Both in turn; the ratio is taken pair by pair."""
    pairs = [(_rate(ours, num_ours, number), _rate(theirs, num_theirs, number)) for number in range(rounds)]
    ratios = [one / other for one, other in pairs]
    return {
        "per_cpu_s": _summary([one for one, _ in pairs]),
        "plain_python_per_cpu_s": _summary([other for _, other in pairs]),
        "times_plain_python": {"median": statistics.median(ratios), "least": min(ratios)},
    }


def _rate(work: Work, count: int, number: int) -> float:
    began = time.process_time()
    work(number)
    return count / (time.process_time() - began)


def _summary(rates: list[float]) -> dict[str, float]:
    return {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}


def _made(board: Board, clues: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    return puzzles.generate(board, seed=1, first=0, count=count, clues=clues, threads=1)


def _ours(board: Board, clues: int, count: int) -> tuple[Work, int]:
    _made(board, clues, 1)  # compiled

    def work(number: int) -> None:
        puzzles.generate(board, seed=number, first=0, count=count, clues=clues, threads=1)

    return work, count


def _generating(board: Board, clues: int, num_ours: int, num_plain: int) -> tuple[Work, int, Work, int]:
    return (*_ours(board, clues, num_ours), lambda number: plain.generate(board, num_plain, clues, number), num_plain)


def _solving(board: Board, found: np.ndarray, num_plain: int) -> tuple[Work, int, Work, int]:
    """A proof that each puzzle has one solution; plain Python has other puzzles in each round."""
    puzzles.solve(board, found[:1], 1)
    solver = plain.Solver(board)

    def theirs(number: int) -> None:
        for puzzle in found[number * num_plain : (number + 1) * num_plain]:
            count = solver.num_solutions([1 << digit - 1 if digit else 0 for digit in puzzle.tolist()], 2)
            assert count == 1

    def ours(number: int) -> None:
        assert (puzzles.solve(board, found, 1).results == 1).all()

    return ours, len(found), theirs, num_plain


def _first_puzzles() -> dict[str, dict[str, float]]:
    """Seconds of a process that makes a few puzzles, without and with compiled code from an earlier one."""
    command: list[str | Path] = [sys.executable, SCRIPTS / "benchmark.py", "sudoku-compile"]
    with tempfile.TemporaryDirectory() as cache:
        environment = ["env", f"NUMBA_CACHE_DIR={cache}", f"PYTHONPATH={os.pathsep.join(sys.path[1:])}"]
        return {name: timed([*environment, *command]) for name in ("compiled", "from_the_cache")}
