"""An ensemble that is fitted on out-of-fold predictions, and scored on test, or on the same rows by cross-fitting."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import fit as predictor
from ensemble.recipes.table.prepare import prepare
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.report import run

NUM_ROWS = 400
TEST, WEIGHT, TIME = {"test": 0.25}, {"weight": "w"}, {"time": "day"}


def make_data(folder: Path, **settings: Any) -> tuple[Path, Path]:
    """Prepared data and the prediction files of two members, of which `clear` knows more."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal(NUM_ROWS)
    target = np.where(x + generator.standard_normal(NUM_ROWS) > 0.5, "yes", "no")
    weight = np.where(np.arange(NUM_ROWS) % 5 == 0, 0.0, 1.0 + np.arange(NUM_ROWS) % 3)
    pl.DataFrame({"x": x, "w": weight, "day": np.arange(NUM_ROWS), "y": target}).write_parquet(folder / "t.parquet")
    drop = tuple(name for name in ("w", "day") if name not in settings.values())
    manifest = prepare(
        PrepareConfig(out=str(folder / "data"), source=(str(folder / "t.parquet"),), target="y", drop=drop, **settings)
    )
    for split in manifest["splits"]:
        rows = open_table(folder / "data/rows" / split)
        of = rows.filter(rows["fold"].to_numpy() >= 0) if split == "train" else rows
        arrays = {name: of[name].to_numpy() for name in ("row_id", "target", "group", "cluster")}
        more = {"weight": of["weight"].to_numpy().astype(float)} if "weight" in settings else {}
        for number, (name, noise) in enumerate({"clear": 1.0, "vague": 4.0}.items()):
            logit = 3 * arrays["target"] - 1.5 + noise * np.random.default_rng(number).standard_normal(len(of))
            file = Predictions(
                **{**arrays, **more, "target": arrays["target"].astype(float)}, prediction=1 / (1 + np.exp(-logit)),
                output="probability", recipe="table", fingerprint=manifest["fingerprint"], config={"kind": "xgboost"},
                split="oof" if split == "train" else split, member=name, reasons=None,
            )  # fmt: skip
            predictions.write(folder / "files" / f"{name}.{file.split}.parquet", file)
    return folder / "data", folder / "files"


def test_without_a_test_each_row_is_scored_by_what_others_fitted(tmp_path: Path) -> None:
    """The score would be that of the rows on which weights and calibration were fitted."""
    data, files = make_data(tmp_path)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=20)
    assert (scores["split"], scores["fitted_on"], scores["rows"]) == ("oof", "oof", NUM_ROWS)
    assert sum(scores["weights"].values()) == pytest.approx(1)
    written = predictions.read(tmp_path / "out/oof.parquet")
    assert sorted(written.row_id) == list(range(NUM_ROWS))
    value = scores["scores"]["ensemble"]["log_loss"]["value"]
    assert value == pytest.approx(log_loss(written.target, written.prediction))
    assert value < scores["scores"]["base rate"]["log_loss"]["value"] - 0.1
    assert not (tmp_path / "out/test.parquet").exists()


