"""Scores of boards, of an ensemble and of one network."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest
import small_sudokus
import torch
from accelerate import Accelerator

from ensemble import configuration, folders, predictions
from ensemble.errors import UserError
from ensemble.neural import launch, loop
from ensemble.neural.settings import config_class
from ensemble.recipes.sudoku import examine, outputs, prepare, training
from ensemble.recipes.sudoku.board_scores import scores
from ensemble.recipes.sudoku.examine import ExamineConfig
from ensemble.recipes.sudoku.settings import PrepareConfig

torch.set_num_threads(1)


def boards(num_puzzles: int = 40) -> dict[str, np.ndarray]:
    """Boards of four cells, the first of which is given; the last cell of board k is wrong if k is divisible by 4."""
    solutions = np.tile([1, 2, 3, 4], (num_puzzles, 1))
    puzzles, result = solutions.copy(), solutions.copy()
    puzzles[:, 1:] = 0
    result[::4, 3] = 1
    number = np.arange(num_puzzles)
    return {
        "puzzles": puzzles, "solutions": solutions, "boards": result, "clues": 17 + number % 2,
        "backtracks": np.where(number < 10, 0, np.where(number < 20, 2, 5000)), "segments": 1 + number % 4,
    }  # fmt: skip


def test_boards_are_solved_as_a_whole() -> None:
    """Given cells would count as right, or a part of the puzzles would have the puzzles of another part."""
    result = scores(**boards())
    assert result["puzzles"] == 40
    assert result["exact"] == 0.75
    assert result["blanks"] == pytest.approx(1 - 10 / 120)
    assert result["segments"] == 2.5
    assert result["exact_interval"] == pytest.approx([0.5981, 0.8581], abs=1e-4), "Wilson's interval of 30 of 40"
    low, high = result["blanks_interval"]
    assert 0.8 < low < 0.9 < 0.93 < high < 1
    by_clues = result["by_clues"]
    assert {name: part["puzzles"] for name, part in by_clues.items()} == {"17": 20, "18": 20}
    assert (by_clues["17"]["exact"], by_clues["18"]["exact"]) == (0.5, 1.0)
    assert (by_clues["17"]["segments"], by_clues["18"]["segments"]) == (2.0, 3.0)
    by_backtracks = result["by_backtracks"]
    assert {name: part["puzzles"] for name, part in by_backtracks.items()} == {"0": 10, "1 to 3": 10, "64 and more": 20}
    assert by_backtracks["0"]["exact"] == 0.7
    json.dumps(result, allow_nan=False)


def test_one_puzzle_has_no_interval_of_draws() -> None:
    """The interval would be NaN, which is not valid JSON."""
    one = {name: column[:1] for name, column in boards().items()}
    result = scores(**{**one, "segments": None})  # type: ignore[arg-type]
    assert result["blanks_interval"] is None
    assert result["exact_interval"] == pytest.approx([0, 0.7935], abs=1e-4)
    assert result["exact"] == 0.0
    assert "segments" not in result
    json.dumps(result, allow_nan=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_sudokus.prepared(tmp_path_factory.mktemp("sudokus"))


def test_the_ensemble_is_scored_by_boards(data: Path) -> None:
    """The cells would be assembled to boards that differ from those of the data."""
    rows = training.make(small_sudokus.config(), str(data)).rows("test").columns
    solution, row_id = rows["solution"].all(), rows["row_id"].all()
    right = np.eye(4)[solution.reshape(-1) - 1]
    cell = np.tile(np.arange(16), 10)
    puzzle = np.repeat(row_id, 16)
    wrong = right.copy()
    wrong[16 * 3 + 5] = np.roll(right[16 * 3 + 5], 1)
    test = predictions.Predictions(
        row_id=puzzle * 16 + cell, target=solution.reshape(-1) - 1.0, prediction=right, group=puzzle, cluster=puzzle,
        recipe="sudoku", split="test", member="m", fingerprint="", output="probabilities", classes=("1", "2", "3", "4"),
    )  # fmt: skip
    result = outputs.scores_by_part("multiclass", test, {"ensemble": right, "m": wrong}, data)["boards"]
    assert result["ensemble"]["exact"] == 1.0
    assert result["m"]["exact"] == 0.9
    blanks = (rows["puzzle"].all() == 0).sum()
    is_blank = rows["puzzle"].all()[3, 5] == 0
    assert result["m"]["blanks"] == pytest.approx(1 - is_blank / blanks)


def test_the_training_split_is_not_examined() -> None:
    """Predictions of symmetric images would be compared with the solutions of the puzzles themselves."""
    with pytest.raises(UserError, match="train"):
        configuration.from_dict(ExamineConfig, {"member": "m", "data": "d", "out": "o", "split": "train"})


@pytest.mark.parametrize("word", ["batch_size=0", "batch_size=-1", "starts=-1", "votes=-1"])
def test_numbers_of_no_puzzles_are_refused(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """The user would see a traceback."""
    monkeypatch.setattr(sys, "argv", ["examine", "member=m", "data=d", "out=o", word])
    with pytest.raises(UserError, match=f"{word}.* must be"):
        examine.main()


def test_an_existing_folder_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores would be computed for an hour, and lost."""
    (tmp_path / "notes").write_text("mine")
    monkeypatch.setattr(launch, "start", lambda: None)
    monkeypatch.setattr(sys, "argv", ["examine", "member=not_read", "data=not_read", f"out={tmp_path}"])
    with pytest.raises(UserError, match=f"{tmp_path} exists already"):
        examine.main()


