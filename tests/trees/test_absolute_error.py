"""Trees and TabM that minimise the absolute error, since it is the metric of the task."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from copied_members import config_of, models_of, prepared_of

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees import export, train
from ensemble.trees.predict import TreeMember

LEVELS = {"low": 1.0, "high": 10.0}


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data with the metric mean_absolute_error: an exponential target, whose scale depends on a feature."""
    generator = np.random.default_rng(0)
    level = np.where(generator.random(1200) < 0.5, *LEVELS.values())
    frame = pl.DataFrame({"x": level, "noise": generator.normal(size=1200), "y": level * generator.exponential(size=1200)})
    return prepared_of(tmp_path_factory.mktemp("data"), frame, num_folds=3, metric="mean_absolute_error")


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_trees_predict_medians(library: str, skewed: Path, tmp_path: Path) -> None:
    """Predictions would be means, whose absolute error is larger for skewed targets."""
    settings = {
        "num_rounds": 60,
        "column_fraction": 1.0,
        "learning_rate": 0.2,
        "max_leaves": 4,
        "early_stopping_rounds": 60,
        "min_leaf_weight": 20.0,
    }
    for objective, is_median in (("", True), ("regression", False)):
        out = tmp_path / f"out{objective}"
        summary = train.train(config_of(library, skewed, out, **settings, objective=objective))
        assert summary["objective"] == (objective or "absolute_error")
        result = TreeMember(out).predict(skewed, "oof")
        x = pl.read_parquet(skewed.parent / "data.parquet")["x"].to_numpy()[result["row_id"]]
        # The median of an exponential variable is 0.69 of its mean
        assert (np.median(result["prediction"][x == LEVELS["high"]]) < 0.85 * LEVELS["high"]) == is_median
    assert len(models_of(tmp_path / "out")) == 3


def test_an_exported_member_predicts_medians(skewed: Path, tmp_path: Path) -> None:
    """A file would be refused, or contain other values, after training with this objective."""
    for library in ("lightgbm", "xgboost"):
        config = config_of(library, skewed, tmp_path / library, refit=True, objective="absolute_error")
        train.train(config)
        output = export.export(tmp_path / library, tmp_path / f"{library}.onnx", skewed)
        assert output["rows"] >= export.NUM_CHECKED


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_monotone_features_are_refused(library: str, skewed: Path, tmp_path: Path) -> None:
    """LightGBM would end with a traceback, and predictions of XGBoost would not be monotone."""
    with pytest.raises(UserError, match="monotone= is not possible with the absolute error: add objective=regression"):
        train.train(config_of(library, skewed, tmp_path / "out", monotone={"x": 1}))
    train.train(config_of(library, skewed, tmp_path / "out", monotone={"x": 1}, objective="regression"))


def test_it_is_an_objective_of_regressions_only(tmp_path: Path) -> None:
    """A task with classes would be learned as numbers, without a message."""
    frame = pl.DataFrame({"x": np.arange(60.0), "y": ["a", "b", "c"] * 20})
    data = prepared_of(tmp_path, frame)
    with pytest.raises(UserError, match="objective=absolute_error target=target gives no probabilities of target"):
        train.train(config_of("lightgbm", data, tmp_path / "out", objective="absolute_error"))
    assert folders.read_manifest(data)["task"]["kind"] == "multiclass"
