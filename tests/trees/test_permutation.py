"""Importance by permutation of the features of held-out rows."""

import numpy as np
import pytest

from ensemble.data.cross_validation import Fold
from ensemble.metrics.permutation import MIN_ROWS
from ensemble.task import Task
from ensemble.trees import permutation
from ensemble.trees.objective import Objective
from ensemble.trees.scaling import Scaling

NUM_ROWS = 900
GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(NUM_ROWS, 3)).astype(np.float32)
FOLDS = [Fold(fit=np.zeros(0, int), stop=np.zeros(0, int), held=np.arange(NUM_ROWS)[k::3]) for k in range(3)]


class Rows:
    """The attributes of `TreeData` that the importance reads."""

    features = ("strong", "weak", "none")

    def __init__(self, rows: np.ndarray | None = None):
        self._rows = np.arange(NUM_ROWS) if rows is None else rows

    def take(self, rows: np.ndarray) -> "Rows":
        return Rows(self._rows[rows])

    def matrix(self) -> np.ndarray:
        return FEATURES[self._rows]

    def column(self, name: str) -> np.ndarray:
        target = 3 * FEATURES[:, 0] + FEATURES[:, 1]
        return {"target": target, "group": np.zeros(NUM_ROWS)}[name][self._rows]


def objective(kind: str = "regression") -> Objective:
    task = Task(kind=kind, target="target", metric="root_mean_squared_error", group="group", cluster="group")
    return Objective(
        task=task, kind=kind, loss=kind, target="target", metric=task.metric, output="value", monotone=(), scaling=Scaling()
    )  # fmt: skip


def predict(features: np.ndarray) -> np.ndarray:
    return 3 * features[:, 0].astype(float) + features[:, 1]


def test_importance_is_the_loss_in_score() -> None:
    """A useless feature would seem important, or the importances would be in another order."""
    result = permutation.importance(objective(), Rows(), FOLDS, [predict] * 3, 10)  # type: ignore[arg-type]
    assert result is not None
    assert result["rows"] == NUM_ROWS
    assert result["worse"]["none"] == 0
    # The difference of two independent values has twice their variance
    assert result["worse"]["strong"] == pytest.approx(3 * np.sqrt(2), rel=0.1)
    assert result["worse"]["weak"] == pytest.approx(np.sqrt(2), rel=0.1)


def test_each_copy_predicts_rows_that_it_holds_out() -> None:
    """A copy would predict its training rows, and features to which it overfitted would seem important."""
    predicted: list[np.ndarray] = []

    def predict_and_keep(features: np.ndarray) -> np.ndarray:
        predicted.append(features)
        return predict(features)

    permutation.importance(objective(), Rows(), FOLDS, [predict_and_keep] * 3, 10)  # type: ignore[arg-type]
    for number, features in enumerate(predicted):
        plain = features.reshape(4, -1, 3)[0]
        assert (plain[:, None] == FEATURES[FOLDS[number].held]).all(axis=2).any(axis=1).all()


def test_there_is_no_importance_for_long_computations_and_rankings() -> None:
    """Training on a table of many columns would take minutes longer, and a ranking would be scored on parts of groups."""
    assert permutation.importance(objective(), Rows(), FOLDS, [predict] * 3, 100_000) is None  # type: ignore[arg-type]
    assert permutation.importance(objective("ranking"), Rows(), FOLDS, [predict] * 3, 10) is None  # type: ignore[arg-type]


def test_there_is_no_importance_of_very_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model of a thousand features would spend ten times as long on it as on its training."""
    monkeypatch.setattr(permutation, "MAX_CELLS", 9 * MIN_ROWS - 1)
    assert permutation.importance(objective(), Rows(), FOLDS, [predict] * 3, 1) is None  # type: ignore[arg-type]
