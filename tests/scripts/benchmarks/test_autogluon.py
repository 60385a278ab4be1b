"""The comparison with AutoGluon: mistakes, counts, the rows that other methods get; and one small real comparison."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import autogluon

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
BENCHMARK = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), "autogluon"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sets": ("market_9",)}, "'market_9' is unknown, choose from market_0, market_11"),
        (
            {"methods": ("best",)},
            "'best' is unknown, choose from good_quality, good_quality_by_week, medium_quality, stacking",
        ),
        ({"python": "gone/python"}, "there is no gone/python: `make bench-autogluon` installs AutoGluon there"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(
    settings: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a quarter of an hour there would be a traceback."""
    monkeypatch.setattr(autogluon, "one_set", lambda *_: pytest.fail("something was measured"))
    words = {"python": sys.executable, "data": str(tmp_path), "folder": str(tmp_path / "folder"), **settings}
    with pytest.raises(UserError) as caught:
        autogluon.autogluon(**words)
    assert sentence in str(caught.value)


def test_the_default_methods_are_those_of_the_readme() -> None:
    """`make bench-autogluon` would replace the JSON file by one without the columns of the README's table."""
    readme = (ROOT / "ensemble/predictor/README.md").read_text(encoding="utf-8")
    methods = set(re.findall(r"<!--f autogluon \S*/methods/(\w+)/", readme)) - set(autogluon.OURS)
    assert methods == set(inspect.signature(autogluon.autogluon).parameters["methods"].default)


def test_counts_sets_on_which_ours_is_at_least_level() -> None:
    """The README would give a wrong number of sets, or count a set on which the other method failed."""
    sets = {
        "first": {"gains": {"trees": {"stacking": {"value": 0.0}}, "ensemble": {"stacking": {"value": 0.1}}}},
        "second": {"gains": {"trees": {"stacking": {"value": -0.1}}, "ensemble": {"stacking": {"value": 0.1}}}},
        "third": {"gains": {"trees": {}, "ensemble": {}}},
    }
    counts = autogluon.at_least_level(sets)
    assert counts == {"trees beside stacking": "1 of 2", "ensemble beside stacking": "2 of 2"}


def test_others_get_the_rows_that_ours_are_trained_on(prepared: Path, tmp_path: Path) -> None:
    """AutoGluon would get the targets of test, or other rows to be trained on or to predict."""
    (tmp_path / "prepared").symlink_to(prepared)
    autogluon.write_rows(tmp_path)
    training, test = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("train", "test"))
    names = [feature["name"] for feature in folders.read_manifest(prepared)["features"]]
    assert training.column_names == [*names, "week", "hot"]
    assert test.column_names == ["row_id", *names, "week"]
    rows = {split: open_table(prepared / "rows" / split) for split in ("train", "validation", "blend", "test")}
    assert training.num_rows == sum(rows[split].num_rows for split in ("train", "validation", "blend"))
    assert test["row_id"].equals(rows["test"]["row_id"])
    assert np.max(training["week"]) < np.min(test["week"])


def test_each_prediction_file_is_of_one_member(tmp_path: Path) -> None:
    """predict.py refuses to replace the predictions of another member: the benchmark would stop after some minutes."""
    commands = autogluon.stages_of_ours(tmp_path, [], [], with_bags=True)
    predicted: dict[Path, set[str]] = {}
    for name, words in commands.items():
        if "predict.py" in str(words[1]):
            settings = dict(str(word).split("=", 1) for word in words[2:])
            predicted.setdefault(Path(settings["out"], Path(settings["member"]).name), set()).add(settings["member"])
            assert name.startswith(("predict", "test"))
    assert len(predicted) == 13
    assert all(len(of_members) == 1 for of_members in predicted.values())


def test_predictions_are_joined_by_row_id(tmp_path: Path) -> None:
    """Predictions in another order of rows would get a wrong score."""
    pq.write_table(pa.table({"row_id": [7, 3, 5], "prediction": [0.7, 0.3, 0.5]}), tmp_path / "other.parquet")
    assert autogluon.predictions_of(tmp_path / "other.parquet", np.array([3, 5, 7])).tolist() == [0.3, 0.5, 0.7]
    with pytest.raises(AssertionError, match="has other rows"):
        autogluon.predictions_of(tmp_path / "other.parquet", np.array([3, 5, 8]))


@pytest.mark.torture
def test_an_interrupted_comparison_continues(tmp_path: Path) -> None:
    """A change of the scripts or of scikit-learn would break the benchmark, or the same figures would be measured twice."""
    market = "market=[market.num_products=150,market.num_reviews=12000,market.num_weeks=110,panel.top_fraction=0.1]"
    words = [
        "sets=[market_11]", "methods=[stacking]", market, "training=[max_epochs=0.2,recipe.width=16,recipe.num_layers=1]",
        f"folder={tmp_path / 'folder'}", f"results={tmp_path / 'results'}",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    for _ in range(2):
        done = subprocess.run(
            [*BENCHMARK, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        results = folders.read_json(tmp_path / "results" / "autogluon.json")
    assert "xgboost:" not in done.stdout, "it measured again"
    one = results["sets"]["market_11"]
    assert one["failed"] == {}
    assert set(one["methods"]) == {"trees", "bagged", "ensemble", "stacking"}
    for scores in one["methods"].values():
        assert 0 < scores["average_precision"]["value"] <= 1
        assert min(scores[cost] for cost in ("fit_s", "predict_s", "test_rows_per_s", "peak_mb", "disk_mb")) > 0
    difference = (
        one["methods"]["trees"]["average_precision"]["value"] - one["methods"]["stacking"]["average_precision"]["value"]
    )
    assert one["gains"]["trees"]["stacking"]["value"] == pytest.approx(difference)
    assert one["time_limit_s"] == max(60, one["methods"]["ensemble"]["fit_s"])
    assert set(results["at_least_level"]) == {f"{ours} beside stacking" for ours in ("trees", "bagged", "ensemble")}
