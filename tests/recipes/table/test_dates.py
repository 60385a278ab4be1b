"""Dates that are written as texts: each file of a table has a form of its own, or the user is asked."""

import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.series.string import StringNameSpace
from small_tables import prepare

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, sources
from ensemble.recipes.table.settings import PrepareConfig

ISO, DAY, MONTH, OPEN = (
    ["2024-01-31", "2024-02-01"],
    ["31/01/2024", "01/02/2024"],
    ["01/31/2024", "02/01/2024"],
    ["01/02/2024"],
)
RULES = PrepareConfig()
JANUARY_31, FEBRUARY_1 = datetime.datetime(2024, 1, 31), datetime.datetime(2024, 2, 1)


def files_of(folder: Path, *contents: list[str] | pl.Series) -> sources.Table:
    """A table of one file for each list of cells: CSV, or Parquet for a Series."""
    paths = []
    for number, values in enumerate(contents):
        paths.append(folder / f"{'abcdef'[number]}.csv")
        frame = pl.DataFrame({"x": values, "y": range(len(values))})
        frame.write_parquet(paths[-1]) if isinstance(values, pl.Series) else frame.write_csv(paths[-1])
    return sources.read(paths, Census())


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ((ISO, DAY), [JANUARY_31, FEBRUARY_1] * 2),
        ((DAY, MONTH), [JANUARY_31, FEBRUARY_1] * 2),
        ((ISO, ["31.01.2024 10:30"]), [JANUARY_31, FEBRUARY_1, datetime.datetime(2024, 1, 31, 10, 30)]),
        ((ISO, DAY, pl.Series([JANUARY_31.date()])), [*[JANUARY_31, FEBRUARY_1] * 2, JANUARY_31]),
        ((ISO, ["", "NA"], DAY), [JANUARY_31, FEBRUARY_1, None, None, JANUARY_31, FEBRUARY_1]),
        ((ISO, DAY, OPEN), [*[JANUARY_31, FEBRUARY_1] * 2, FEBRUARY_1]),
        ((ISO, ["05/05/2024"]), [JANUARY_31, FEBRUARY_1, datetime.datetime(2024, 5, 5)]),
        ((ISO * 999, ["31/01/2024", "01/02/2024"]), [*[JANUARY_31, FEBRUARY_1] * 1000]),
        ((ISO, ["31-Jan-2024", "01-Feb-2024"]), [JANUARY_31, FEBRUARY_1] * 2),
        ((["31 January 2024", "1 February 2024"], ["Jan 31, 2024"]), [JANUARY_31, FEBRUARY_1, JANUARY_31]),
        ((["Jan 31 2024", "Feb 01 2024"], ["January 31 2024 00:00"]), [JANUARY_31, FEBRUARY_1, JANUARY_31]),
        ((["January 31st, 2024", "February 1st, 2024"], ["Jan. 31, 2024"]), [JANUARY_31, FEBRUARY_1, JANUARY_31]),
        ((["31st of January 2024", "1st February 2024"], ["1st Feb 2024 00:00"]), [JANUARY_31, FEBRUARY_1, FEBRUARY_1]),
        ((["31/01/24", "01/02/2024 00:00"], ["01-Feb-24"]), [JANUARY_31, FEBRUARY_1, FEBRUARY_1]),
        ((["01/31/24", "2/1/24"], ["1/31/70"]), [JANUARY_31, FEBRUARY_1, datetime.datetime(1970, 1, 31)]),
        ((["2024-02", "2024-03"], ["Feb-2024"]), [FEBRUARY_1, datetime.datetime(2024, 3, 1), FEBRUARY_1]),
        ((["31/01/2024 01:30 PM"],), [datetime.datetime(2024, 1, 31, 13, 30)]),
        ((["20240131T000000", "20240201T000000Z"],), [JANUARY_31, FEBRUARY_1]),
        ((["31JAN2024", "01FEB2024"], ["31JAN2024:00:00:00", "1feb2024 00:00:00.000"]), [JANUARY_31, FEBRUARY_1] * 2),
        ((["2024-01-31T08:30-05:00", "2024-01-31 13:30Z"],), [datetime.datetime(2024, 1, 31, 13, 30)] * 2),
        ((DAY * 999, ["01/31/2024", "02/01/2024"]), [*[JANUARY_31, FEBRUARY_1] * 1000]),
        ((["31/01/2024"] * 1001 + ["01/02/2024 00:00"],), [*[JANUARY_31] * 1001, FEBRUARY_1]),
        ((["2024-01-31", "2024-02-01T09:00:00+09:00", "2024-02-01 00:00"],), [JANUARY_31, FEBRUARY_1, FEBRUARY_1]),
        ((["2024-01-31 00:00:00 UTC", "2024-02-01 00:00:00.000000 UTC"],), [JANUARY_31, FEBRUARY_1]),
        ((["2024-01-31 01:00:00+01", "2024-01-31 19:00:00.00-05"],), [JANUARY_31, FEBRUARY_1]),
    ],
    ids=["iso, day", "day, month", "with a time", "with Parquet", "an empty file", "decided by another file", "the same",
         "a few after many", "names of months", "long names of months", "without a comma", "ordinals", "ordinals first",
         "two digits of the year",
         "and the month first", "months", "AM and PM", "without marks", "SAS and Stata", "an offset without seconds",
         "a few of another order after many", "a time after many", "with and without an offset", "BigQuery", "PostgreSQL"],
)  # fmt: skip
def test_each_file_has_a_form_of_its_own(tmp_path: Path, contents: Any, expected: list[Any]) -> None:
    """Dates would be left out as texts, or 1 February would be read as 2 January in a small file beside a large one."""
    column = cells.read(files_of(tmp_path, *contents), "x", PrepareConfig())
    assert (column.kind, column.values.to_list()) == ("date", expected)


