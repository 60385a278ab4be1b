"""Extremely randomised trees: scikit-learn grows them, and XGBoost predicts."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from copied_members import config_of, frame_of, prepared_of
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from tree_members import rows_of

from ensemble.errors import UserError
from ensemble.trees import forest, train
from ensemble.trees.objective import dataset_of, objective_of

KINDS = ("regression", "binary", "multiclass")
NUM_TREES = 30


def data_with_empty_cells(folder: Path, kind: str, **columns: Any) -> Path:
    """The table of the other tests, with weights, and without a tenth of the sizes."""
    weight = pl.Series(np.random.default_rng(1).integers(1, 4, len(frame_of(kind))))
    is_empty = pl.int_range(pl.len()) % 10 == 0
    frame = frame_of(kind).with_columns(size=pl.when(~is_empty).then("size"), weight=weight, **columns)
    return prepared_of(folder, frame, drop=("day",), weight="weight")


def grown(data: Path) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """A forest, with the features of its rows, which are all of `data`, and their target and weights as it learned them."""
    rows = rows_of(data)
    config = config_of("extra_trees", data, num_rounds=NUM_TREES, column_fraction=0.7, min_leaf_weight=2.0, seed=5)
    booster, losses = forest.train_copy(config, 2, rows, None, lambda: False)
    assert not losses.size
    dataset = dataset_of(objective_of(config, rows), rows)
    assert dataset.target is not None
    assert dataset.weight is not None
    return booster, rows.matrix(), dataset.target, dataset.weight


@pytest.mark.parametrize("kind", KINDS)
def test_xgboost_predicts_as_scikit_learn(kind: str, tmp_path: Path) -> None:
    """Empty cells, or values equal to a threshold, would go to the other side, or nodes would have the wrong children."""
    booster, features, target, weight = grown(data_with_empty_cells(tmp_path, kind))
    grower = ExtraTreesRegressor if kind == "regression" else ExtraTreesClassifier
    same = grower(NUM_TREES, max_features=0.7, min_samples_leaf=2, random_state=7).fit(features, target, weight)
    splits = [tree.tree_.threshold[tree.tree_.children_left >= 0] for tree in same.estimators_]
    thresholds = np.concatenate(splits).astype(np.float32)
    others = np.random.default_rng(0).choice(thresholds, (500, features.shape[1]))
    for rows in (features, others, np.nextafter(others, np.float32(np.inf))):
        if kind == "regression":
            expected = same.predict(rows)
        else:
            shares = np.bincount(target.astype(int), weight) / weight.sum()
            expected = (NUM_TREES * same.predict_proba(rows) + shares) / (NUM_TREES + 1)
        expected = expected[:, 1] if kind == "binary" else expected
        assert np.abs(forest.predict(booster, rows) - expected).max() < 2e-6
    loaded = tmp_path / forest.FILE
    loaded.write_bytes(forest.to_bytes(booster))
    assert np.array_equal(forest.predict(forest.load(loaded), features), forest.predict(booster, features))
    gains = forest.importance(booster)
    assert max(gains, key=gains.__getitem__) == "size"
    assert set(gains) == set(rows_of(tmp_path / "data").features)


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_sum_to_the_prediction(kind: str, tmp_path: Path) -> None:
    """The reasons of the ensemble would add shares of probabilities to log odds."""
    booster, features, target, weight = grown(data_with_empty_cells(tmp_path, kind))
    parts, prediction = forest.contributions(booster, features), forest.predict(booster, features).astype(np.float64)
    total, base = parts.sum(axis=-1), parts[..., -1]
    if kind == "regression":
        assert total == pytest.approx(prediction, abs=1e-4)
        return
    assert total == pytest.approx(
        np.log(prediction / (1 - prediction)) if kind == "binary" else np.log(prediction), abs=1e-3
    )
    shares = np.bincount(target.astype(int), weight) / weight.sum()
    means = 1 / (1 + np.exp(-base)) if kind == "binary" else np.exp(base)
    # The mean of the roots of trees that were grown on these rows
    assert means.mean(axis=0) == pytest.approx(shares[1] if kind == "binary" else shares, abs=1e-3)


def test_a_class_without_rows_is_possible_in_new_rows(tmp_path: Path) -> None:
    """A copy whose rows lack a class would have its probabilities in the wrong columns."""
    data = data_with_empty_cells(tmp_path, "multiclass")
    rows = rows_of(data)
    without = rows.take(np.flatnonzero(rows.column("target") != 1))
    config = config_of("extra_trees", data, num_rounds=NUM_TREES)
    booster, losses = forest.train_copy(config, 0, without, rows, lambda: False)
    probabilities = forest.predict(booster, rows.matrix())
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert 0 < probabilities[:, 1].max() < 1e-6
    is_known = rows.column("target") != 1
    assert (probabilities[is_known].argmax(axis=1) == rows.column("target")[is_known]).all()
    assert len(losses) == NUM_TREES
    assert losses[-1] > 1, "the lacking class is scored"


def test_more_trees_have_a_lower_loss(tmp_path: Path) -> None:
    """The losses would not be those of the first 1, 2, … trees."""
    data = data_with_empty_cells(tmp_path, "binary")
    summary = train.train(config_of("extra_trees", data, tmp_path / "m", num_rounds=NUM_TREES))
    losses = pl.read_ndjson(tmp_path / "m/metrics.jsonl")["log_loss"].to_list()
    assert len(losses) == summary["trees"] == NUM_TREES
    assert losses[-1] < 0.9 * losses[0]
    assert summary["validation_log_loss"] == losses[-1]


def test_what_the_forest_cannot_learn_is_refused(tmp_path: Path) -> None:
    """A monotone feature would be ignored."""
    data = data_with_empty_cells(tmp_path, "regression")
    with pytest.raises(UserError, match="monotone= is not supported with library=extra_trees: choose xgboost or lightgbm"):
        train.train(config_of("extra_trees", data, tmp_path / "m", monotone={"size": 1}))
