"""Puzzles to prepared data: what is written, which puzzles share a split, and what is refused."""

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scripts_run

from ensemble import folders
from ensemble.arrow import Column, open_table
from ensemble.data import prepared
from ensemble.errors import UserError
from ensemble.recipes.sudoku import search
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.orbits import canonical_forms
from ensemble.recipes.sudoku.prepare import NUM_ATTEMPTS_WITHOUT_A_PUZZLE, SPLITS, prepare
from ensemble.recipes.sudoku.puzzles import generate, solve
from ensemble.recipes.sudoku.settings import PrepareConfig
from ensemble.recipes.sudoku.symmetry import symmetries_of

SMALL = PrepareConfig(side=6, clues=18, num_train=60, num_validation=10, num_blend=10, num_test=30)


def columns(folder: Path, split: str) -> dict[str, np.ndarray]:
    table = open_table(folder / "rows" / split)
    return {name: Column(table, name).all() for name in table.column_names}


def orbits(folder: Path, split: str) -> set[bytes]:
    stored = columns(folder, split)
    side = int(stored["puzzle"].shape[1] ** 0.5)
    return {form.tobytes() for form in canonical_forms(board_of(side), stored["puzzle"], stored["solution"])}


def line(puzzle: np.ndarray) -> str:
    return "".join(map(str, puzzle))


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def of_files(folder: Path, **settings: Any) -> PrepareConfig:
    """A small run on files of side 6."""
    few = {"num_train": 20, "num_validation": 3, "num_blend": 3, "num_test": 4}
    return PrepareConfig(**{"out": str(folder / "out"), "side": 6, **few, **settings})


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sudoku") / "prepared"
    prepare(dataclasses.replace(SMALL, out=str(folder)))
    return folder


def test_what_is_written(generated: Path) -> None:
    """Training could not read the rows, or would confuse two columns."""
    manifest = folders.read_manifest(generated)
    prepared.check("sudoku", generated, manifest)
    assert manifest["sudoku"] == {"side": 6, "box_rows": 2, "box_columns": 3, "cells": 36}
    assert manifest["task"]["kind"] == "multiclass"
    assert manifest["task"]["classes"] == ["1", "2", "3", "4", "5", "6"]
    assert manifest["config"] == {
        "side": 6, "seed": 0, "num_train": 60, "num_validation": 10, "num_blend": 10, "num_test": 30, "clues": 18,
    }  # fmt: skip
    schema = {
        "row_id": pa.int64(), "puzzle": pa.list_(pa.uint8(), 36), "solution": pa.list_(pa.uint8(), 36), "clues": pa.int16(),
        "backtracks": pa.int32(),
    }  # fmt: skip
    row_ids = []
    for split, num_rows in (("train", 60), ("validation", 10), ("blend", 10), ("test", 30)):
        table = open_table(generated / "rows" / split)
        assert {field.name: field.type for field in table.schema} == schema
        stored = columns(generated, split)
        entry = manifest["splits"][split]
        assert entry["rows"] == entry["orbits"] == len(orbits(generated, split)) == num_rows
        assert (stored["clues"] == 18).all()
        assert (np.count_nonzero(stored["puzzle"], axis=1) == 18).all()
        solved = solve(board_of(6), stored["puzzle"])
        assert (solved.results == search.UNIQUE).all()
        assert (solved.solutions == stored["solution"]).all()
        row_ids += stored["row_id"].tolist()
    assert row_ids == list(range(110))


def test_opens_with_datasets(generated: Path) -> None:
    """The library `datasets` could not read the puzzles."""
    import datasets

    rows = datasets.load_from_disk(str(generated / "rows" / "train"))
    assert np.array(rows[0]["puzzle"]).shape == (36,)