def test_dates_of_parquet_beside_texts_are_not_read_again(tmp_path: Path) -> None:
    """As texts, the placeholder 0001-01-01 of Parquet would be no date and the column text, or 2^62 end in a traceback."""
    known = [datetime.datetime(1, 1, 1), JANUARY_31]
    column = cells.read(files_of(tmp_path, DAY, pl.Series(known).dt.replace_time_zone("UTC")), "x", PrepareConfig())
    assert (column.kind, column.values.to_list()) == ("date", [JANUARY_31, FEBRUARY_1, *known])
    assert (column.form, len(column.notes)) == ("%d/%m/%Y|%z", 1)
    far = pl.Series([2**62], dtype=pl.Datetime("ms"))
    column = cells.read(files_of(tmp_path, DAY * 99, far), "x", PrepareConfig())
    assert column.values.to_list() == [*[JANUARY_31, FEBRUARY_1] * 99, None]


@pytest.mark.parametrize(
    "early", [["0001-01-01", "0900-02-03"], ["0001-01-01 00:00:00", "0900-02-03 00:00:00"], ["01/01/0001", "03/02/0900"]]
)
def test_early_years_are_the_same_in_texts_and_parquet(early: list[str], tmp_path: Path) -> None:
    """A CSV with the placeholder 0001-01-01 would be text, and the same table in Parquet would have dates."""
    expected = [datetime.datetime(1, 1, 1), datetime.datetime(900, 2, 3)]
    column = cells.read(files_of(tmp_path, early + DAY if "/" in early[0] else early, pl.Series(expected)), "x", RULES)
    assert (column.kind, column.values.to_list()[:2], column.values.to_list()[-2:]) == ("date", expected, expected)
    assert cells.read(files_of(tmp_path, ["31/01/24", "01/02/24"]), "x", RULES).values.to_list() == [JANUARY_31, FEBRUARY_1]


def test_months_have_no_weekday(tmp_path: Path) -> None:
    """Trees would learn the weekdays of the first days of months, which mean nothing, for dates such as 2024-01."""
    months = [f"{2020 + row // 12}-{row % 12 + 1:02}" for row in range(60)]
    manifest = prepare(tmp_path, files_of(tmp_path, months).files[0], task="regression")
    units = [feature["unit"] for feature in manifest["features"]]
    assert units == ["days since 1970-01-01", "month", "day of the year"]


def test_a_version_is_no_date(tmp_path: Path) -> None:
    """12.4.1 would be 12 April 2001."""
    assert cells.read(files_of(tmp_path, ["12.4.1", "13.1.2", "11.3.1"]), "x", PrepareConfig()).kind == "text"


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (
            (ISO, OPEN),
            "the column 'x' holds dates such as '01/02/2024' in b.csv, written as day/month/year or as month/day/year: add "
            "dates=day_first or dates=month_first, or 'drop=[x]'",
        ),
        (
            (DAY, MONTH, OPEN),
            "the column 'x' holds dates such as '01/02/2024' in c.csv, written as day/month/year or as month/day/year; "
            "other files have both orders of day and month: write the dates of that file as year-month-day",
        ),
    ],
)
def test_a_file_that_leaves_it_open_is_asked_about(tmp_path: Path, contents: Any, sentence: str) -> None:
    """1 February would be read as 2 January, without a message."""
    with pytest.raises(UserError) as error:
        cells.read(files_of(tmp_path, *contents), "x", PrepareConfig())
    assert str(error.value) == sentence


def test_the_setting_decides_what_is_open(tmp_path: Path) -> None:
    """The advice could not be followed."""
    column = cells.read(files_of(tmp_path, ISO, OPEN), "x", PrepareConfig(dates="month_first"))
    assert column.values[2] == datetime.datetime(2024, 1, 2)


