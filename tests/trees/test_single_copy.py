"""Copies that tasks of their own have grown give the member that one process grows, to the bit, and none is grown twice."""

from pathlib import Path
from typing import Any

import pytest
from copied_members import config_of, content, frame_of, prepared_of
from tree_members import interrupt

from ensemble.trees import boosting, single_copy, stored, train
from ensemble.trees.boosting import Stopped
from ensemble.trees.predict import library_module

LIBRARIES = ("xgboost", "lightgbm", "catboost", "linear")
SEPARATE = ("catboost", "linear")
"""Libraries that train each copy by itself, and keep nothing of a copy that is not whole."""
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
    """The member that one process grows."""
    out = tmp_path_factory.mktemp("whole") / "m"
    train.train(config_of(library, data, out, **SLOW))
    return out


def same(out: Path, whole: Path) -> bool:
    return content(out) == content(whole) and (out / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def grown_trees(library: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the trees, or of `SEPARATE` the copies, that are grown from now on in copies with rows that stop them."""
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
    """A cluster would give another ensemble than one machine: where a copy has too few trees, or more than are needed."""
    config = config_of(library, data, tmp_path / "m", **SLOW)
    monkeypatch.setattr(single_copy, "PATIENCE", patience)
    for number in (2, 0, 1):
        single_copy.train_copy(config, number)
    grown = grown_trees(library, monkeypatch)
    train.train(config, "auto")
    assert bool(grown) == (patience == 1 and library not in SEPARATE), "each copy alone stops earlier than all together"
    assert same(tmp_path / "m", whole)
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "stored copies that no one needs"


def test_a_killed_task_goes_on(
    library: str,
    data: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A requeued task would grow a copy twice, or another one."""
    config = config_of(library, data, tmp_path / "m", **SLOW)
    answers = iter([0, 0, 15, 15])
    with pytest.raises(Stopped):
        single_copy.train_copy(config, 0, lambda: next(answers, 15))
    kept = stored.checkpoints_of(tmp_path / "m", 0).newest_valid()
    assert not stored.read(tmp_path / "m", 3, {"fingerprint": "", "config": {}}), "it is not whole"
    grown = grown_trees(library, monkeypatch)
    single_copy.train_copy(config, 0)
    if library not in SEPARATE:  # which keeps nothing of a copy that is not whole
        assert kept
        newest = stored.checkpoints_of(tmp_path / "m", 0).newest_valid()
        assert newest
        assert len(kept[1]["history"]) == 8
        assert len(grown) == len(newest[1]["history"]) - 8
    del grown[:]
    single_copy.train_copy(config, 0)
    assert not grown
    assert capsys.readouterr().err.endswith(f"copy 0 of {tmp_path}/m is trained already\n")
    for number in (1, 2):
        single_copy.train_copy(config, number)
    train.train(config, "auto")
    assert same(tmp_path / "m", whole)


def test_a_training_that_was_killed_after_stored_trees_goes_on(
    library: str, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it goes on, a stored copy would be read from its beginning again."""
    if library in SEPARATE:
        pytest.skip("it keeps nothing of a training that was killed")
    config = config_of(library, data, tmp_path / "m", **SLOW)
    monkeypatch.setattr(single_copy, "PATIENCE", 1)
    single_copy.train_copy(config, 1)
    for _ in range(3):
        interrupt(config, 1, "auto")
    train.train(config, "auto")
    assert same(tmp_path / "m", whole)


def test_copies_of_other_settings_are_not_used(library: str, data: Path, tmp_path: Path) -> None:
    """A member would have trees of settings that were given before."""
    for seed in (0, 1):
        single_copy.train_copy(config_of(library, data, tmp_path / "m", seed=seed, **SLOW), 0)
        if seed == 0:
            single_copy.train_copy(config_of(library, data, tmp_path / "m", seed=seed, **SLOW), 1)
    train.train(config_of(library, data, tmp_path / "expected", seed=1, **SLOW))
    train.train(config_of(library, data, tmp_path / "m", seed=1, **SLOW), "auto")
    assert same(tmp_path / "m", tmp_path / "expected")


def test_a_seed_for_each_copy() -> None:
    """Copies that draw the same rows are more alike than they need be; XGBoost refuses what has more than 31 bits."""
    seeds = [boosting.copy_seed((1 << 30) - 1, number) for number in range(8)]
    assert len(set(seeds)) == 8
    assert max(seeds) < 1 << 30