def train(data: Path, out: Path, **changed: Any) -> None:
    """A network that was trained for one epoch."""
    values: dict[str, Any] = {
        "data": str(data), "out": str(out), "batch_size": 16, "max_epochs": 1, "trackers": (),
        "recipe": vars(small_sudokus.config(variant="trm")),
    }  # fmt: skip
    config: Any = configuration.from_dict(config_class("sudoku"), {**values, **changed})
    loop.train(training.make(config.recipe, str(data)), config, Accelerator(cpu=True))


def test_a_member_is_examined(data: Path, tmp_path: Path) -> None:
    """Scores would be those of other predictions than the requested ones, or replace a file of the user."""
    train(data, tmp_path / "trm")
    command = [sys.executable, "-m", "ensemble.recipes.sudoku.examine", f"member={tmp_path / 'trm'}", f"data={data}"]
    words = [f"out={tmp_path / 'scores'}", "starts=2", "select=first"]
    code, errors = launcher.run([*command, *words], launcher.ROOT)
    assert code == 0, errors
    result = folders.read_json(tmp_path / "scores" / "scores.json")
    assert result["puzzles"] == 10
    assert 0 <= result["exact"] < 0.5
    assert result["calls"] == 2 * result["segments"] <= 8
    assert (result["starts"], result["select"]) == (2, "first")
    code, errors = launcher.run([*command, *words], launcher.ROOT)
    assert code == 2
    assert "exists" in errors


def test_a_refit_is_examined_by_the_weights_of_predict(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puzzles of blend and validation would be solved by a network that learned them, or other data would be refused."""
    trial, final, member = tmp_path / "trial", tmp_path / "final", tmp_path / "member"
    train(data, trial)
    train(data, final, seed=1, learning_rate=0.01)
    shutil.copytree(trial, member)
    shutil.copytree(final / "best", member / folders.NEWEST / "final")
    monkeypatch.setattr(launch, "start", lambda: Accelerator(cpu=True))

    def examined(network: Path, split: str, prepared: Path) -> dict[str, Any]:
        words = [f"member={network}", f"data={prepared}", f"out={tmp_path / 'scores'}", f"split={split}", "overwrite=true"]
        monkeypatch.setattr(sys, "argv", ["examine", *words])
        examine.main()
        return {**folders.read_json(tmp_path / "scores" / "scores.json"), "member": ""}

    other = tmp_path / "other"
    counts = {"num_train": 4, "num_validation": 4, "num_blend": 4, "num_test": 40}
    prepare.prepare(PrepareConfig(out=str(other), side=4, clues=8, threads=1, seed=1, **counts))
    for split, prepared, expected in (("blend", data, trial), ("validation", data, trial), ("test", other, final)):
        assert examined(member, split, prepared) == examined(expected, split, prepared)
        assert examined(trial, split, prepared) != examined(final, split, prepared)