def test_several_forms_are_printed(tmp_path: Path) -> None:
    """The user could not notice that the dates of one file were read in the wrong form."""
    assert cells.read(files_of(tmp_path, ISO, ISO), "x", PrepareConfig()).notes == ()
    (note,) = cells.read(files_of(tmp_path, ISO, DAY, DAY, DAY, DAY), "x", PrepareConfig()).notes
    assert note == (
        "the column 'x' is read as dates that are written as year-month-day in a.csv and as day/month/year in b.csv, c.csv, "
        "d.csv and 1 more"
    )
    for contents, times in (
        (([*ISO, "2024-02-01T10:00:00Z"],), "or year-month-dayThour:minute:second and UTC offset"),
        ((ISO, ["2024-02-01T10:00:00Z"]), "in a.csv and as year-month-dayThour:minute:second and UTC offset in b.csv"),
    ):
        (note,) = cells.read(files_of(tmp_path, *contents), "x", PrepareConfig()).notes
        assert f"year-month-day {times}; a date without a time is midnight, and a time without an offset is in UTC" in note


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_dates_of_another_time_zone_get_a_message(tmp_path: Path, zone: str) -> None:
    """Midnight in Berlin would be the day before, in training or in new rows alone, without a message."""
    values = pl.Series([JANUARY_31, FEBRUARY_1]).dt.replace_time_zone(zone)
    note = ("the column 'x' has times of the zone Europe/Berlin, which are converted to UTC",)
    unlike = ("the column 'x' has times with a UTC offset, unlike in training: they are converted to UTC",)
    frame = files_of(tmp_path, values)
    column = cells.read(frame, "x", PrepareConfig())
    assert column.notes == (() if zone == "UTC" else note)
    assert cells.read_as(frame, "x", "date", "", PrepareConfig()).notes == (unlike if zone == "UTC" else note)
    assert cells.read_as(frame, "x", "date", column.form, PrepareConfig()).notes == (() if zone == "UTC" else note)


def test_marks_of_missing_values_are_dates_too(tmp_path: Path) -> None:
    """The placeholder 1900-01-01 would count as empty in CSV only, and be a date of 1900 in Parquet and DataFrames."""
    config = PrepareConfig(missing=("1900-01-01",))
    frame = files_of(tmp_path, pl.Series([datetime.datetime(1900, 1, 1), FEBRUARY_1]))
    column = cells.read(frame, "x", config)
    assert (column.values.to_list(), column.marks) == ([None, FEBRUARY_1], {"1900-01-01": 1})
    new = cells.read_as(frame, "x", "date", "", config)
    assert (new.values.to_list(), new.notes) == ([None, FEBRUARY_1], column.notes)
    assert "1 cell that counts as empty: '1900-01-01' (1)" in new.notes[0]


@pytest.mark.parametrize("text", ["1900-01-01 00:00:00", "01/01/1900"])
def test_a_placeholder_is_empty_in_any_notation(text: str, tmp_path: Path) -> None:
    """pandas writes midnight to CSV, so the placeholder of a Parquet file would be the year 1900 in the same rows as CSV."""
    config = PrepareConfig(missing=("1900-01-01",))
    frame = files_of(tmp_path, [text, text.replace("1900", "2024")])
    column = cells.read(frame, "x", config)
    assert (column.values.is_null().to_list(), column.marks) == ([True, False], {"1900-01-01": 1})
    new = cells.read_as(frame, "x", "date", column.form, config)
    assert (new.values.is_null().to_list(), new.marks) == ([True, False], {"1900-01-01": 1})


@pytest.mark.parametrize(("form", "is_noted"), [("", True), ("%Y-%m-%d", True), ("%Y-%m-%dT%H:%M:%S%.f%z", False)])
def test_offsets_of_new_rows_alone_get_a_message(tmp_path: Path, form: str, is_noted: bool) -> None:
    """A local midnight with its offset would be a day earlier than the same day in training, without a message."""
    new = cells.read_as(files_of(tmp_path, ["2024-02-01T00:00:00+02:00"]), "x", "date", form, PrepareConfig())
    note = "the column 'x' has times with a UTC offset, unlike in training: they are converted to UTC"
    assert new.notes == ((note,) if is_noted else ())


@pytest.mark.parametrize(("form", "is_noted"), [("", False), ("%Y-%m-%dT%H:%M:%S%.f%z", True), ("%z", True)])
def test_times_of_new_rows_without_the_offset_of_training_get_a_message(tmp_path: Path, form: str, is_noted: bool) -> None:
    """A local time would be another hour of the day than the same time in training, without a message."""
    new = cells.read_as(files_of(tmp_path, ["2024-02-01 08:00", "2024-02-01 14:00"]), "x", "date", form, PrepareConfig())
    note = "the column 'x' has times without a UTC offset, unlike in training: they are read as times in UTC"
    assert (note in new.notes) == is_noted
    empty = cells.read_as(files_of(tmp_path, ["", ""]), "x", "date", form, PrepareConfig())
    assert empty.notes == ()


