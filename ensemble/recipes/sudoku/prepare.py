"""Preparation of puzzles that are read or generated: one row for each, no two of them symmetric images of each other.

    python scripts/prepare_data.py --recipe sudoku out=runs/sudoku/prepared side=6 clues=18 num_train=1000 num_test=300
    python scripts/prepare_data.py --recipe sudoku 'source=[train.csv.gz]' 'test_source=[test.csv.gz]' out=runs/extreme

    rows/SPLIT    row_id int64, puzzle and solution fixed_size_list<uint8>[cells] (0 is a blank), clues int16, backtracks
                  int32, and rating float32 if a file has ratings (-1 for puzzles without)

Training applies random symmetries. All splits together contain at most one puzzle of each orbit (all images of a puzzle
under the symmetries, `orbits.py`), so that no test puzzle is the image of a training puzzle. Every puzzle has exactly one
solution, as the search of `search.py` proved; `backtracks` is the number of contradictions in that search.

The splits are filled in the order test, blend, validation, train, so that a larger training split does not change the
others.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from ensemble import configuration, folders
from ensemble.arrow import array, write_table
from ensemble.data import raw_files
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.sudoku import puzzles as batches
from ensemble.recipes.sudoku import readers, search
from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.orbits import canonical_forms
from ensemble.recipes.sudoku.settings import PrepareConfig
from ensemble.task import Task

SPLITS = ("train", "validation", "blend", "test")
FILLED = ("test", "blend", "validation", "train")
"""The order in which splits are filled."""
ALL = -1
NO_SOLUTION, SEVERAL, UNDECIDED = "puzzle without a solution", "puzzle with several solutions", "puzzle too hard to decide"
WRONG_ANSWER = "answer that is not the solution"
COPY = "symmetric image of an earlier puzzle"
NOT_DRAWN = "puzzle that was not drawn"
BAD_KINDS = (NO_SOLUTION, SEVERAL, UNDECIDED, WRONG_ANSWER)
ROWS_AT_ONCE = 2048
NUM_ATTEMPTS_WITHOUT_A_PUZZLE = {4: 20_000, 6: 20_000, 9: 20_000, 16: 200}
"""For each side, the attempts in a row without a new puzzle after which the generator stops: about ten seconds, on 16 × 16 a
minute or more."""


class Puzzles(NamedTuple):
    """n puzzles of different orbits: puzzles and solutions, (n, cells) uint8; backtracks and ratings, (n,)."""

    puzzles: np.ndarray
    solutions: np.ndarray
    backtracks: np.ndarray
    ratings: np.ndarray


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the folder of prepared data and return its manifest; `UserError` for wrong settings or files."""
    board = board_of(config.side)
    _check(config, board)
    census = Census()
    files, test_files = (
        raw_files.expand_sources(source, None) if source else [] for source in (config.source, config.test_source)
    )
    with folders.new_folder(config.out, config.overwrite, folders.PREPARED) as folder:
        if files:
            splits = _read_splits(config, board, files, test_files, census)
            print(census.table())
        else:
            total = sum(_num_rows(config, name) for name in SPLITS)
            splits = _cut(config, _generate(config, board, total), FILLED)
        has_rating = any((split.ratings != readers.NO_RATING).any() for split in splits.values())
        next_id = 0
        for name in SPLITS:
            write_table(folder / "rows" / name, _table(splits[name], next_id, has_rating))
            next_id += len(splits[name].puzzles)
        task = Task(
            kind="multiclass",
            target="solution",
            metric="multiclass_log_loss",
            group="row_id",
            cluster="row_id",
            classes=tuple(str(digit) for digit in range(1, board.side + 1)),
        )
        shape = {name: getattr(board, name) for name in ("side", "box_rows", "box_columns", "cells")}
        return folders.write_manifest(
            folder,
            {
                **folders.first_entries("sudoku", 1, task),
                "sudoku": shape,
                "sources": folders.sources([*files, *test_files]),
                "config": _config(config, test_files),
                "splits": {name: _facts(splits[name]) for name in SPLITS},
                "features": [],
                "alike": {"sudoku": shape},
                **({"census": census.to_dict()} if files else {}),
            },
        )


def _config(config: PrepareConfig, test_files: list[Path]) -> dict[str, Any]:
    """The settings that determine the data; files by their names, without folders."""
    names = ["side", "seed", *(f"num_{name}" for name in SPLITS), "max_bad_fraction" if config.source else "clues"]
    test_source = {"test_source": [file.name for file in test_files]} if test_files else {}
    return {name: getattr(config, name) for name in names} | test_source


