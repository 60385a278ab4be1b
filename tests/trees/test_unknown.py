"""Values that training never had: neutral predictions of both libraries, and nothing else changes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from ensemble import folders
from ensemble.data import prepared
from ensemble.errors import Failure
from ensemble.recipes.table.prepare import prepare
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.trees import export, predict, train, unknown
from ensemble.trees.distributed import LIBRARIES
from ensemble.trees.predict import TreeMember
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

COLOURS = {"amber": -5, "blue": -3, "coral": -1, "denim": 1, "ebony": 3, "fern": 5}
NUM_ROWS, NUM_FORECASTS = 2400, 60
KINDS = ("regression", "binary", "multiclass")


def data_of(folder: Path, kind: str) -> Path:
    """A table in which colour and size decide; in the rows to forecast, the first 20 of each are empty or new."""
    generator = np.random.default_rng(0)
    colour = generator.choice(list(COLOURS), NUM_ROWS)
    size, other = generator.uniform(-1, 1, (2, NUM_ROWS))
    gaps = np.where(generator.random(NUM_ROWS) < 0.2, np.nan, other)
    truth = np.array([COLOURS[name] for name in colour]) + 7 * size + 0.3 * generator.standard_normal(NUM_ROWS)
    target = {"regression": truth, "binary": truth > 0, "multiclass": np.digitize(truth, [-3, 3])}[kind].astype(float)
    forecast = np.arange(NUM_ROWS) >= NUM_ROWS - NUM_FORECASTS
    target[forecast] = np.nan
    number = np.cumsum(forecast) - 1
    colour = np.where(forecast & (number < 20), "gold", colour)
    size[forecast & (number >= 10) & (number < 30)] = np.nan
    pl.DataFrame({"colour": colour, "size": size, "gaps": gaps, "target": target}, nan_to_null=True).write_parquet(
        folder / "table.parquet"
    )
    about = prepare(
        PrepareConfig(
            out=str(folder / "prepared"), source=(str(folder / "table.parquet"),), target="target", task=kind, num_folds=1,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    prepared.check("table", folder / "prepared", about)
    return folder / "prepared"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The data of a kind, and the member of a library that learned them."""
    from ensemble.trees import threads

    threads.provide_openmp()
    result: dict[Any, Path] = {}

    def make(kind: str, library: str = "") -> Path:
        if (kind, library) not in result:
            folder = tmp_path_factory.mktemp(kind)
            if not library:
                result[kind, ""] = data_of(folder, kind)
            else:
                settings = {"num_rounds": 60, "learning_rate": 0.2, "threads": 1, "column_fraction": 1.0, "regrow": False}
                train.train(TreesConfig(library=library, data=str(make(kind)), out=str(folder / "m"), **settings))  # type: ignore[arg-type]
                result[kind, library] = folder / "m"
        return result[kind, library]

    return make


