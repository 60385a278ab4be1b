"""Sample weights from a table to a member, its prediction file and its scores: rows of hardly any weight do not count."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from copied_members import folds_of, models_of, prepared_of
from sklearn.metrics import average_precision_score, log_loss
from tree_members import config_of, rows_of

from ensemble import predictions
from ensemble.errors import UserError
from ensemble.predictor import fit
from ensemble.trees import train
from ensemble.trees.objective import ValidationMetrics, objective_of
from ensemble.trees.predict import TreeMember, library_module

NUM_ROWS, NO_WEIGHT = 4000, 2.0**-99


def data_of(folder: Path) -> Path:
    """Half of the rows have nearly no weight, and a target that contradicts the others. (Rows of weight 0 are left out.)"""
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, NUM_ROWS))
    truth = first + 0.5 * second + 0.5 * generator.standard_normal(NUM_ROWS)
    counts = generator.random(NUM_ROWS) < 0.5
    target = np.where(counts, truth, -truth) > 0.8
    weight = np.where(counts, generator.choice([0.5, 2.0], NUM_ROWS), NO_WEIGHT)
    table = pl.DataFrame({"first": first, "second": second, "target": target.astype(float), "weight": weight})
    return prepared_of(folder, table, "prepared", target="target", weight="weight", task="binary", test=0.25)


def test_weights_reach_early_stopping_files_and_scores(library: str, tmp_path: Path) -> None:
    """Half of the scored rows would be rows of nearly no weight: a score of 0.5 instead of 0.9."""
    data = data_of(tmp_path)
    out, files = tmp_path / "member", tmp_path / "predictions"
    summary = train.train(config_of(library, data, out, num_rounds=60, learning_rate=0.2, regrow=False))
    member = TreeMember(out)
    rows = rows_of(data)
    stops = [rows.take(fold.stop) for fold in folds_of(data)]
    predicted = [
        library_module(library).predict(model, part.matrix()) for (model, _), part in zip(models_of(out), stops, strict=True)
    ]
    target, weight = (np.concatenate([part.column(name) for part in stops]) for name in ("target", "weight"))
    expected = log_loss(target, np.concatenate(predicted), sample_weight=weight)
    assert summary["validation_log_loss"] == pytest.approx(expected, abs=1e-5)
    assert expected < 0.45
    for split in ("oof", "test"):
        result = {**member.predict(data, split), "config": {"kind": library}}
        predictions.write(files / f"m.{split}.parquet", predictions.Predictions(**result, split=split, member="m"))
    test = predictions.read(files / "m.test.parquet")
    assert test.weight is not None
    scores = fit.fit(files, data, tmp_path / "ensemble", num_draws=50)
    score = scores["scores"]["m"]["average_precision"]
    weighted, plain = (
        average_precision_score(test.target, test.prediction, sample_weight=weight) for weight in (test.weight, None)
    )
    assert score["value"] == pytest.approx(weighted)
    assert plain < 0.6 < 0.8 < weighted
    assert score["low"] < weighted < score["high"]
    assert scores["weighted"]
    assert scores["rows"] == len(test.weight)
    assert scores["base_rate"] == pytest.approx(np.average(test.target, weights=test.weight))
    ensemble = predictions.read(tmp_path / "ensemble/test.parquet")
    assert len(ensemble.row_id) == len(test.row_id)
    # Calibrated by the rows with a weight: the others would halve the largest probabilities
    counted = ensemble.weight > NO_WEIGHT
    gap = np.average(ensemble.prediction - ensemble.target, weights=ensemble.weight)
    assert abs(gap) < 0.03, gap
    assert counted.sum() < len(counted)


def test_positives_of_weight_0_do_not_count_for_the_metric_of_early_stopping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trees would stop by the order of the 15 positives that are scored, which is often best after the first tree."""
    positive = np.arange(600) % 2
    weight = np.where(positive & (np.arange(600) >= 30), 0.0, 1.0)
    table = pl.DataFrame({"first": np.random.default_rng(0).random(600), "target": positive, "weight": weight})
    data = prepared_of(tmp_path, table, "data", target="target", weight="weight", metric="average_precision")
    assert train.resolve(config_of("lightgbm", data), rows_of(data))[1].metric == "log_loss"
    train.train(config_of("lightgbm", data, tmp_path / "member", num_rounds=1))
    assert "by log_loss: too few rows of one class for average_precision" in capsys.readouterr().err  # no validation split


def test_only_positives_that_stop_a_training_count_for_its_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trees would stop by the order of 9 positives, since 60 are in the table."""
    table = pl.DataFrame({"x": np.random.default_rng(0).random(400), "y": np.arange(400) < 60})
    data = prepared_of(tmp_path, table, "data", target="y", num_folds=1, metric="average_precision")
    train.train(config_of("lightgbm", data, tmp_path / "member", num_rounds=1))
    assert "by log_loss: too few rows of one class for average_precision" in capsys.readouterr().err
    train.train(config_of("lightgbm", data, tmp_path / "named", num_rounds=1, metric="average_precision"))
    assert "by log_loss" not in capsys.readouterr().err


def test_a_validation_split_without_weight_is_refused(library: str, tmp_path: Path) -> None:
    """Every score would be 0 / 0, and the first tree the best."""
    data = data_of(tmp_path)
    rows = rows_of(data)
    objective = objective_of(config_of(library, data), rows)
    without = rows.take(np.flatnonzero(rows.column("weight") == 0))
    with pytest.raises(UserError, match="no row of the validation split has a weight above 0"):
        ValidationMetrics(objective, without)
