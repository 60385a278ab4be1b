"""Regression targets of any size: learned standardised, scored, predicted and exported in float64."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl
import pyarrow.parquet as pq
import pytest
from copied_members import prepared_of
from tree_members import config_of

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.trees import export, train
from ensemble.trees.predict import TreeMember
from ensemble.trees.scaling import Scaling

NUM_ROWS = 1500
OFFSETS = {"plain": 0.0, "milliseconds": 1_700_000_000_000.0}


def data_of(folder: Path, offset: float, spread: float = 1.0) -> Path:
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, NUM_ROWS))
    truth = np.floor(300 * first + 100 * np.sin(2 * second) + 20 * generator.standard_normal(NUM_ROWS))
    when = [*(offset + spread * truth)[:-40], *[None] * 40]
    frame = pl.DataFrame({"first": first, "second": second, "when": when})
    return prepared_of(folder, frame, "prepared", target="when", task="regression", test=0.25, num_folds=1)


def trained(library: str, data: Path, out: Path) -> dict[str, float]:
    return train.train(config_of(library, data, out, num_rounds=60, learning_rate=0.2))


def test_a_large_offset_loses_nothing(library: str, tmp_path: Path) -> None:
    """Times in milliseconds would all be the same float32, with an error of 0."""
    errors, result = {}, {}
    for name, offset in OFFSETS.items():
        (tmp_path / name).mkdir()
        data = data_of(tmp_path / name, offset)
        assert str(open_table(data / "rows/train").schema.field("target").type) == "double"
        summary = trained(library, data, tmp_path / name / library)
        result[name] = TreeMember(tmp_path / name / library).predict(data, "test")
        errors[name] = summary["validation_root_mean_squared_error"]
        assert result[name]["target"].std() > 250
    assert errors["milliseconds"] == pytest.approx(errors["plain"], rel=1e-4)
    assert 20 < errors["plain"] < 120
    shift = result["milliseconds"]["prediction"] - OFFSETS["milliseconds"]
    assert shift == pytest.approx(result["plain"]["prediction"], abs=0.01)


def test_units_change_no_tree(library: str, tmp_path: Path) -> None:
    """A target in another unit would give other trees: gains below XGBoost's least gain, or squares that overflow. Stored
    contributions would be 0 or infinite."""
    results = []
    for name, spread in (("small", 2.0**-200), ("plain", 1.0), ("large", 2.0**400)):
        (tmp_path / name).mkdir()
        data = data_of(tmp_path / name, 0.0, spread)
        trained(library, data, tmp_path / name / library)
        member, file = TreeMember(tmp_path / name / library), tmp_path / name / "forecast.parquet"
        table = pq.read_table(member.write_contributions(data, "test", "mine", tmp_path / name)).drop_columns(["row_id"])
        forecast = predictions.Predictions(**member.predict(data, "forecast"), split="forecast", member="mine")
        predictions.write(file, forecast)
        reasons = [reason["contribution"] for row in predictions.read(file).reasons or () for reason in row]
        values = (member.predict(data, "test")["prediction"], *table.to_pydict().values(), reasons)
        results.append([np.array(column) / spread for column in values])
    for small, plain, large in zip(*results, strict=True):
        assert len(plain)
        assert np.array_equal(small, plain)
        assert np.array_equal(large, plain)


def test_contributions_reasons_and_export_are_in_the_unit_of_the_target(library: str, tmp_path: Path) -> None:
    """Contributions and the exported file would be on another scale than the prediction."""
    data = data_of(tmp_path, OFFSETS["milliseconds"])
    trained(library, data, tmp_path / library)
    member = TreeMember(tmp_path / library)
    actual = member.predict(data, "test")
    file = member.write_contributions(data, "test", "mine", tmp_path)
    table = pq.read_table(file).drop_columns(["row_id"]).to_pandas()
    assert table.sum(axis=1).to_numpy() == pytest.approx(actual["prediction"], abs=0.01)
    forecast = member.predict(data, "forecast")
    assert max(reason["contribution"] for row in forecast["reasons"] for reason in row) > 50
    result = export.export(tmp_path / library, tmp_path / "member.onnx", data)
    assert result["difference"] <= result["tolerance"] < 0.05
    session = onnxruntime.InferenceSession(tmp_path / "member.onnx", providers=["CPUExecutionProvider"])
    features = np.stack([open_table(data / "rows/test")[name].to_numpy() for name in ("first", "second")], axis=1)
    (exported,) = session.run(None, {"features": features})
    assert exported == pytest.approx(actual["prediction"], abs=0.05)


def test_the_scale_is_finite_for_any_targets() -> None:
    """No targets, equal ones, or one of 1e300 would give a scale of NaN, 0 or infinity."""
    assert Scaling.fit(np.array([])).is_identity
    assert Scaling.fit(np.array([5.0, 5.0])) == Scaling(center=5.0, scale=1.0)
    assert Scaling.fit(np.array([-1e300, 1e300])) == Scaling(center=0.0, scale=1e300)
    target = 1.7e12 + np.arange(1000)
    scaling = Scaling.fit(target)
    assert np.abs(scaling.value(scaling.learned(target)) - target).max() < 1e-3
    assert Scaling.all_from_summary({}, 1)[0].is_identity


def test_a_training_resumes_only_with_the_same_scaling(library: str, tmp_path: Path) -> None:
    """Trees of an older version, trained on the target itself, would be continued on another scale."""
    data = data_of(tmp_path, 0.0)
    summary = trained(library, data, tmp_path / library)
    stored = json.loads((tmp_path / library / "summary.json").read_text())["scaling"]
    assert stored == summary["scaling"]  # type: ignore[comparison-overlap]
    state = {"fingerprint": "f00d", "num_ranks": 1, "config": {}}
    with pytest.raises(train.UserError, match="learned the target on another scale"):
        train.check_same_training(Path("member.checkpoint"), state, {**state, "scaling": stored})
    identity = {"center": 0.0, "scale": 1.0}
    train.check_same_training(Path("member.checkpoint"), state, {**state, "scaling": identity})
    folders.verify(tmp_path / library)