def test_no_orbit_is_in_two_splits(tmp_path: Path) -> None:
    """A test puzzle would be the image of a training puzzle. A random split of the same puzzles leaks all of them."""
    board = board_of(4)
    puzzles, solutions = generate(board, seed=0, first=0, count=600, clues=0)
    forms = [form.tobytes() for form in canonical_forms(board, puzzles, solutions)]
    order = np.random.default_rng(0).permutation(600)
    learned = {forms[row] for row in order[:480]}
    assert all(forms[row] in learned for row in order[480:]), "the random split would not leak"

    config = PrepareConfig(
        out=str(tmp_path / "out"), side=4, num_train=20, num_validation=3, num_blend=3, num_test=10
    )  # all 36 orbits
    prepare(config)
    of_split = {split: orbits(tmp_path / "out", split) for split in SPLITS}
    assert {split: len(entry) for split, entry in of_split.items()} == {"train": 20, "validation": 3, "blend": 3, "test": 10}
    assert len(set.union(*of_split.values())) == 36
    with pytest.raises(UserError, match=r"ask for 37 puzzles, and [0-9,]+ attempts gave 36 that are not symmetric images"):
        prepare(dataclasses.replace(config, out=str(tmp_path / "more"), num_train=21))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_exists_is_refused_before_puzzles_are_generated(
    generated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user would wait for puzzles that are then discarded."""
    monkeypatch.delattr("ensemble.recipes.sudoku.puzzles.generate")
    with pytest.raises(UserError, match="exists already"):
        prepare(dataclasses.replace(SMALL, out=str(generated)))


def test_a_larger_train_split_leaves_the_others(generated: Path, tmp_path: Path) -> None:
    """Scores of two sizes of training data would be of other test puzzles."""
    prepare(dataclasses.replace(SMALL, out=str(tmp_path / "out"), num_train=70, threads=2))
    for split in ("test", "blend", "validation"):
        one, other = columns(generated, split), columns(tmp_path / "out", split)
        assert (one["puzzle"] == other["puzzle"]).all()
    prepare(dataclasses.replace(SMALL, out=str(tmp_path / "seed"), seed=1))
    assert not orbits(generated, "test") & orbits(tmp_path / "seed", "test")


def test_files_are_split_by_orbit(tmp_path: Path) -> None:
    """Images of one puzzle in a file would be in two splits, or a puzzle would be used twice as often as others."""
    board = board_of(6)
    puzzles, _ = generate(board, seed=0, first=0, count=30, clues=18)
    images = symmetries_of(board, 0, 0, np.arange(30)).apply(puzzles)
    path = write(tmp_path / "all.txt", [line(puzzle) for puzzle in [*puzzles, *images]])
    manifest = prepare(of_files(tmp_path, source=(str(path),), num_train=-1))
    assert manifest["census"]["rows_read"] == 60
    assert manifest["census"]["dropped"] == {"symmetric image of an earlier puzzle": {"count": 30, "first": []}}
    of_split = [orbits(tmp_path / "out", split) for split in SPLITS]
    assert sum(map(len, of_split)) == len(set.union(*of_split)) == 30
    assert manifest["sources"][0]["name"] == "all.txt"
    with pytest.raises(UserError, match=r"has 30 puzzles with one solution .* splits ask for 31"):
        prepare(of_files(tmp_path, source=(str(path),), num_train=21, overwrite=True))
    again = prepare(of_files(tmp_path, source=(str(path),), overwrite=True))
    assert again["splits"] == manifest["splits"]


def test_puzzles_of_a_test_file_are_not_learned_from(tmp_path: Path) -> None:
    """A published test file would be compared with models that saw images of its puzzles."""
    board = board_of(6)
    puzzles, solutions = generate(board, seed=0, first=0, count=40, clues=18)
    images = symmetries_of(board, 0, 0, np.arange(40)).apply(puzzles)
    header = "source,question,answer,rating"
    train = write(
        tmp_path / "train.csv", [header, *(f"a,{line(p)},{line(s)},7" for p, s in zip(puzzles, solutions, strict=True))]
    )
    test = tmp_path / "test.csv.gz"
    test.write_bytes(gzip.compress("\n".join([header, *(f"b,{line(p)},,{k}" for k, p in enumerate(images[:8]))]).encode()))
    config = of_files(tmp_path, source=(str(train),), test_source=(str(test),), num_test=-1, num_train=-1)
    manifest = prepare(config)
    assert {split: entry["rows"] for split, entry in manifest["splits"].items()} == {
        "train": 26, "validation": 3, "blend": 3, "test": 8,
    }  # fmt: skip
    learned = orbits(tmp_path / "out", "train") | orbits(tmp_path / "out", "validation") | orbits(tmp_path / "out", "blend")
    assert not learned & orbits(tmp_path / "out", "test")
    stored = columns(tmp_path / "out", "test")
    assert sorted(stored["rating"].tolist()) == list(range(8))
    assert {tuple(puzzle) for puzzle in stored["puzzle"].tolist()} == {tuple(puzzle) for puzzle in images[:8].tolist()}
    assert set(columns(tmp_path / "out", "train")["rating"]) == {7}


def bad_lines() -> dict[str, tuple[str, str]]:
    puzzle, solution = (boards[0] for boards in generate(board_of(6), seed=9, first=0, count=1, clues=18))
    wrong, twice, other = puzzle.copy(), puzzle.copy(), solution.copy()
    blank = np.flatnonzero(puzzle == 0)
    wrong[blank[0]] = 1 + solution[blank[0]] % 6
    twice[:2] = 3
    other[[0, 1]] = other[[1, 0]]
    return {
        "malformed": (line(puzzle)[1:], "malformed line"),
        "unsolvable": (line(wrong), "puzzle without a solution"),
        "twice": (line(twice), "puzzle without a solution"),
        "ambiguous": ("0" * 36, "puzzle with several solutions"),
        "wrong answer": (f"{line(puzzle)},{line(other)}", "answer that is not the solution"),
    }


def test_the_folder_of_the_files_does_not_matter(tmp_path: Path) -> None:
    """Members trained in two places on the same puzzles could not be joined."""
    puzzles, _ = generate(board_of(6), seed=0, first=0, count=30, clues=18)
    fingerprints = set()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name / "puzzles.txt", ["cut", *map(line, puzzles)])
        config = of_files(tmp_path / name, source=(str(path),), max_bad_fraction=0.05)
        fingerprints.add(prepare(config)["fingerprint"])
    assert len(fingerprints) == 1


@pytest.mark.parametrize("name", bad_lines())
def test_a_bad_puzzle_is_counted_named_and_refused_above_a_threshold(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network would be trained on puzzles without a solution, or one bad line would end a long run."""
    puzzles, _ = generate(board_of(6), seed=0, first=0, count=31, clues=18)
    bad, kind = bad_lines()[name]
    lines = [line(puzzle) for puzzle in puzzles[:30]]
    path = write(tmp_path / "puzzles.txt", [*lines[:4], bad, *lines[4:]])
    with pytest.raises(UserError, match=r"1 of 31 rows are bad \(3.23%, allowed are 1.00%\)") as refused:
        prepare(of_files(tmp_path, source=(str(path),)))
    assert f"{path}:5: " in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["puzzles.txt"]
    manifest = prepare(of_files(tmp_path, source=(str(path),), max_bad_fraction=0.05))
    assert manifest["census"]["dropped"][kind]["count"] == 1
    assert manifest["census"]["dropped"][kind]["first"][0]["line"] == 5
    assert manifest["census"]["rows_kept"] == 30 == sum(entry["rows"] for entry in manifest["splits"].values())
    assert f"{path}:5: " in capsys.readouterr().out


def test_a_few_of_many_puzzles(tmp_path: Path) -> None:
    """All of four million puzzles would be solved to draw a thousand, or the first ones of the file would be drawn."""
    puzzles, _ = generate(board_of(6), seed=0, first=0, count=5000, clues=18)
    path = write(tmp_path / "many.txt", [line(puzzle) for puzzle in puzzles])
    manifest = prepare(of_files(tmp_path, source=(str(path),)))
    assert manifest["census"]["dropped"]["puzzle that was not drawn"]["count"] == 4970
    assert manifest["census"]["rows_kept"] == 30
    place = {line(puzzle): number for number, puzzle in enumerate(puzzles)}
    drawn = sorted(place[line(puzzle)] for split in SPLITS for puzzle in columns(tmp_path / "out", split)["puzzle"])
    assert 1500 < np.mean(drawn) < 3500
    other = prepare(of_files(tmp_path, source=(str(path),), seed=1, overwrite=True))
    assert other["fingerprint"] != manifest["fingerprint"]


@pytest.mark.parametrize(("num_train", "advice"), [(40, "lower num_train"), (-1, "lower num_test")])
def test_too_few_puzzles_in_a_file(num_train: int, advice: str, tmp_path: Path) -> None:
    """The error would advise to lower num_train, which is -1 and asks for a single puzzle."""
    puzzles, _ = generate(board_of(6), seed=0, first=0, count=20, clues=18)
    path = write(tmp_path / "few.txt", [line(puzzle) for puzzle in puzzles])
    with pytest.raises(UserError, match=f"source has 20 puzzles .*: {advice}, or give more files"):
        prepare(of_files(tmp_path, source=(str(path),), num_train=num_train, num_test=30))
    with pytest.raises(
        UserError, match="source has 8 puzzles with one solution that are not symmetric images of earlier ones"
    ):
        prepare(of_files(tmp_path, source=(str(path),), test_source=(str(path),), num_test=12))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"side": 5}, "side=5 has no board: choose one of 4, 6, 9, 16"),
        ({"clues": 7}, "clues=7 is impossible: it must be 0 .* from 8 to 35"),
        ({"clues": 36}, "clues=36 is impossible"),
        ({"num_train": -1}, "num_train=-1 is impossible: .* -1 for all puzzles of a given source="),
        ({"num_test": -1}, "num_test=-1 is impossible: .* -1 for all puzzles of a given test_source="),
        ({"num_train": 0}, "num_train=0 is impossible"),
        ({"num_blend": 1}, "num_blend=1 is impossible"),
        ({"test_source": ("a",)}, "test_source= needs source= too"),
        (
            {"source": ("a.txt",), "clues": 18},
            "clues=18 is impossible: it must be 0 for minimal puzzles or those of source=",
        ),
        ({"source": ("hub:All_Beauty",)}, "which are not read here: name files"),
        ({"source": ("nowhere.txt",)}, "nowhere.txt does not exist"),
        ({"max_bad_fraction": 2.0}, "max_bad_fraction=2.0 is impossible"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """The user would see a traceback, or find an incomplete folder."""
    with pytest.raises(UserError, match=sentence):
        prepare(of_files(tmp_path, **settings))
    assert not list(tmp_path.iterdir())


def test_too_few_clues_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator would never end."""
    monkeypatch.setitem(NUM_ATTEMPTS_WITHOUT_A_PUZZLE, 9, 100)
    with pytest.raises(UserError, match=r"the fewest clues were 2\d: raise clues"):
        prepare(of_files(tmp_path, side=9, clues=17))
    assert not list(tmp_path.iterdir())


def test_the_script(tmp_path: Path) -> None:
    """The command of the README would not work."""
    words = ["side=6", "clues=18", "num_train=20", "num_test=5", "num_validation=5", "num_blend=5"]
    out = tmp_path / "out"
    printed = scripts_run.run("prepare_data", "--recipe", "sudoku", f"out={out}", *words)
    assert "test  5 rows  orbits 5" in printed
    assert json.loads((out / folders.NAME).read_text(encoding="utf-8"))["recipe"] == "sudoku"


def test_what_training_imports_needs_no_compiler(generated: Path) -> None:
    """Training on a compute node would need numba and polars."""
    code = (
        "import sys, numpy as np\n"
        "from ensemble.recipes.sudoku import boards, settings, symmetry\n"
        "from ensemble.arrow import Column, open_table\n"
        f"puzzles = Column(open_table({str(generated / 'rows' / 'train')!r}), 'puzzle').take(np.arange(4))\n"
        "symmetry.symmetries_of(boards.board_of(6), 0, 0, np.arange(4)).apply(puzzles)\n"
        "print(sorted({'numba', 'polars', 'torch', 'datasets'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
