"""An ensemble of a table, of every kind of task, with and without rows to forecast, on blend or out of fold."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blends import GROUP_SIZE, KINDS, NAMES, blend_of
from huggingface_hub import ModelCard
from prediction_files import change
from scripts_run import started

from ensemble import combine, folders, metrics, predictions
from ensemble.combine.fitting import OUTPUTS_OF
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import card, new_data
from ensemble.predictor import fit as predictor
from ensemble.predictor.loaded import Predictor
from ensemble.task import Task

METRIC = {
    "binary": "average_precision",
    "multiclass": "multiclass_log_loss",
    "regression": "root_mean_squared_error",
    "ranking": "ndcg_at_10",
}
NUM_ROWS = 600
NAMES_OF_CLASSES = ("ash", "birch", "cedar", "elm")


def table(
    folder: Path, kind: str, splits: tuple[str, ...] = ("blend", "test", "forecast"), on: str = "blend", offset: float = 0.0
) -> Path:
    """Prepared data of a table, as far as an ensemble reads them, and prediction files of three members beside them.

    offset : added to the targets and the predictions of a regression.
    """
    data = folder / "prepared"
    classes = NAMES_OF_CLASSES if kind == "multiclass" else ()
    task = Task(kind=kind, target="target", metric=METRIC[kind], group="group", cluster="cluster", classes=classes)
    ids, tables = np.arange(NUM_ROWS), {}
    if "forecast" in splits:
        tables["forecast"] = pa.table({"row_id": ids[::-1] + 2000, "id": pa.array([f"row {row}" for row in ids[::-1]])})
    fingerprint = prepared_folders.write(
        data, tables, task, [],
        recipe="table",
        target={"column": "tree", "names": list(classes)},
        splits={split: {"rows": NUM_ROWS, "share": 0.25} for split in splits if split != "oof"},
        sources=[{"name": "trees.csv", "sha256": "0" * 64}],
    )  # fmt: skip
    for number, split in enumerate(splits):
        blend = blend_of(kind, NUM_ROWS, seed=number)
        for member, name in enumerate(NAMES):
            file = Predictions(
                row_id=ids + 1000 * number,
                target=np.full(NUM_ROWS, np.nan) if split == "forecast" else blend.target + offset,
                prediction=blend.predictions[:, member] + offset,
                group=blend.group,
                cluster=blend.group if kind == "ranking" else ids,
                recipe="table",
                split=on if split == "blend" else split,
                member=name,
                fingerprint=fingerprint,
                output=OUTPUTS_OF[kind][0],
                classes=classes,
                config={"kind": "xgboost"},
            )
            predictions.write(folder / "files" / f"{name}.{file.split}.parquet", file)
    return folder


def fitted(folder: Path, **settings: Any) -> dict[str, Any]:
    return predictor.fit(folder / "files", folder / "prepared", folder / "ensemble", num_draws=20, **settings)


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A kind, and the folder of an ensemble of it, with a forecast."""
    folder = table(tmp_path_factory.mktemp(request.param), request.param)
    fitted(folder)
    return request.param, folder / "ensemble"


def test_scores_are_those_of_the_task(whole: tuple[str, Path]) -> None:
    """The report would show another metric than the task's, take its worst member for the best, or guess the kind."""
    kind, folder = whole
    scores = folders.read_json(folder / "scores.json")
    assert (scores["kind"], scores["metric"], scores["fitted_on"]) == (kind, METRIC[kind], "blend")
    assert set(scores["scores"]) == {"ensemble", *NAMES, "base rate"}
    assert set(scores["metrics"]) == set(metrics.METRICS[kind]) == set(scores["scores"]["ensemble"])
    value = {name: of[METRIC[kind]]["value"] for name, of in scores["scores"].items()}
    higher = scores["metrics"][METRIC[kind]]["higher_is_better"]
    best = (max if higher else min)(NAMES, key=value.__getitem__)
    assert scores["best_member"] == best
    assert (value["ensemble"] > value["base rate"]) == higher
    gain = scores["gain_over_best_member"][METRIC[kind]]
    assert gain["value"] == pytest.approx(value["ensemble"] - value[best])
    for interval in scores["scores"]["ensemble"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]
    test = predictions.read(folder / "test.parquet")
    assert test.output == OUTPUTS_OF[kind][0]
    assert not re.search("product|week", (folder / "scores.json").read_text(encoding="utf-8"))  # words of another recipe
    assert (scores["clusters"], scores["groups"]) == (len(np.unique(test.cluster)), len(np.unique(test.group)))
    recomputed = metrics.task_scores(kind, test.target, test.prediction, test.group)[METRIC[kind]]
    assert recomputed == pytest.approx(value["ensemble"])
    description = folders.read_json(folder / "ensemble.json")
    assert combine.Ensemble.from_dict(description["combiner"]).kind == kind
    assert set(description["diversity"]) == {"error_correlation", "without", "weights_of", "weights"}
    folders.verify(folder)


