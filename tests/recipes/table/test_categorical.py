"""Columns of categories that look like numbers, and dates that look like numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from small_tables import prepare

from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictor import frames
from ensemble.recipes.table import new_data

NUM_ROWS = 120


@pytest.fixture
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    zips = generator.choice([10115, 20095, 80331], NUM_ROWS)
    return pd.DataFrame({"zip": zips, "x": generator.random(NUM_ROWS), "y": generator.random(NUM_ROWS)})


def forecast(folder: Path) -> pa.Table:
    return open_table(folder / "rows" / "forecast")


def names_of(manifest: dict[str, Any], column: str) -> list[str] | None:
    (feature,) = (feature for feature in manifest["features"] if feature["column"] == column)
    return feature.get("values")


def test_the_setting_makes_numbers_categories(frame: pd.DataFrame, tmp_path: Path) -> None:
    """The network and the linear model would learn that a postal code is a size."""
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert names_of(prepare(tmp_path / "numbers", tmp_path / "a.csv"), "zip") is None
    manifest = prepare(tmp_path / "codes", tmp_path / "a.csv", categorical=("zip",))
    assert names_of(manifest, "zip") == ["10115", "20095", "80331"]
    with pytest.raises(UserError, match=r"categorical=zipp: the table has no such column; did you mean 'zip'\?"):
        prepare(tmp_path / "other", tmp_path / "a.csv", categorical=("zipp",))


@pytest.mark.parametrize("kind", [int, float, str])
def test_a_categorical_type_makes_numbers_categories(kind: type, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Numbers that pandas and Parquet store as categories would be read as sizes, in training or in new rows."""
    frame["zip"] = frame["zip"].astype(kind).astype("category")
    frames.write(frames.to_arrow(frame)[0], tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    assert names_of(manifest, "zip") == ["10115", "20095", "80331"]
    pl.DataFrame({"zip": [20095.0, 99999.0], "x": [0.1, 0.2]}).write_parquet(tmp_path / "new.parquet")
    new = new_data.prepare(manifest, {"source": (str(tmp_path / "new.parquet"),), "out": str(tmp_path / "new")})
    assert np.array_equal(forecast(tmp_path / "new")["zip"], [1, np.nan], equal_nan=True)
    assert any("texts that training does not have, which count as empty (1): '99999'" in note for note in new["notes"])


def test_a_csv_file_of_pandas_has_the_categories_of_a_frame(frame: pd.DataFrame, tmp_path: Path) -> None:
    """All cells would count as empty: pandas writes 20095.0 for a number beside empty cells, and True for true."""
    frame = frame.assign(zip=frame["zip"].astype("category"), large=pd.Categorical(frame["x"] > 0.5))
    frames.write(frames.to_arrow(frame)[0], tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    frame.head(2).assign(zip=[20095.0, np.nan], large=[True, False]).to_csv(tmp_path / "new.csv", index=False)
    new_data.prepare(manifest, {"source": (str(tmp_path / "new.csv"),), "out": str(tmp_path / "new")})
    rows = forecast(tmp_path / "new")
    assert np.array_equal(rows["zip"], [1, np.nan], equal_nan=True)
    assert rows["large"].to_pylist() == [1, 0]


def test_a_target_of_a_categorical_type_has_classes(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Twelve codes, which pandas stores as categories, would be the numbers of a regression."""
    frame["y"] = pd.Series(np.arange(NUM_ROWS) % 12).astype("category")
    frames.write(frames.to_arrow(frame)[0], tmp_path / "a.parquet")
    assert prepare(tmp_path / "classes", tmp_path / "a.parquet")["task"]["kind"] == "multiclass"
    assert prepare(tmp_path / "numbers", tmp_path / "a.parquet", task="regression")["task"]["kind"] == "regression"


@pytest.mark.parametrize("kind", [int, float])
def test_a_file_of_pandas_keeps_categories_of_numbers(kind: type, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Codes beside empty cells are floats in pandas, and would be read as sizes."""
    frame.assign(zip=frame["zip"].astype(kind).astype("category")).to_parquet(tmp_path / "a.parquet")
    assert names_of(prepare(tmp_path, tmp_path / "a.parquet"), "zip") == ["10115", "20095", "80331"]


def test_a_long_code_is_the_same_category_in_a_frame_and_in_its_parquet_file(frame: pd.DataFrame, tmp_path: Path) -> None:
    """A code such as 4012345678901 beside empty cells would be 4.012345678901e+12 in the file, a category of its own."""
    frame["zip"] = (frame["zip"] + 4e12).where(frame["x"] > 0.1).astype("category")
    frame.to_parquet(tmp_path / "a.parquet")
    frames.write(frames.to_arrow(frame)[0], tmp_path / "b.parquet")
    names = ["4000000010115", "4000000020095", "4000000080331"]
    for name in ("a", "b"):
        assert names_of(prepare(tmp_path / name, tmp_path / f"{name}.parquet"), "zip") == names


def test_a_category_of_32_bits_is_the_same_in_a_frame_and_in_its_parquet_file(frame: pd.DataFrame, tmp_path: Path) -> None:
    """0.1 of the file would be 0.10000000149011612 in the frame, and each count as empty where training had the other."""
    frame["zip"] = (frame["zip"] / 100).astype("float32").astype("category")
    frame.to_parquet(tmp_path / "a.parquet")
    frames.write(frames.to_arrow(frame)[0], tmp_path / "b.parquet")
    for name in ("a", "b"):
        assert names_of(prepare(tmp_path / name, tmp_path / f"{name}.parquet"), "zip") == ["101.15", "200.95", "803.31"]


def test_a_number_of_a_categorical_type_can_be_the_target(frame: pd.DataFrame, tmp_path: Path) -> None:
    """A target of a categorical type would not be one of two classes, or a weight of such a type would be refused."""
    frame["y"], frame["w"] = pd.Categorical(frame["y"] > 0.5), pd.Categorical(np.ones(NUM_ROWS))
    frames.write(frames.to_arrow(frame)[0], tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet", weight="w")
    assert (manifest["task"]["kind"], manifest["target"]["names"]) == ("binary", ["false", "true"])


def test_numbers_of_eight_digits_are_dates(frame: pd.DataFrame, tmp_path: Path) -> None:
    """20231231 and 20240101 would be 8,870 apart, and the weekday unknown."""
    days = pd.date_range("2022-03-01", periods=NUM_ROWS)
    frame["day"], frame["code"] = days.strftime("%Y%m%d").astype(int), 20240100 + np.arange(NUM_ROWS)
    frame.to_csv(tmp_path / "a.csv", index=False)
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    units = {feature["meaning"]: feature["unit"] for feature in manifest["features"]}
    assert units["day"].startswith("days since")
    assert (units["day: weekday"], units["code"]) == ("weekday", "above 20240100")
    assert "the column 'day' is read as dates that are written as 20240131" in manifest["notes"]
    frame.assign(day=frame["day"].astype(float)).to_parquet(tmp_path / "new.parquet")
    new_data.prepare(manifest, {"source": (str(tmp_path / "new.parquet"),), "out": str(tmp_path / "new")})
    expected = days.day_of_week.to_numpy() + 1
    (weekday,) = (feature["name"] for feature in manifest["features"] if feature.get("part") == "weekday")
    assert np.array_equal(forecast(tmp_path / "new")[weekday], expected)


@pytest.mark.parametrize("role", ["time", "weight"])
def test_the_time_and_the_weight_are_no_categories(role: str, tmp_path: Path) -> None:
    """The error would ask to write the dates 2024-01-31 as 2024-01-31, or each weight as a number."""
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 3, 31), eager=True)
    pl.DataFrame({"d": days, "w": range(91), "x": range(91), "y": [0, 1] * 45 + [0]}).write_csv(tmp_path / "a.csv")
    column = {"time": "d", "weight": "w"}[role]
    with pytest.raises(UserError, match=f"categorical={column} is the {role} too, which has no categories: leave it out of"):
        prepare(tmp_path, tmp_path / "a.csv", **{role: column, "id": column, "categorical": (column,)})
