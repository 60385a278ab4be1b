"""Limits of time of trainings on folds: the copies, their second training and a refit share the time."""

import types
from pathlib import Path
from typing import Any

import pytest
from copied_members import config_of, folds_of
from tree_members import rows_of

from ensemble.errors import UserError
from ensemble.trees import copies, search
from ensemble.trees.boosting import Training
from ensemble.trees.predict import library_module
from ensemble.trees.settings import SearchConfig, TreesConfig


@pytest.mark.parametrize("num_refits", [0, 2])
def test_copies_that_stop_at_the_limit_are_trained_again(
    num_refits: int, data_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that was kept for the second training would be left, and the copies would not learn all rows."""
    data, now, trained = data_of("regression"), [0.0], []
    config = config_of(
        "xgboost", data, early_stopping_rounds=1000, num_rounds=1000, refit=num_refits > 0, num_refits=max(1, num_refits)
    )
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    module = library_module("xgboost")

    class Booster(module.Booster):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any, rows: Any, *others: Any):
            super().__init__(config, rows, *others)
            trained.append(len(rows))

    training = Training(
        on_chunk=lambda history: now.__setitem__(0, float(len(history))),  # a second for each tree
        seconds_left=lambda: 300.0 - now[0],
    )
    library = types.SimpleNamespace(**{**vars(module), "Booster": Booster})
    result = copies.train(library, config, rows_of(data), folds_of(data), training, False)
    assert 50 < len(result.history) < 150
    folds = folds_of(data)
    first, again = [len(fold.fit) for fold in folds], [len(fold.fit) + len(fold.stop) for fold in folds]
    assert trained == [*first, *again, *[len(rows_of(data))] * num_refits]


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_limit_ends_a_training_within_a_chunk(name: str, data_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of columns the ten rounds of a chunk take a minute, by which a limit of some seconds was exceeded."""
    data, now, module = data_of("regression"), [0.0], library_module(name)
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    class Booster(module.Booster):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any, rows: Any, validation: Any, training: Training):
            super().__init__(config, rows, validation, training)
            self.is_first = training.copy == 0

        def update(self) -> Any:
            now[0] += float(self.is_first)  # a second for a round of all copies
            return super().update()

    library = types.SimpleNamespace(**{**vars(module), "Booster": Booster})
    training = Training(seconds_left=lambda: 4.5 - now[0])
    config = config_of(name, data, regrow=False)
    result = copies.train(library, config, rows_of(data), folds_of(data), training, False)
    assert len(result.history) == 5
    assert result.best_round <= 5


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_training_leaves_time_to_write_its_trees(name: str, data_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many classes the trees are written for as long as half of the training took, after the end of its limit."""
    data, now, module = data_of("multiclass"), [0.0], library_module(name)
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    config = config_of(name, data, regrow=False, chunk_rounds=1)
    folds, num_classes = folds_of(data), 3
    monkeypatch.setattr(copies, "LEAF_S", 0.5 / (len(folds) * num_classes * config.max_leaves))  # half a second for a round

    def count(history: list[Any]) -> None:
        now[0] = float(len(history))  # a second for each round so far

    limit_s = 9.0
    training = Training(on_chunk=count, seconds_left=lambda: limit_s - now[0])
    result = copies.train(module, config, rows_of(data), folds, training, False)
    assert len(result.history) == 7, "6 s and 3 s to write 6 rounds; the seventh round begins in time"


@pytest.mark.parametrize("library", ["catboost", "extra_trees", "linear"])
def test_a_library_that_trains_whole_copies_leaves_time_for_later_trainings(
    library: str, data_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for its time before it begins: it would take all of it, and the refit, without a limit, would exceed it."""
    if library == "catboost":
        pytest.importorskip("catboost")
    data, module, granted = data_of("regression"), library_module(library), list[float]()
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: 0.0))

    def train_copies(config: Any, parts: Any, training: Training, run: Any) -> Any:
        granted.append(training.seconds_left())
        return module.train_copies(config, parts, Training(is_refit=training.is_refit), run)

    recorded = types.SimpleNamespace(**{**vars(module), "train_copies": train_copies})
    config = config_of(library, data, refit=True, num_refits=4)
    copies.train(recorded, config, rows_of(data), folds_of(data), Training(seconds_left=lambda: 100.0), False)
    assert 5 < granted[0] < 25
    assert len(granted) == 3


def test_a_limit_of_a_search_is_that_of_the_search(tmp_path: Path) -> None:
    """`max_seconds` would have no effect, and a trial would run for as long as it likes."""
    config = TreesConfig(data="nowhere", out=str(tmp_path / "out"), max_seconds=5.0, search=SearchConfig(trials=2))
    with pytest.raises(UserError, match=r"max_seconds= ends a single training, .* or use search.seconds="):
        search.search(config)
