"""The cells that count as empty, and the messages about them."""

import datetime
from pathlib import Path

import polars as pl
import pytest
from small_tables import prepare

from ensemble.recipes.table import missing


def test_two_texts_of_one_number_count_its_cells_once(tmp_path: Path) -> None:
    """The message would state twice as many empty cells as there are, or that no cell has one of the texts."""
    columns = {"x": [row if row % 4 else -999 for row in range(120)], "y": [0, 1] * 60}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    for marks in (("-999", "-999.0"), ("-999.0", "-999")):
        manifest = prepare(tmp_path, tmp_path / "a.parquet", missing=marks, overwrite=True)
        notes = [note for note in manifest["notes"] if "-999" in note]
        assert notes == [f"the column 'x' has 30 cells that count as empty: '{marks[0]}' (30)"]


@pytest.mark.parametrize("mark", ["-999.9", "1e20", "-999"])
def test_a_mark_is_found_in_32_bits(mark: str) -> None:
    """-999.9 of a column of 32-bit floats, which is -999.9000244140625, would be learned as a value, unlike in CSV."""
    values = pl.Series(["1.5", mark, "2.5"]).cast(pl.Float32).cast(pl.Float64)
    assert missing.in_values(values, [mark])[1] == {mark: 1}


@pytest.mark.parametrize(("mark", "other"), [("16777217", 16777216.0), ("1e-50", 0.0), ("1e300", float("inf"))])
def test_another_number_is_no_mark(mark: str, other: float) -> None:
    """16777216, 0 or infinity would count as empty, to which 32 bits round the mark."""
    assert missing.in_values(pl.Series([1.5, other]), [mark])[1] == {}


def test_more_marks_than_are_shown() -> None:
    """The message would show rare texts only, and look as if there were no others."""
    marks = {"a": 1, "b": 2, "c": 30, "d": 1_000}
    assert missing.notes("x", marks) == (
        "the column 'x' has 1,033 cells that count as empty: 'd' (1,000), 'c' (30), 'b' (2) and 1 more",
    )


def test_a_mark_with_a_utc_offset_is_converted_to_utc() -> None:
    """The mark would be compared with the times in UTC as if it had no offset, or one out of range would raise an error."""
    values = pl.Series([datetime.datetime(1899, 12, 31, 23), datetime.datetime(1900, 1, 1)])
    marks = ("1900-01-01T00:00:00+01:00", "0001-01-01T00:00:00+01:00")
    known, counts = missing.in_values(values, marks)
    assert (known.is_null().to_list(), counts) == ([True, False], {marks[0]: 1})


def test_a_placeholder_among_days_of_eight_digits_is_named(tmp_path: Path) -> None:
    """Because of 99991231, which SAP writes for no end, 20231231 and 20240101 would be 8,870 apart, without a message."""
    days = pl.date_range(pl.date(2023, 12, 1), pl.date(2024, 3, 31), eager=True).dt.strftime("%Y%m%d").to_list()
    ends = [day if row % 3 else "99991231" for row, day in enumerate(days)]
    pl.DataFrame({"end": ends, "x": range(len(ends)), "y": [0, 1] * (len(ends) // 2)}).write_csv(tmp_path / "a.csv")
    notes = prepare(tmp_path, tmp_path / "a.csv")["notes"]
    assert "20231202 looks like a date, unlike 99991231: add missing=[99991231] if that means an empty cell" in notes[-1]
    manifest = prepare(tmp_path, tmp_path / "a.csv", missing=("99991231",), overwrite=True)
    assert manifest["features"][0]["form"] == "%Y%m%d"


@pytest.mark.parametrize("mark", [r"\N", "<NA>", "NA"])
def test_the_nulls_of_databases_and_pandas_are_empty_cells(mark: str, tmp_path: Path) -> None:
    """A column of numbers with the null of MySQL or PostgreSQL would be categories."""
    rows = "".join(f"{mark if row % 4 == 0 else row}\t{row % 2}\n" for row in range(60))
    (tmp_path / "a.tsv").write_text(f"minutes\ty\n{rows}")
    manifest = prepare(tmp_path, tmp_path / "a.tsv")
    assert f"the column 'minutes' has 15 cells that count as empty: '{mark}' (15)" in manifest["notes"]
    assert [feature.get("categories") for feature in manifest["features"]] == [None]
