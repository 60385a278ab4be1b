"""Values that are not in the training rows get neutral predictions, and no other prediction changes."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from copied_members import KINDS, prepared_of
from tree_members import config_of, rows_of

from ensemble import folders
from ensemble.errors import Failure
from ensemble.trees import export, predict, train, unknown
from ensemble.trees.objective import objective_of
from ensemble.trees.predict import TreeMember, warn_once

COLOURS = {"amber": -5, "blue": -3, "coral": -1, "denim": 1, "ebony": 3, "fern": 5}
NUM_ROWS, NUM_FORECASTS = 2400, 60


def data_of(folder: Path, kind: str) -> Path:
    """The target depends on colour and size; 20 of the colours of the forecast are new, and 20 of its sizes are missing."""
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
    frame = pl.DataFrame({"colour": colour, "size": size, "gaps": gaps, "target": target}, nan_to_null=True)
    return prepared_of(folder, frame, "prepared", target="target", task=kind, num_folds=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that returns the data of a kind or, with a library, the member that was trained on them."""

    @functools.cache
    def make(kind: str, library: str = "") -> Path:
        folder = tmp_path_factory.mktemp(kind)
        if not library:
            return data_of(folder, kind)
        settings = {"num_rounds": 60, "learning_rate": 0.2, "column_fraction": 1.0, "regrow": False}
        train.train(config_of(library, make(kind), folder / "m", **settings))
        return folder / "m"

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_value_is_neutral(kind: str, library: str, made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """For a new colour, one library would predict as for the best colour, and the other as for the worst."""
    data, member = made(kind), made(kind, library)
    loaded = TreeMember(member)
    capsys.readouterr()
    warn_once.cache_clear()
    result = loaded.predict(data, "forecast")
    features, order = rows_of(data, "forecast").matrix(), np.arange(NUM_FORECASTS)
    is_unknown = np.isnan(features) & [True, True, False]
    assert (is_unknown.sum(axis=0) == [20, 20, 0]).all()
    assert np.isnan(features[:, 2]).any()
    learned = rows_of(data).matrix()
    errors = capsys.readouterr().err
    warning = (
        "20 of 60 rows of forecast have an empty or unknown value in 'colour', as many in 'size'; no training row has such a"
    )
    assert errors.count(f"warning: {warning}") == 1
    TreeMember(member).predict(data, "forecast")
    assert "warning" not in capsys.readouterr().err, "each member of an ensemble would give the same warnings"
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
def test_the_contributions_to_a_neutral_prediction(kind: str, library: str, made: Any, tmp_path: Path) -> None:
    """The contributions would be those of another prediction, or an unknown value would be given as a reason."""
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
    unknown_of = np.isnan(rows_of(data, "forecast").matrix()) & [True, True, False]
    for reasons, is_unknown in zip(result["reasons"], unknown_of, strict=True):
        assert not {reason["feature"] for reason in reasons} & set(np.array(["colour", "size", "gaps"])[is_unknown])


def test_a_category_without_training_rows_is_unknown(library: str, made: Any, tmp_path: Path) -> None:
    """The manifest also counts categories that only rows without a target have, which no tree was trained on."""
    data = made("regression")
    rows = rows_of(data)
    rows.categories = {"colour": 7}
    objective = objective_of(config_of(library, data, tmp_path), rows)
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


def test_a_category_outside_of_the_sample(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than are sampled, a training would fail at its end if none of the sampled rows has a category."""
    monkeypatch.setattr(unknown, "NUM_SAMPLED", 10)
    rows = rows_of(made("regression"))
    rows = rows.replaced({"size": np.where(np.arange(len(rows)) == 0, 2, np.nan).astype(np.float32)})
    rows.categories = {"size": 4}
    content = unknown.describe(objective_of(config_of("xgboost", made("regression"), tmp_path), rows), [rows])
    assert content["unseen"] == {"size": [0, 1, 3]}
    assert set(content["reference"]["size"]) == {2}


def test_probabilities_between_quartiles_sum_to_one() -> None:
    """Medians of probabilities do not sum to 1. Divided by their sum, some would be outside of their quartiles."""
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_prediction_of_most_reference_rows_is_neutral(dtype: str) -> None:
    """If five of six give the same probabilities, rounding of their sum would decide between these and the mean."""
    generator = np.random.default_rng(0)
    common, rare = generator.dirichlet(np.ones(6), (2, 200))
    probabilities = np.repeat(common[:, None], 63, axis=1)
    probabilities[:, :10] = rare[:, None]
    assert unknown.between_quartiles(probabilities.astype(dtype)) == pytest.approx(common, abs=1e-6)


def test_many_unknown_rows_are_predicted_a_part_at_a_time(library: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column without values would need 63 times the memory of the table."""
    loaded, data = TreeMember(made("regression", library)), made("regression")
    whole = loaded.predict(data, "forecast")["prediction"]
    monkeypatch.setattr(unknown, "ROWS_AT_ONCE", 2 * unknown.NUM_REFERENCE)
    monkeypatch.setattr(predict, "ROWS_PER_BLOCK", 7)
    assert np.array_equal(loaded.predict(data, "forecast")["prediction"], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_file_predicts_unknown_values_as_the_member(library: str, kind: str, made: Any, tmp_path: Path) -> None:
    """The file would give another prediction for a missing value than predict.py, without a message."""
    import onnx
    import onnxruntime

    data, member = made(kind), tmp_path / "member"
    shutil.copytree(made(kind, library), member)
    content = folders.read_json(member / unknown.FILE)
    content["unseen"] = {"colour": [2, 4]}  # as if no training row had them
    folders.write_json(member / unknown.FILE, content)
    (member / folders.NAME).unlink()
    folders.write_manifest(member, {"kind": train.KIND})
    result = export.export(member, tmp_path / "member.onnx", data)
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "member.onnx").metadata_props}
    assert result["neutral"] == ["colour", "size"] == json.loads(metadata["neutral"])
    expected = TreeMember(member).predict(data, "forecast")["prediction"]
    features = rows_of(data, "forecast").matrix()
    is_unknown = (np.isnan(features) & [True, True, False]) | (np.isin(features, [2, 4]) & [True, False, False])
    assert 30 < is_unknown.any(axis=1).sum() < len(features)
    session = onnxruntime.InferenceSession(tmp_path / "member.onnx", providers=["CPUExecutionProvider"])
    for rows in (np.arange(len(features)), np.arange(3), np.flatnonzero(~is_unknown.any(axis=1)), np.array([7])):
        (predicted,) = session.run(None, {"features": features[rows]})
        assert predicted == pytest.approx(expected[rows], rel=1e-5, abs=1e-5)


def test_a_wrong_neutral_prediction_is_never_written(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would be compared with the member only on values that training rows have."""
    monkeypatch.setattr(unknown.SeenValues, "is_unknown", lambda self, features: np.zeros(features.shape, bool))
    with pytest.raises(Failure, match="nothing was written"):
        export.export(made("regression", "lightgbm"), tmp_path / "member.onnx")


def test_a_warning_about_one_row() -> None:
    """The warning about a single new row would read "1 of 1 rows have"."""
    (warning,) = unknown.warnings(np.array([0, 1]), ["age", "city"], 1, "forecast")
    assert warning.startswith(
        "1 of 1 rows of forecast has an empty or unknown value in 'city'; no training row has such a value, so the"
    )


def test_a_missing_text_is_one_warning() -> None:
    """The 30 features of a text column that new rows lack would be 30 sentences."""
    names = [f"note_topic_{number}" for number in range(30)]
    warnings = unknown.warnings(np.array([9] * 30 + [0, 4]), [*names, "age", "city"], 9, "forecast")
    assert len(warnings) == 2
    assert warnings[0].startswith(
        "9 of 9 rows of forecast have an empty or unknown value in 'note_topic_0', as many in 'note_topic_1', "
        "'note_topic_2', 'note_topic_3' and 26 more; no training row has such a value, so the"
    )
    assert warnings[1].startswith("4 of 9 rows of forecast have an empty or unknown value in 'city'; ")
