"""Settings, targets and categories from which no objective can learn are refused with an error message."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_rules import NUM_CODES, NUM_ROWS, Columns, config, prepare

from ensemble.errors import UserError
from ensemble.trees import train, xgb


@pytest.mark.parametrize("code", [-1.0, 0.5, float(NUM_CODES), np.inf])
def test_invalid_categories_are_refused(code: float, library: str, tmp_path: Path) -> None:
    """A library would crash, or round the number to another category."""
    folder = prepare(tmp_path / "data", "binary", lambda table: {**table, "code": np.where(table["code"] == 3, code, 2)})
    with pytest.raises(UserError, match=rf"the feature code is {code:g}, but must be the number of a category, 0 to 29"):
        train.train(config(library, folder, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "binary",
            {"objective": "rank"},
            r"objective=rank is unknown: choose binary, multiclass, regression, ranking, absolute_error, or ",
        ),
        ("binary", {"target": "noizy"}, r"target=noizy is not a column that can be learned: did you mean noisy\?"),
        (
            "binary",
            {"target": "first"},
            r"target=first is not a column that can be learned: choose from truth, noisy, weight, target",
        ),
        (
            "binary",
            {"metric": "mean_absolute_error"},
            r"metric=mean_absolute_error does not score a binary task: choose average_precision, ",
        ),
        ("regression", {"metric": "rmse"}, r"metric=rmse does not score a regression task: choose root_mean_squared_error"),
        (
            "binary",
            {"objective": "multiclass", "target": "noisy"},
            r"objective=multiclass target=noisy gives no probability of target, .*: leave both out, or choose regression or",
        ),
        (
            "regression",
            {"target": "truth"},
            r"objective=regression target=truth gives no value of target, .* leave both out$",
        ),
        ("multiclass", {"objective": "regression"}, r"gives no probabilities of target, .* leave both out$"),
        (
            "binary",
            {"target": "noisy"},
            r"noisy is -?[0-9.]+, but must be 0 or 1 for objective=binary: choose objective=regression or ranking",
        ),
        (
            "binary",
            {"objective": "regression", "metric": "log_loss"},
            r"metric=log_loss scores a probability, and .* gives scores, .*: choose average_precision, roc_auc",
        ),
        (
            "binary",
            {"monotone": {"frist": 1}},
            r"monotone names the feature frist, which does not exist: did you mean first\?",
        ),
        (
            "binary",
            {"monotone": {"first": 2}},
            r"monotone has first: 2: write 1 if the prediction may only rise with it, -1",
        ),
        (
            "binary",
            {"monotone": {"code": 1}},
            r"monotone names code, whose values are categories without an order: leave it",
        ),
        ("multiclass", {"monotone": {"first": 1}}, r"monotone= is not possible with several classes"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(
    kind: str, settings: dict[str, Any], message: str, library: str, rule_data: Any, tmp_path: Path
) -> None:
    """A mistake would end in a library's traceback, or in a member with another output than the user expects."""
    with pytest.raises(UserError, match=message):
        train.train(config(library, rule_data(kind), tmp_path / "out", **settings))
    assert list(tmp_path.iterdir()) == []


def test_a_split_that_cannot_be_scored_is_refused(library: str, tmp_path: Path) -> None:
    """Every score would be NaN, and the first tree the best."""

    def hide(table: Columns) -> Columns:
        hidden = (table["row_id"] >= 1000) & (table["cluster"] == 9)
        return {**table, "target": np.where(hidden, np.nan, table["target"])}

    with pytest.raises(UserError, match="a validation row has no target: prepare the data without such rows"):
        train.train(config(library, prepare(tmp_path / "data", "regression", hide), tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("settings", [{"metric": "roc_auc"}, {"objective": "regression", "target": "noisy"}])
def test_a_validation_split_of_one_class_is_refused(settings: dict[str, str], library: str, tmp_path: Path) -> None:
    """The metric would be constant or NaN, so the training would end with one tree, without a warning."""

    def clear(table: Columns) -> Columns:
        is_train = len(table["target"]) == NUM_ROWS["train"]
        return {**table, "target": table["target"] * is_train}

    folder = prepare(tmp_path / "data", "binary", clear)
    message = "needs both classes in the rows that stop the training, and all of them have the target 0: choose metric=log"
    with pytest.raises(UserError, match=message):
        train.train(config(library, folder, tmp_path / "out", **settings))
    assert train.train(config(library, folder, tmp_path / "loss", num_rounds=4))["metric"] == "log_loss"


def test_a_validation_split_of_one_relevance_is_refused(library: str, tmp_path: Path) -> None:
    """NDCG would be NaN, so the training would end with one tree, without a warning."""
    folder = prepare(
        tmp_path / "data", "ranking", lambda table: {**table, "target": table["target"] * (table["row_id"] < 1000)}
    )
    message = "needs different relevances in the rows that stop the training, and all of them have the target 0: prepare the"
    with pytest.raises(UserError, match=message):
        train.train(config(library, folder, tmp_path / "out"))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("multiclass", 3.0, r"target is 3, but must be a class, 0 to 2 for objective=multiclass"),
        ("multiclass", 0.5, r"target is 0.5, but must be a class, 0 to 2 for objective=multiclass"),
        ("multiclass", np.inf, r"target is inf, but must be a class, 0 to 2 for objective=multiclass"),
        ("binary", 2.0, r"target is 2, but must be 0 or 1 for objective=binary"),
        ("regression", np.inf, r"target is inf, but must be finite for objective=regression"),
        ("ranking", 0.5, r"target is 0.5, but must be a relevance, a whole number from 0 to 30"),
        ("ranking", 31.0, r"target is 31, but must be a relevance, a whole number from 0 to 30"),
    ],
)
def test_invalid_targets_are_refused(kind: str, value: float, message: str, library: str, tmp_path: Path) -> None:
    """A library would end in a traceback, abort the process, or learn something else."""
    folder = prepare(
        tmp_path / "data", kind, lambda table: {**table, "target": np.where(table["cluster"] == 9, value, table["target"])}
    )
    with pytest.raises(UserError, match=message):
        train.train(config(library, folder, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("name", ["xgboost", "linear"])
def test_infinite_features_are_refused(name: str, tmp_path: Path) -> None:
    """XGBoost would end in a traceback, and a linear model would learn nothing from the feature."""
    folder = prepare(
        tmp_path / "data", "binary", lambda table: {**table, "first": np.where(table["row_id"] == 5, np.inf, 0.5)}
    )
    with pytest.raises(
        UserError, match=r"a feature has infinite values, with which .* cannot be trained: correct the prepared data"
    ):
        train.train(config(name, folder, tmp_path / "out"))


def test_infinite_features_of_new_rows_have_contributions(tmp_path: Path) -> None:
    """A forecast would end in a traceback, after its predictions."""
    folder = prepare(tmp_path / "data", "binary")
    train.train(config("xgboost", folder, tmp_path / "out", num_rounds=3))
    booster = xgb.load(tmp_path / "out" / xgb.FILE)
    features = np.full((2, len(xgb.feature_names(booster))), 0.5, np.float32)
    features[1, 0] = np.inf
    assert np.isfinite(xgb.contributions(booster, features)).all()