def features_of(data: Path, split: str) -> np.ndarray:
    return TreeData(data, split, folders.read_manifest(data)).matrix()


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_value_is_neutral(kind: str, library: str, made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One library would forecast the best colour for a colour that nobody has seen, and the other the worst."""
    data, member = made(kind), made(kind, library)
    loaded = TreeMember(member)
    capsys.readouterr()
    result = loaded.predict(data, "forecast")
    features, order = features_of(data, "forecast"), np.arange(NUM_FORECASTS)
    is_unknown = np.isnan(features) & [True, True, False]
    assert (is_unknown.sum(axis=0) == [20, 20, 0]).all()
    assert np.isnan(features[:, 2]).any()
    learned = features_of(data, "train")
    errors = capsys.readouterr().err
    for name in ("colour", "size"):
        warning = f"warning: 20 of 60 rows of forecast have an empty or unknown value in '{name}', which no training row has"
        assert warning in errors
    assert "'gaps'" not in errors
    plain = loaded.predict_features(features)
    known = ~is_unknown.any(axis=1)
    assert np.array_equal(result["prediction"][known], plain[known])
    worst = 0.0
    for row in order[~known]:
        variants = np.where(is_unknown[row], learned, features[row])
        predictions = loaded.predict_features(variants)
        low, high = np.quantile(predictions, [0.25, 0.75], axis=0)
        slack = 0.02 * np.ptp(predictions, axis=0) if is_unknown[row].sum() > 1 else 1e-6
        assert (low - slack <= result["prediction"][row]).all()
        assert (result["prediction"][row] <= high + slack).all()
        worst = max(worst, np.abs(plain[row] - np.median(predictions, axis=0)).max())
    assert worst > {"regression": 3, "binary": 0.4, "multiclass": 0.4}[kind]  # the library's own prediction


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_neutral_prediction(kind: str, library: str, made: Any, tmp_path: Path) -> None:
    """The contributions would be those of another prediction, or an unknown value be given as a reason."""
    loaded, data = TreeMember(made(kind, library)), made(kind)
    result = loaded.predict(data, "forecast")
    file = loaded.write_contributions(data, "forecast", "mine", tmp_path)
    table = pq.read_table(file).drop_columns(["row_id"]).to_pandas()
    assert np.isfinite(table.to_numpy()).all()
    total = table.sum(axis=1).to_numpy()
    if kind == "regression":
        assert total == pytest.approx(result["prediction"], abs=1e-3)
    if kind == "binary":
        assert 1 / (1 + np.exp(-total)) == pytest.approx(result["prediction"], abs=1e-4)
    unknown_of = np.isnan(features_of(data, "forecast")) & [True, True, False]
    for reasons, is_unknown in zip(result["reasons"], unknown_of, strict=True):
        assert not {reason["feature"] for reason in reasons} & set(np.array(["colour", "size", "gaps"])[is_unknown])


def test_a_category_that_no_row_had_is_unknown(library: str, made: Any, tmp_path: Path) -> None:
    """The manifest counts a category that only rows without a target have: a tree has never tested it."""
    data = made("regression")
    about = folders.read_manifest(data)
    rows = TreeData(data, "train", about)
    rows.categories = {"colour": 7}
    from ensemble.trees.objective import objective_of

    objective = objective_of(TreesConfig(data=str(data), out=str(tmp_path)), rows)
    content = unknown.describe(objective, [rows])
    assert content["complete"] == ["colour", "size"]
    assert content["unseen"] == {"colour": [6]}
    shares = np.bincount(np.array(content["reference"]["colour"]).astype(int)) / unknown.NUM_REFERENCE
    assert shares == pytest.approx(np.bincount(rows.column("colour").astype(int)) / len(rows), abs=1 / 63)
    folders.write_json(tmp_path / unknown.FILE, content)
    known = unknown.SeenValues.load(tmp_path, rows.features)
    features = np.array([[6, 0, np.nan], [5, 0, np.nan], [np.nan, np.nan, 1]], np.float32)
    assert known.is_unknown(features).tolist() == [[True, False, False], [False, False, False], [True, True, False]]
    assert not unknown.SeenValues.load(tmp_path / "older", rows.features).is_unknown(features).any()


def test_probabilities_between_quartiles_sum_to_one() -> None:
    """Medians of probabilities sum to less than 1, or to more, and divided by that they leave their quartiles."""
    generator = np.random.default_rng(0)
    for spread in (0.3, 1.0, 3.0):
        logs = spread * generator.standard_normal((50, 63, 4))
        shares = np.exp(logs) / np.exp(logs).sum(-1, keepdims=True)
        result = unknown.between_quartiles(shares)
        low, high = np.quantile(shares, [0.25, 0.75], axis=1)
        assert result.sum(axis=1) == pytest.approx(1)
        assert (low - 1e-9 <= result).all()
        assert (result <= high + 1e-9).all()
    certain = np.eye(6)[np.arange(60) % 6][None]  # each class is certain for some, so all quartiles are 0
    assert unknown.between_quartiles(certain)[0] == pytest.approx(np.full(6, 1 / 6))


def test_many_unknown_rows_are_predicted_a_part_at_a_time(library: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole empty column would need 63 times the memory of the table."""
    loaded, data = TreeMember(made("regression", library)), made("regression")
    whole = loaded.predict(data, "forecast")["prediction"]
    monkeypatch.setattr(unknown, "ROWS_AT_ONCE", 2 * unknown.NUM_REFERENCE)
    monkeypatch.setattr(predict, "ROWS_PER_BLOCK", 7)
    assert np.array_equal(loaded.predict(data, "forecast")["prediction"], whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_exported_file_is_neutral_too(library: str, kind: str, made: Any, tmp_path: Path) -> None:
    """Whoever runs the file would get another prediction for an empty cell than predict.py gives, without a word."""
    import onnx
    import onnxruntime

    data, member = made(kind), tmp_path / "member"
    shutil.copytree(made(kind, library), member)
    content = folders.read_json(member / unknown.FILE)
    content["unseen"] = {"colour": [2, 4]}  # as if no row that trains had them
    folders.write_json(member / unknown.FILE, content)
    (member / folders.NAME).unlink()
    folders.write_manifest(member, {"kind": train.KIND})
    result = export.export(member, tmp_path / "member.onnx", data)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "member.onnx").metadata_props}
    assert result["neutral"] == ["colour", "size"] == json.loads(about["neutral"])
    expected = TreeMember(member).predict(data, "forecast")["prediction"]
    features = features_of(data, "forecast")
    is_unknown = (np.isnan(features) & [True, True, False]) | (np.isin(features, [2, 4]) & [True, False, False])
    assert 30 < is_unknown.any(axis=1).sum() < len(features)
    session = onnxruntime.InferenceSession(tmp_path / "member.onnx", providers=["CPUExecutionProvider"])
    for rows in (np.arange(len(features)), np.arange(3), np.flatnonzero(~is_unknown.any(axis=1)), np.array([7])):
        (predicted,) = session.run(None, {"features": features[rows]})
        assert predicted == pytest.approx(expected[rows], rel=1e-5, abs=1e-5)


def test_a_wrong_neutral_prediction_is_never_written(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would be compared on values alone that training had."""
    monkeypatch.setattr(unknown.SeenValues, "is_unknown", lambda self, features: np.zeros(features.shape, bool))
    with pytest.raises(Failure, match="nothing was written"):
        export.export(made("regression", "lightgbm"), tmp_path / "member.onnx")