def _check(config: PrepareConfig, board: Board) -> None:
    configuration.check(
        config,
        at_least_0="threads",
        at_least_1="num_validation",
        fractions="max_bad_fraction",
        clues=(
            config.clues == 0 or (not config.source and board.least_clues <= config.clues < board.cells),
            f"0 for minimal puzzles or those of source=, or from {board.least_clues} to {board.cells - 1} for generated "
            f"puzzles with one solution, side={board.side}",
        ),
        num_train=(
            config.num_train >= 1 or (config.num_train == ALL and bool(config.source)),
            "at least 1, or -1 for all puzzles of a given source=",
        ),
        num_blend=(config.num_blend >= 2, "at least 2"),
        num_test=(
            config.num_test >= 1 or (config.num_test == ALL and bool(config.test_source)),
            "at least 1, or -1 for all puzzles of a given test_source=",
        ),
    )
    if config.test_source and not config.source:
        raise UserError("test_source= needs source= too, from which the other splits are drawn: name its files")


def _num_rows(config: PrepareConfig, split: str) -> int:
    return int(getattr(config, f"num_{split}"))


# -------------------------------------------------------------------------------------------------------- generated


def _generate(config: PrepareConfig, board: Board, total: int) -> Puzzles:
    """Generate `total` puzzles of different orbits."""
    parts: list[Puzzles] = []
    seen: set[bytes] = set()
    attempts, last_success, fewest = 0, 0, board.cells
    progress = tqdm(total=total, unit=" puzzles", disable=None, leave=False)  # disabled without a terminal
    while len(seen) < total:
        num_missing = total - len(seen)
        count = min(ROWS_AT_ONCE, max(num_missing + num_missing // 8, 64)) if board.side < 16 else min(num_missing, 64)
        generated, solutions = batches.generate(
            board, seed=config.seed, first=attempts, count=count, clues=config.clues, threads=config.threads
        )
        attempts += count
        num_clues = (generated > 0).sum(axis=1)
        fewest = min(fewest, int(num_clues.min()))
        usable = np.flatnonzero(num_clues == config.clues if config.clues else num_clues > 0)
        new = usable[_first_of_orbits(board, generated[usable], solutions[usable], seen, num_missing, config.threads)]
        progress.update(len(new))
        if new.size:
            last_success = attempts
            solved = batches.solve(board, generated[new], config.threads)
            assert (solved.results == search.UNIQUE).all()
            ratings = np.full(len(new), readers.NO_RATING, np.int32)
            parts.append(Puzzles(generated[new], solutions[new], solved.backtracks, ratings))
        elif attempts - last_success >= NUM_ATTEMPTS_WITHOUT_A_PUZZLE[board.side]:
            kind = f"clues={config.clues}" if config.clues else "minimal"
            why = f"the fewest clues were {fewest}: raise clues" if fewest > config.clues > 0 else "ask for fewer puzzles"
            raise UserError(
                f"the splits ask for {total:,} puzzles, and {attempts:,} attempts gave {len(seen):,} that are not symmetric "
                f"images of each other (side={board.side}, {kind}; symmetric images count once): {why}, or use other clues"
            )
    progress.close()
    return Puzzles(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _first_of_orbits(
    board: Board, puzzles: np.ndarray, solutions: np.ndarray, seen: set[bytes], most: int, threads: int
) -> np.ndarray:
    """The first row of each orbit that is not in `seen`, at most `most` rows; their orbits are added to `seen`."""
    new: list[int] = []
    for row, form in enumerate(canonical_forms(board, puzzles, solutions, threads)):
        key = form.tobytes()
        if len(new) < most and key not in seen:
            seen.add(key)
            new.append(row)
    return np.array(new, np.int64)


# -------------------------------------------------------------------------------------------------------- from files


def _read_splits(
    config: PrepareConfig, board: Board, files: list[Path], test_files: list[Path], census: Census
) -> dict[str, Puzzles]:
    """The splits, drawn from the given files."""
    seen: set[bytes] = set()
    splits: dict[str, Puzzles] = {}
    names = [name for name in FILLED if not (name == "test" and test_files)]
    if test_files:
        wanted = _num_rows(config, "test")
        splits["test"] = _draw(config, board, test_files, wanted, census, seen)
        _refuse_few(splits["test"], wanted, "test_source", "num_test")
    least = sum(max(_num_rows(config, name), 1) for name in names)  # at least one for num_train=-1
    drawn = _draw(config, board, files, ALL if config.num_train == ALL else least, census, seen)
    largest = max(names, key=partial(_num_rows, config))  # never train with num_train=-1
    _refuse_few(drawn, least, "source", f"num_{largest}")
    return splits | _cut(config, drawn, names)


def _draw(config: PrepareConfig, board: Board, files: list[Path], wanted: int, census: Census, seen: set[bytes]) -> Puzzles:
    """Draw `wanted` puzzles, or all, of orbits that are not in `seen`, in a random order that the seed determines."""
    counts = Census()
    raw = readers.read(files, board, counts)
    counts.check(config.max_bad_fraction)
    order = np.random.default_rng(config.seed).permutation(len(raw.puzzles))
    most = len(order) + 1 if wanted == ALL else wanted
    parts, num_drawn, num_examined = [], 0, 0
    for begin in range(0, len(order), ROWS_AT_ONCE):
        rows = order[begin : begin + ROWS_AT_ONCE]
        if num_drawn == most:
            break
        num_examined += len(rows)
        solved = batches.solve(board, raw.puzzles[rows], config.threads)
        is_wrong = (raw.answers[rows] > 0).any(axis=1) & (raw.answers[rows] != solved.solutions).any(axis=1)
        ends = (search.UNSOLVABLE, search.AMBIGUOUS, search.UNDECIDED)
        fault = np.select([*(solved.results == end for end in ends), is_wrong], [1, 2, 3, 4])
        for number, kind in enumerate(BAD_KINDS, 1):
            bad = rows[fault == number]
            counts.drop(kind, len(bad), map(raw.example, sorted(bad)))
        good = np.flatnonzero(fault == 0)
        candidates = board, raw.puzzles[rows[good]], solved.solutions[good]
        new = good[_first_of_orbits(*candidates, seen, most - num_drawn, config.threads)]
        num_drawn += len(new)
        drawn = rows[new]
        parts.append(Puzzles(raw.puzzles[drawn], solved.solutions[new], solved.backtracks[new], raw.ratings[drawn]))
        # Puzzles after the last drawn one were not compared, so they do not count as copies
        num_compared = int((good <= new[-1]).sum()) if num_drawn == most else len(good)
        counts.drop(COPY, num_compared - len(new))
        counts.drop(NOT_DRAWN, len(good) - num_compared)
    counts.check(config.max_bad_fraction, BAD_KINDS, num_examined)
    counts.drop(NOT_DRAWN, len(order) - num_examined)
    _add(census, counts)
    return Puzzles(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _add(census: Census, other: Census) -> None:
    """Add the counts of another census."""
    census.read(other.rows_read)
    for kind, count in other.dropped.items():
        census.drop(kind, count, other.examples[kind])
    census.files += other.files


def _refuse_few(drawn: Puzzles, wanted: int, source: str, setting: str) -> None:
    if len(drawn.puzzles) < wanted:
        raise UserError(
            f"{source} has {len(drawn.puzzles):,} puzzles with one solution that are not symmetric images of earlier ones, "
            f"and the splits ask for {wanted:,} (symmetric images count once): lower {setting}, or give more files"
        )


# -------------------------------------------------------------------------------------------------------- written


def _cut(config: PrepareConfig, drawn: Puzzles, names: Sequence[str]) -> dict[str, Puzzles]:
    """Consecutive parts of the puzzles, in the order of `names`; the last part has all remaining puzzles."""
    splits, begin = {}, 0
    for name in names:
        end = len(drawn.puzzles) if name == names[-1] else begin + _num_rows(config, name)
        splits[name] = Puzzles(*(column[begin:end] for column in drawn))
        begin = end
    return splits


def _table(split: Puzzles, first_id: int, has_rating: bool) -> pa.Table:
    num_rows = len(split.puzzles)
    columns = {
        "row_id": pa.array(np.arange(first_id, first_id + num_rows), pa.int64()),
        "puzzle": array(split.puzzles, pa.uint8()),
        "solution": array(split.solutions, pa.uint8()),
        "clues": pa.array((split.puzzles > 0).sum(axis=1), pa.int16()),
        "backtracks": pa.array(np.minimum(split.backtracks, 2**31 - 1), pa.int32()),
    }
    return pa.table(columns | ({"rating": pa.array(split.ratings, pa.float32())} if has_rating else {}))


def _facts(split: Puzzles) -> dict[str, Any]:
    """The entry of a split in the manifest."""
    clues = (split.puzzles > 0).sum(axis=1)
    facts = {
        "rows": len(clues),
        "orbits": len(clues),
        "fewest_clues": int(clues.min()),
        "most_clues": int(clues.max()),
        "mean_backtracks": float(f"{split.backtracks.mean():.4g}"),
    }
    rated = split.ratings[split.ratings != readers.NO_RATING]
    return facts | ({"mean_rating": float(f"{rated.mean():.4g}")} if rated.size else {})
