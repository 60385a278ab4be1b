"""A table of several classes through the real commands, with every member that is planned for it."""

import shutil
from pathlib import Path

import fits
import numpy as np
import polars as pl
import pytest
from scripts_run import fork, run

from ensemble import folders


def test_a_table_of_several_classes(tmp_path: Path) -> None:
    """A member would write predictions that the ensemble cannot read, or a copy of a fit could not be continued."""
    people = fits.people("multiclass")
    people.write_csv(tmp_path / "people.csv")
    source = ("target=y", "id=who", "drop=[day]", "num_folds=3", "num_draws=4", "threads=1", "time_limit=0")
    run("fit", f"source=[{tmp_path}/people.csv]", f"out={tmp_path}/out", *source)
    board = folders.read_json(tmp_path / "out" / "leaderboard.json")
    members = {"linear", "lightgbm", "extra_trees", "xgboost", "catboost", "tabm"}
    assert {row["member"] for row in board} == {"ensemble", *members, "base rate"}
    moved = shutil.copytree(tmp_path / "out", tmp_path / "moved")
    fork("fit", f"source=[{tmp_path}/people.csv]", f"out={moved}", *source, "--resume", "auto")
    shutil.rmtree(tmp_path / "out")
    members = folders.read_json(moved / "ensemble" / "ensemble.json")["members"]
    assert {name: entry["folder"] for name, entry in members.items()} == {name: f"../members/{name}" for name in members}
    new = people.drop("y").head(7)
    new.write_csv(tmp_path / "new.csv")
    fork(
        "ensemble_predictor", "predict", f"ensemble={moved}/ensemble", f"source=[{tmp_path}/new.csv]",
        f"out={tmp_path}/new",
    )  # fmt: skip
    forecast = pl.read_csv(tmp_path / "new" / "forecast.csv")
    assert sorted(forecast["id"]) == new["who"].to_list()
    probabilities = forecast.select("probability of low", "probability of mid", "probability of top").to_numpy()
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(7))


def test_a_table_of_queries(tmp_path: Path) -> None:
    """A member that learns relevances as numbers would not be trained, or would not be scored as a ranking."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 3))
    relevance = np.digitize(x @ [1.0, 0.7, 0.0] + 0.3 * generator.normal(size=600), [-0.5, 0.5, 1.5])
    rows = pl.DataFrame(
        {"query": [f"q{n // 10}" for n in range(600)], **{f"x{n}": x[:, n] for n in range(3)}, "y": relevance}
    )
    rows.head(500).write_csv(tmp_path / "rows.csv")
    source = ("target=y", "task=ranking", "group=query", "num_folds=3", "num_draws=4", "threads=1", "time_limit=0")
    fork("fit", f"source=[{tmp_path}/rows.csv]", f"out={tmp_path}/out", *source)
    board = {row["member"]: row["value"] for row in folders.read_json(tmp_path / "out" / "leaderboard.json")}
    assert board.keys() >= {"ensemble", "linear", "lightgbm", "xgboost", "catboost", "tabm"}
    assert min(value for member, value in board.items() if member != "base rate") > 0.7
    rows.tail(100).drop("y").write_csv(tmp_path / "new.csv")
    fork(
        "ensemble_predictor", "predict", f"ensemble={tmp_path}/out/ensemble", f"source=[{tmp_path}/new.csv]",
        f"out={tmp_path}/new",
    )  # fmt: skip
    forecast = pl.read_csv(tmp_path / "new" / "forecast.csv").sort("row_id")
    assert np.corrcoef(forecast["prediction"].to_numpy(), relevance[500:])[0, 1] > 0.7
