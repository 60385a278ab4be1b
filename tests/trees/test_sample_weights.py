"""Sample weights from a table to a member and its prediction file: rows of weight 0 stop no training early."""

import contextlib
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from copied_members import models_of
from sklearn.metrics import average_precision_score, log_loss

from ensemble import predictions
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.predictor import fit
from ensemble.recipes.table.prepare import prepare
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.trees import train
from ensemble.trees.predict import TreeMember, library_module
from ensemble.trees.rows import TreeData, tree_manifest
from ensemble.trees.settings import TreesConfig

NUM_ROWS = 4000


def data_of(folder: Path, task: str = "binary") -> Path:
    """Half of the rows have weight 0 and a target that contradicts the others."""
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, NUM_ROWS))
    truth = first + 0.5 * second + 0.5 * generator.standard_normal(NUM_ROWS)
    counts = generator.random(NUM_ROWS) < 0.5
    target = np.where(counts, truth, -truth) > 0.8 if task == "binary" else np.where(counts, truth, -truth)
    weight = np.where(counts, generator.choice([0.5, 2.0], NUM_ROWS), 0.0)
    table = pl.DataFrame({"first": first, "second": second, "target": target.astype(float), "weight": weight})
    table.write_parquet(folder / "table.parquet")
    config = PrepareConfig(
        out=str(folder / "prepared"), source=(str(folder / "table.parquet"),), target="target", weight="weight", task=task,  # type: ignore[arg-type]
        test=0.25, num_folds=3,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        prepare(config)
    return folder / "prepared"


def test_weights_reach_early_stopping_files_and_scores(library: str, tmp_path: Path) -> None:
    """Half of the scores would be of rows that the user gave no weight: 0.5 where the member is at 0.9."""
    data = data_of(tmp_path)
    out, files = tmp_path / "member", tmp_path / "predictions"
    settings = {"num_rounds": 60, "learning_rate": 0.2, "threads": 1, "regrow": False}
    summary = train.train(TreesConfig(library=library, data=str(data), out=str(out), **settings))  # type: ignore[arg-type]
    member = TreeMember(out)
    rows, cv = TreeData(data, "train", tree_manifest(data)), CrossValidation.from_manifest(tree_manifest(data))
    assert cv
    stops = [rows.take(fold.stop) for fold in cv.folds(data, "cluster")]
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
    assert scores["rows"] == (test.weight > 0).sum()
    assert scores["base_rate"] == pytest.approx(np.average(test.target, weights=test.weight))
    ensemble = predictions.read(tmp_path / "ensemble/test.parquet")
    assert len(ensemble.row_id) == len(test.row_id)
    # Calibrated by the rows that count: the others would halve the probabilities of the likely ones
    counted = ensemble.weight > 0
    gap = np.average(ensemble.prediction - ensemble.target, weights=ensemble.weight)
    assert abs(gap) < 0.03, gap
    assert counted.sum() < len(counted)


def test_a_validation_split_without_weight_is_refused(library: str, tmp_path: Path) -> None:
    """Every score would be 0 / 0, and the first tree the best."""
    data = data_of(tmp_path)
    from ensemble.trees.objective import ValidationMetrics, objective_of

    rows = TreeData(data, "train", tree_manifest(data))
    objective = objective_of(TreesConfig(library=library, data=str(data)), rows)  # type: ignore[arg-type]
    without = rows.take(np.flatnonzero(rows.column("weight") == 0))
    with pytest.raises(UserError, match="no row of the validation split has a weight above 0"):
        ValidationMetrics(objective, without)
