"""Copies that were trained by tasks of their own give the same bits as one process, and no copy is trained twice."""

from pathlib import Path
from typing import Any

import pytest
from copied_members import config_of, content, frame_of, prepared_of
from tree_members import interrupt

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees import boosting, single_copy, stored, train
from ensemble.trees.boosting import Stopped
from ensemble.trees.predict import library_module

LIBRARIES = ("xgboost", "lightgbm", "catboost", "extra_trees", "linear")
SEPARATE = ("catboost", "extra_trees", "linear")
"""Libraries that train each copy by itself, and store no incomplete copy."""
SLOW: dict[str, Any] = {"num_rounds": 60, "early_stopping_rounds": 4, "learning_rate": 0.2, "regrow": False}
"""A training that stops early, after more than two chunks of four trees."""


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "catboost":
        pytest.importorskip("catboost")
    return request.param


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_of(tmp_path_factory.mktemp("binary"), frame_of("binary"), drop=("day",))


@pytest.fixture(scope="module")
def whole(library: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The member that one process trains."""
    out = tmp_path_factory.mktemp("whole") / "m"
    train.train(config_of(library, data, out, **SLOW))
    return out


def same(out: Path, whole: Path) -> bool:
    return content(out) == content(whole) and (out / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def trained_trees(library: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an entry for each tree, or with libraries of `SEPARATE` each copy, that is trained from now on."""
    result: list[int] = []
    module = library_module(library)
    if library in SEPARATE:
        train_copy = module.train_copy
        monkeypatch.setattr(module, "train_copy", lambda c, n, *rest: (result.append(n), train_copy(c, n, *rest))[1])
    else:
        update = module.Booster.update
        monkeypatch.setattr(module.Booster, "update", lambda self: (result.append(1), update(self))[1])
    return result


@pytest.mark.parametrize("patience", [1, 20])
def test_copies_of_tasks_make_the_same_member(
    patience: int, library: str, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster would give another ensemble than one machine if a copy has fewer or more trees than the member needs."""
    config = config_of(library, data, tmp_path / "m", **SLOW)
    monkeypatch.setattr(single_copy, "PATIENCE", patience)
    for number in (2, 0, 1):
        single_copy.train_copy(config, number)
    trained = trained_trees(library, monkeypatch)
    (tmp_path / "m.copies/2 (copy).checkpoint").mkdir()  # a folder that a user copied must not end the training
    train.train(config, "auto")
    (tmp_path / "m.copies/2 (copy).checkpoint").rmdir()
    (tmp_path / "m.copies").rmdir()
    assert bool(trained) == (patience == 1 and library not in SEPARATE), "each copy alone stops earlier than all together"
    assert same(tmp_path / "m", whole)
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "stored copies that are no longer needed"


def test_a_stopped_task_resumes(
    library: str,
    data: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A requeued task would train a copy twice, or another copy."""
    config = config_of(library, data, tmp_path / "m", **SLOW)
    answers = iter([0, 0, 15, 15])
    with pytest.raises(Stopped):
        single_copy.train_copy(config, 0, lambda: next(answers, 15))
    kept = stored.checkpoints_of(tmp_path / "m", 0).newest_valid()
    assert not stored.read(tmp_path / "m", 3, {"fingerprint": "", "config": {}}), "it is not whole"
    trained = trained_trees(library, monkeypatch)
    single_copy.train_copy(config, 0)
    if library not in SEPARATE:  # the libraries of SEPARATE store no incomplete copy
        assert kept
        newest = stored.checkpoints_of(tmp_path / "m", 0).newest_valid()
        assert newest
        assert len(kept[1]["history"]) == 8
        assert len(trained) == len(newest[1]["history"]) - 8
    trained.clear()
    single_copy.train_copy(config, 0)
    assert not trained
    assert capsys.readouterr().err.endswith(f"copy 0 of {tmp_path}/m is trained already\n")
    for number in (1, 2):
        single_copy.train_copy(config, number)
    train.train(config, "auto")
    assert same(tmp_path / "m", whole)


def test_two_tasks_do_not_train_the_same_copy(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fits that were submitted for one folder would train each copy twice, and delete each other's files."""
    monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.1)
    config = config_of("xgboost", data, tmp_path / "m", **SLOW)
    with (
        stored.checkpoints_of(tmp_path / "m", 0).locked(),
        pytest.raises(UserError, match=r"^another command is training .*: wait until it has ended"),
    ):
        single_copy.train_copy(config, 0)
    single_copy.train_copy(config, 0)


def test_a_training_that_was_killed_after_stored_trees_resumes(
    library: str, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed training would use the first trees of a stored copy again."""
    if library in SEPARATE:
        pytest.skip("this library stores no checkpoint")
    config = config_of(library, data, tmp_path / "m", **SLOW)
    monkeypatch.setattr(single_copy, "PATIENCE", 1)
    single_copy.train_copy(config, 1)
    for _ in range(3):
        interrupt(config, 1, "auto")
    train.train(config, "auto")
    assert same(tmp_path / "m", whole)


def test_copies_of_other_settings_are_not_used(library: str, data: Path, tmp_path: Path) -> None:
    """A member would have trees that were trained with earlier settings."""
    for seed in (0, 1):
        single_copy.train_copy(config_of(library, data, tmp_path / "m", seed=seed, **SLOW), 0)
        if seed == 0:
            single_copy.train_copy(config_of(library, data, tmp_path / "m", seed=seed, **SLOW), 1)
    train.train(config_of(library, data, tmp_path / "expected", seed=1, **SLOW))
    train.train(config_of(library, data, tmp_path / "m", seed=1, **SLOW), "auto")
    assert same(tmp_path / "m", tmp_path / "expected")


def test_a_seed_for_each_copy() -> None:
    """Copies would draw the same rows, so their mean would gain less; or XGBoost would refuse a seed of over 31 bits."""
    seeds = [boosting.copy_seed((1 << 30) - 1, number) for number in range(8)]
    assert len(set(seeds)) == 8
    assert max(seeds) < 1 << 30