@pytest.mark.parametrize("settings", [{}, TIME, WEIGHT])
def test_probabilities_of_scores_are_fitted_on_other_rows_too(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A member with scores of pure noise would beat the base rate, and the ensemble that consists of it."""
    data, files = make_data(tmp_path, **settings)
    path = files / "vague.oof.parquet"
    scores = np.random.default_rng(5).normal(size=len(predictions.read(path).row_id))
    predictions.write(path, dataclasses.replace(predictions.read(path), prediction=scores, output="score"))
    result = predictor.fit(files, data, tmp_path / "out", ("vague",), num_draws=5, calibration="none")["scores"]
    losses = {name: intervals["log_loss"]["value"] for name, intervals in result.items()}
    assert losses["vague"] == pytest.approx(losses["ensemble"])
    assert losses["vague"] > losses["base rate"]


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_members_without_knowledge_are_not_reversed(kind: str, tmp_path: Path) -> None:
    """The mean of all other folds is low where the targets of a fold are high. With weights below 0, the ensemble of members
    that know nothing would read the targets from it, seem to be good, and predict nonsense for new groups."""
    generator, site = np.random.default_rng(0), np.arange(2400) % 30
    value = generator.standard_normal(30)[site] + generator.standard_normal(2400)
    target = value if kind == "regression" else np.where(value > np.median(value), "yes", "no")
    pl.DataFrame({"x": generator.standard_normal(2400), "site": site, "y": target}).write_parquet(tmp_path / "t.parquet")
    config = PrepareConfig(out=str(tmp_path / "data"), source=(str(tmp_path / "t.parquet"),), target="y", group="site")
    manifest, rows = prepare(config), open_table(tmp_path / "data/rows/train")
    arrays = {name: rows[name].to_numpy() for name in ("row_id", "group", "cluster")}
    truth, fold = rows["target"].to_numpy().astype(float), rows["fold"].to_numpy()
    mean_of_others = (truth.sum() - np.bincount(fold, truth)[fold]) / (len(fold) - np.bincount(fold)[fold])
    for name in ("one", "other"):
        file = Predictions(
            **arrays, target=truth, prediction=mean_of_others + 0.005 * generator.standard_normal(2400),
            output="value" if kind == "regression" else "probability", recipe="table", fingerprint=manifest["fingerprint"],
            config={"kind": "xgboost"}, split="oof", member=name, reasons=None,
        )  # fmt: skip
        predictions.write(tmp_path / "files" / f"{name}.oof.parquet", file)
    calibration = "auto" if kind == "regression" else "none"
    scores = predictor.fit(tmp_path / "files", tmp_path / "data", tmp_path / "out", num_draws=2, calibration=calibration)
    assert min(scores["weights"].values()) >= 0
    metric = "root_mean_squared_error" if kind == "regression" else "log_loss"
    losses = {name: scores["scores"][name][metric]["value"] for name in ("ensemble", "base rate")}
    assert losses["ensemble"] > 0.99 * losses["base rate"]


def test_with_a_test_it_is_scored_there(tmp_path: Path) -> None:
    """The scores would not be those of the rows that were set aside for test."""
    data, files = make_data(tmp_path, **TEST)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=20)
    num_test = folders.read_manifest(data)["splits"]["test"]["rows"]
    assert (scores["split"], scores["fitted_on"], scores["rows"]) == ("test", "oof", num_test)
    written = predictions.read(tmp_path / "out/test.parquet")
    assert len(written.row_id) == num_test == 100
    assert scores["scores"]["ensemble"]["log_loss"]["value"] == pytest.approx(log_loss(written.target, written.prediction))


def test_forward_in_time_the_first_rows_are_not_scored(tmp_path: Path) -> None:
    """A row would be scored by weights that were fitted on later rows."""
    data, files = make_data(tmp_path, **TIME)
    num_oof = len(predictions.read(files / "clear.oof.parquet").row_id)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=5)
    written = predictions.read(tmp_path / "out/oof.parquet")
    assert scores["rows"] == len(written.row_id) < num_oof < NUM_ROWS
    in_file = predictions.read(files / "clear.oof.parquet").row_id
    assert written.row_id.min() > np.sort(in_file)[num_oof // 10]


@pytest.mark.parametrize("settings", [{}, TIME, {**TIME, **TEST}])
def test_intervals_are_by_draws_of_slices_of_time(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Errors of rows near in time are alike: draws of single rows would give intervals that are too narrow."""
    data, files = make_data(tmp_path, **settings)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=5)
    written = predictions.read(tmp_path / f"out/{scores['split']}.parquet")
    assert len(np.unique(written.cluster)) == scores["rows"]
    assert scores["clusters"] == (len(np.unique(written.group)) if settings else scores["rows"])
    assert scores["clusters"] > 4
    assert ("5 draws of slices of time." in (tmp_path / "out/README.md").read_text()) == bool(settings)


def test_weights_of_rows_count(tmp_path: Path) -> None:
    """Rows of weight 0 would be scored, or the others would count equally."""
    data, files = make_data(tmp_path, **WEIGHT)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=5)
    written = predictions.read(tmp_path / "out/oof.parquet")
    assert written.weight is not None
    assert scores["rows"] == NUM_ROWS * 4 // 5 == (written.weight > 0).sum()
    expected = log_loss(written.target, written.prediction, sample_weight=written.weight)
    assert scores["scores"]["ensemble"]["log_loss"]["value"] == pytest.approx(expected)
    assert scores["weighted"]


def test_the_report_is_of_the_rows_that_are_scored(tmp_path: Path) -> None:
    """The pictures of the report would include rows of weight 0, which no score counts."""
    data, files = make_data(tmp_path, **WEIGHT, **TEST)
    scores = predictor.fit(files, data, tmp_path / "out", num_draws=5)
    read = run.read(tmp_path / "out", data, files)
    assert read.test.weight is not None
    assert read.test.weight.min() > 0
    assert len(read.test.target) == len(read.candidates["vague"]) == scores["rows"] < 100


def test_what_it_cannot_be_fitted_on_is_refused(tmp_path: Path) -> None:
    """A fit on a split without prediction files, or without the file of a member, would end in a traceback."""
    data, files = make_data(tmp_path)
    for on, sentence in (
        ("blend", "there are no prediction files of blend in"),
        ("train", "on=train is not a split on which weights can"),
    ):
        with pytest.raises(UserError, match=sentence):
            predictor.fit(files, data, tmp_path / "out", on=on)
    (files / "vague.oof.parquet").unlink()
    with pytest.raises(UserError, match=r"vague\.oof\.parquet does not exist"):
        predictor.fit(files, data, tmp_path / "out", members=("clear", "vague"))
    assert not (tmp_path / "out").exists()