def test_a_time_zone_of_parquet_is_part_of_the_form(tmp_path: Path) -> None:
    """New rows without it would be read as times in UTC, without a message."""
    values = pl.Series([JANUARY_31, FEBRUARY_1]).dt.replace_time_zone("Asia/Karachi")
    assert cells.read(files_of(tmp_path, values), "x", PrepareConfig()).form == "%z"


@pytest.mark.parametrize(
    "shown",
    ["99-01-31", "2024-01-31T10:00:00+02:00[Europe/Berlin]", "Wed, 31 Jan 2024 10:00:00 GMT",
     "31/Jan/2024:10:00:00 +0000", "31. Jan 2024", "2024-01-31 10h00", "63 kg", "3 EUR", "3.5k"],
)  # fmt: skip
def test_what_looks_like_a_number_or_a_date_gets_a_message(tmp_path: Path, shown: str) -> None:
    """99-01-31 would be read as a date of the year 99, or a price would be left out as an id, without a message."""
    column = cells.read(files_of(tmp_path, [shown, shown.replace("3", "2"), "4 lb"]), "x", PrepareConfig())
    assert column.kind == "text"
    assert column.notes[0].startswith(f"the column 'x' is read as text, such as '{shown}': if they are numbers or dates")


def test_texts_stay_texts(tmp_path: Path) -> None:
    """A column of texts would be read as dates, or the user would be asked about their form, because of one file."""
    assert cells.read(files_of(tmp_path, OPEN, ["soon", "later"]), "x", PrepareConfig()).kind == "text"


@pytest.mark.parametrize(
    ("training", "new", "expected"),
    [
        ((ISO, DAY), (OPEN,), [FEBRUARY_1]),
        ((DAY,), (["01/02/2024 00:00"],), [FEBRUARY_1]),
        ((DAY,), (MONTH, DAY), [JANUARY_31, FEBRUARY_1] * 2),
        ((ISO,), (DAY, OPEN), [JANUARY_31, FEBRUARY_1, FEBRUARY_1]),
        ((ISO,), (DAY, ["20240131"]), [JANUARY_31, FEBRUARY_1, JANUARY_31]),
        ((ISO,), (["2024-01-31", "20240131"],), [JANUARY_31, None]),
        ((ISO,), (ISO, OPEN), "in b.csv, written as day/month/year or as month/day/year, and training had neither"),
        ((DAY, MONTH), (OPEN,), "or as month/day/year; other files have both orders"),
        ((DAY,), (MONTH, OPEN), "in b.csv, written as day/month/year or as month/day/year; other files have both orders"),
    ],
)
def test_new_rows_follow_the_same_rule(tmp_path: Path, training: Any, new: Any, expected: Any) -> None:
    """New rows would be read as other days than the same rows in training."""
    form = cells.read(files_of(tmp_path, *training), "x", PrepareConfig()).form
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            cells.read_as(files_of(tmp_path, *new), "x", "date", form, PrepareConfig())
        return
    assert cells.read_as(files_of(tmp_path, *new), "x", "date", form, PrepareConfig()).values.to_list() == expected


def test_a_table_of_two_forms_is_prepared(tmp_path: Path) -> None:
    """The splits could not follow each other in time."""
    day = [datetime.date(2024, 1, 1) + datetime.timedelta(number) for number in range(120)]
    for file, form in (("a", "%Y-%m-%d"), ("b", "%d.%m.%Y")):
        half = day[:60] if file == "a" else day[60:]
        frame = pl.DataFrame({"t": [one.strftime(form) for one in half], "x": range(60), "y": [0, 1] * 30})
        frame.write_csv(tmp_path / f"{file}.csv")
    split = prepare(tmp_path, f"{tmp_path}/*.csv", time="t")["splits"]["train"]
    assert (split["from"], split["to"]) == ("2024-01-01", "2024-04-29")


def test_forms_with_other_separators_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file with 2020-03-05T17:00:00, a few forms are tried, not all 215: hundreds of daily files took minutes."""
    tried = []
    parse = StringNameSpace.to_datetime
    monkeypatch.setattr(StringNameSpace, "to_datetime", lambda *a, **k: tried.append(a[1]) or parse(*a, **k))
    table = files_of(tmp_path, ["2020-03-05T17:00:00", "2020-03-06T17:00:00"])
    column = cells.read(table, "x", RULES)
    assert column.values.to_list() == [datetime.datetime(2020, 3, day, 17) for day in (5, 6)]
    assert 0 < len(tried) < 60