@pytest.mark.parametrize("split", ["test", "oof"])
def test_a_large_offset_of_a_regression_loses_nothing(split: str, tmp_path: Path) -> None:
    """Times in milliseconds would all be one number in float32, so that every member would have an error of 0."""
    splits = ("oof",) if split == "oof" else ("blend", "test")
    scores = {}
    for offset in (0.0, 1.7e12):
        folder = table(tmp_path / f"{offset:g}", "regression", splits, "oof" if split == "oof" else "blend", offset)
        scores[offset] = fitted(folder, on=splits[0])
        assert predictions.read(folder / "ensemble" / f"{split}.parquet").target.dtype == np.float64
    plain, large = (
        {
            name: {metric: interval["value"] for metric, interval in of.items()}
            for name, of in scores[offset]["scores"].items()
        }
        for offset in (0.0, 1.7e12)
    )
    assert plain["ensemble"]["root_mean_squared_error"] > 1
    for name, of_plain in plain.items():
        assert large[name] == pytest.approx(of_plain, rel=1e-3, abs=1e-3), name
    for name in ("weights", "intervals", "gain_over_best_member"):
        for key, value in scores[0.0][name].items():
            assert scores[1.7e12][name][key] == pytest.approx(value, rel=1e-3, abs=1e-3), (name, key)


