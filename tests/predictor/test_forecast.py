"""The ranked forecast: one order, one probability for each product, and why."""

import csv
import dataclasses
import datetime
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prediction_files import REASONS, fit

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.predictor import forecast


def test_parquet_and_csv_hold_one_ranked_forecast(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The files would differ, the best product would not be first, or a title would stand beside another probability."""
    fit(files, prepared, tmp_path / "ensemble")
    table = pq.read_table(tmp_path / "ensemble/forecast.parquet")
    manifest = folders.read_manifest(prepared)
    assert table.schema.metadata == {b"week": manifest["last_week"].encode(), b"horizon_weeks": b"12", b"lacking": b"{}"}
    rows = table.to_pylist()
    assert [row["rank"] for row in rows] == list(range(1, manifest["splits"]["forecast"]["rows"] + 1))
    assert all(above["probability"] >= below["probability"] for above, below in itertools.pairwise(rows))
    assert rows[0]["probability"] > rows[-1]["probability"]
    products = open_table(prepared / "products").to_pylist()
    forecast = predictions.read(files / "clear.forecast.parquet")
    by_product = dict(zip(forecast.cluster.tolist(), forecast.prediction.tolist(), strict=True))
    number = {product["product_id"]: row for row, product in enumerate(products)}
    for row in rows:
        product = products[number[row["product_id"]]]
        assert (row["title"], row["category"]) == (product["title"], manifest["categories"][product["category"]])
        assert row["clear"] == by_product[number[row["product_id"]]]
        assert [(reason["feature"], reason["value"]) for reason in row["reasons"]] == [
            (reason["feature"], reason["value"]) for reason in REASONS
        ]
    with open(tmp_path / "ensemble/forecast.csv", newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    for row, line in zip(rows, lines, strict=True):
        assert [line["rank"], line["product_id"], line["title"]] == [str(row["rank"]), row["product_id"], row["title"] or ""]
        assert [float(line[name]) for name in ("probability", "clear", "vague")] == [
            row[name] for name in ("probability", "clear", "vague")
        ]
        assert line["why"] == "reviews_4w = 7"


@pytest.mark.parametrize(("value", "text"), [(9999.99, "10000"), (9999.4, "9999")])
def test_a_reason_has_four_digits_or_a_whole_number(
    value: float, text: str, copied: Path, prepared: Path, tmp_path: Path
) -> None:
    """A price of 9999.99 would be written as 1e+04."""
    clear = predictions.read(copied / "clear.forecast.parquet")
    reasons = [[{**REASONS[0], "value": value}] for _ in clear.row_id]
    (copied / "clear.forecast.parquet").unlink()
    predictions.write(copied / "clear.forecast.parquet", dataclasses.replace(clear, reasons=reasons))
    fit(copied, prepared, tmp_path / "ensemble")
    with open(tmp_path / "ensemble/forecast.csv", newline="", encoding="utf-8") as stream:
        assert {line["why"] for line in csv.DictReader(stream)} == {f"reviews_4w = {text}"}


def test_titles_of_any_kind_pass_through_the_csv(files: Path, prepared: Path, tmp_path: Path) -> None:
    """A comma, a quote or a line break in a title would move every column behind it."""
    strange = 'a "quoted", title;\nwith two lines – and ünïcode'
    products = open_table(prepared / "products")
    column = products.column_names.index("title")
    changed = products.set_column(column, "title", pa.array([strange] * products.num_rows, pa.large_string()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ensemble.recipes.hot_sellers.outputs.open_table", lambda folder: changed)
        fit(files, prepared, tmp_path / "ensemble")
    with open(tmp_path / "ensemble/forecast.csv", newline="", encoding="utf-8") as stream:
        assert {line["title"] for line in csv.DictReader(stream)} == {strange}


@pytest.mark.parametrize(
    ("since", "time"), [("1970-01-01", "2024-01-01 10:00"), ("2024-01-01", "2024-01-01 10:07"), ("1970-01-01", "2024-01-01")]
)
def test_a_time_is_shown_as_it_is_in_the_column(since: str, time: str) -> None:
    """The 32-bit float of 10:00 is that of 9:59, which no cell holds."""
    days = (datetime.datetime.fromisoformat(time) - datetime.datetime.fromisoformat(since)) / datetime.timedelta(days=1)
    assert forecast.value_as_text(float(np.float32(days)), {"unit": f"days since {since}"}) == time


def test_the_last_hours_of_the_year_9999_have_a_text() -> None:
    """9999-12-31 23:59, "for ever" in databases, is a day later as a 32-bit float: the report would not be written."""
    unit = {"unit": "days since 1970-01-01"}
    assert forecast.value_as_text(float(np.float32(2_932_896.99)), unit) == "9999-12-31 23:59"
    assert forecast.value_as_text(float(np.float32(-719_163.1)), unit) == "0001-01-01"


@pytest.mark.parametrize("unit", ["days since the last order", "days since 2024", "", "2024-01-01"])
def test_days_since_an_event_are_a_number(unit: str) -> None:
    """A feature of a user's recipe would end the fit with a traceback, after all members were trained."""
    assert forecast.value_as_text(12.0, {"unit": unit}) is None


def test_the_number_of_no_category_is_unknown() -> None:
    """Another program writes -1 for an unknown category, which would be shown as the last one; others would stop the fit."""
    shown = [forecast.value_as_text(value, {"values": ["red", "green"]}) for value in (0.0, 1.0, -1.0, 2.0, float("nan"))]
    assert shown == ["red", "green", "unknown", "unknown", "unknown"]