def test_the_rows_of_a_table_are_forecast(whole: tuple[str, Path]) -> None:
    """A forecast would stand beside the id of another row, or the highest forecast would not be first."""
    kind, folder = whole
    rows = pq.read_table(folder / "forecast.parquet").to_pylist()
    with open(folder / "forecast.csv", newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert {row["row_id"]: row["id"] for row in rows} == {2000 + row: f"row {row}" for row in range(NUM_ROWS)}
    blend = blend_of(kind, NUM_ROWS, seed=2)
    ensemble = combine.Ensemble.from_dict(folders.read_json(folder / "ensemble.json")["combiner"])
    expected = ensemble.predict(blend.predictions, NAMES, blend.group)
    place = [row["row_id"] - 2000 for row in rows]
    if kind == "multiclass":
        assert place == list(range(NUM_ROWS))
        result = [[row[f"probability of {name}"] for name in NAMES_OF_CLASSES] for row in rows]
        np.testing.assert_array_equal(result, expected)
        return
    np.testing.assert_array_equal([row["prediction"] for row in rows], expected[place])
    if kind == "ranking":
        np.testing.assert_array_equal([row["group"] for row in rows], np.sort(blend.group))
        assert [row["rank"] for row in rows] == list(range(1, GROUP_SIZE + 1)) * (NUM_ROWS // GROUP_SIZE)
        falling = np.reshape([row["prediction"] for row in rows], (-1, GROUP_SIZE))
    else:
        assert [row["rank"] for row in rows] == list(range(1, NUM_ROWS + 1))
        falling = np.array([row["prediction"] for row in rows])
    assert (np.diff(falling) <= 0).all()


def test_a_part_of_the_rows_can_be_forecast(tmp_path: Path) -> None:
    """Files of another program may lack rows: each forecast would stand beside the id of another row."""
    folder = table(tmp_path, "binary")
    for path in (folder / "files").glob("*.forecast.parquet"):
        part = predictions.select_rows(predictions.read(path), np.arange(NUM_ROWS) % 3 == 1)
        predictions.write(path, part)
    fitted(folder)
    rows = pq.read_table(folder / "ensemble/forecast.parquet").to_pylist()
    assert {row["row_id"]: row["id"] for row in rows} == {2000 + row: f"row {row}" for row in range(1, NUM_ROWS, 3)}


@pytest.mark.parametrize("kind", ["multiclass", "ranking"])
def test_data_without_a_forecast_are_enough(kind: str, tmp_path: Path) -> None:
    """A table in which every row has a target, and which has no rows to forecast, could not be fitted."""
    fitted(table(tmp_path, kind, ("blend", "test")))
    assert {path.name for path in (tmp_path / "ensemble").iterdir()} == {
        "README.md", "ensemble.json", "like.json", "manifest.json", "scores.json", "test.parquet",
    }  # fmt: skip
    sentence = "the predictions of member net are not from scripts/predict.py, so it cannot predict new rows: fit without it"
    with pytest.raises(UserError, match=sentence):
        new_data.predict(tmp_path / "ensemble", ("new.csv",), (), tmp_path / "new", {})
    with pytest.raises(UserError, match=sentence):
        Predictor.load(tmp_path / "ensemble")


def test_the_card_is_of_the_task(whole: tuple[str, Path]) -> None:
    """A reader of the Hub would be told of hot sellers and weeks, or find a score of another kind."""
    kind, folder = whole
    scores = folders.read_json(folder / "scores.json")
    read = ModelCard.load(folder / card.NAME)
    shown = {result.metric_type: result.metric_value for result in read.data.eval_results or []}
    assert shown == {name: pytest.approx(scores["scores"]["ensemble"][name]["value"], abs=1e-6) for name in card.SHOWN[kind]}
    assert "`tree`" in read.text
    assert "| blend | 600 | 0.25 |" in read.text
    assert f"minus that of {scores['best_member']}, the best member on test" in read.text
    assert not any(word in read.text for word in ("product", "week", "hot", "None"))


def test_weights_are_fitted_out_of_fold(tmp_path: Path) -> None:
    """on=oof would ask for prediction files of blend, or fit the weights on blend."""
    folder = table(tmp_path, "binary", ("blend", "test"), on="oof")
    with pytest.raises(UserError, match="no prediction files of blend in"):
        fitted(folder)
    out_of_fold = fitted(folder, on="oof")
    assert out_of_fold["fitted_on"] == "oof"
    assert "were fitted on rows predicted out of fold" in (folder / "ensemble" / card.NAME).read_text()
    same = fitted(table(tmp_path / "blend", "binary", ("blend", "test")))
    assert same["weights"] == out_of_fold["weights"]
    with pytest.raises(UserError, match="on=test is not a split on which weights can be fitted: choose blend or oof"):
        fitted(folder, on="test")
    with pytest.raises(UserError, match="no prediction files of oof in"):
        fitted(tmp_path / "blend", on="oof")


def test_members_of_another_task_are_refused(tmp_path: Path) -> None:
    """Scores would be averaged with values, or probabilities of classes in another order with each other."""
    folder = table(tmp_path, "multiclass", ("blend", "test"))
    for split in ("blend", "test"):
        path = folder / "files" / f"net.{split}.parquet"
        file = pq.read_table(path)
        metadata = json.loads(file.schema.metadata[predictions.KEY]) | {"classes": ["ash", "birch", "elm", "cedar"]}
        pq.write_table(file.replace_schema_metadata({predictions.KEY: json.dumps(metadata)}), path)
    with pytest.raises(
        UserError, match=r"member text predicts .* 4 classes \(ash, birch, cedar and 1 more\), but net of 4 classes"
    ):
        fitted(folder)
    values = table(tmp_path / "values", "regression", ("blend", "test"))
    for split in ("blend", "test"):
        path = values / "files" / f"net.{split}.parquet"
        file = pq.read_table(path)
        metadata = json.loads(file.schema.metadata[predictions.KEY]) | {"output": "score"}
        pq.write_table(file.replace_schema_metadata({predictions.KEY: json.dumps(metadata)}), path)
    with pytest.raises(UserError, match="member 'net' has output score, but a regression task needs value: leave it out"):
        fitted(values)


def test_the_script_prints_the_metric_of_the_task(tmp_path: Path) -> None:
    """The heading of a regression's errors would be average precision, or that of the combiners would name other blocks."""
    folder = table(tmp_path, "regression", ("blend", "test"))
    words = (f"predictions={folder}/files", f"data={folder}/prepared", f"out={folder}/ensemble", "num_draws=5")
    done = started("ensemble_predictor", "fit", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "cross-fitted scores of the combiners on blend, each block with weights fitted on the blocks before it:" in lines
    assert "test: 600 rows; root mean squared error with its 95 % interval" in lines
    scores = folders.read_json(folder / "ensemble" / "scores.json")["scores"]
    value = scores["ensemble"]["root_mean_squared_error"]["value"]
    assert any(line.split()[:2] == ["ensemble", f"{value:.4f}"] for line in lines)


def test_other_classes_than_those_of_the_data_are_refused(tmp_path: Path) -> None:
    """The probabilities of an own model would be of other classes: its score would be wrong without a message."""
    folder = table(tmp_path, "multiclass")
    for path in (folder / "files").iterdir():
        change(path, classes=NAMES_OF_CLASSES[::-1])
    with pytest.raises(UserError, match=r"have other classes than the data \('elm' where the data have 'ash'\)"):
        fitted(folder)


def test_members_without_predictions_of_the_split_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A forgotten file would leave a member out of the ensemble in silence."""
    folder = table(tmp_path, "binary")
    (folder / f"files/{NAMES[1]}.blend.parquet").unlink()
    fitted(folder)
    assert f"left out, without predictions of blend: {NAMES[1]}" in capsys.readouterr().err
