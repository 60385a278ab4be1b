"""Numbers with a unit and times of day, in training, in new rows and in requests."""

import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from small_tables import prepare

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, number_units, requests, sources
from ensemble.recipes.table.settings import PrepareConfig

RULES = PrepareConfig()


def table_of(folder: Path, texts: list[str]) -> sources.Table:
    pl.DataFrame({"x": texts, "y": range(len(texts))}).write_csv(folder / "a.csv")
    return sources.read([folder / "a.csv"], Census())


@pytest.mark.parametrize(
    ("texts", "numbers", "form"),
    [
        (["243 700 236", "12", "-1 234", "1 243 700 236"], [243700236.0, 12.0, -1234.0, 1243700236.0], ""),
        (["1 234,5", "−12 345,25", "3,5"], [1234.5, -12345.25, 3.5], "1.234,5"),
        (["1\u00a0234 km", "12\u202f345.5 km", "3 km"], [1234.0, 12345.5, 3.0], "1234.5 km"),
        (["CHF 1'234.50", "CHF 1’234’567", "CHF 3"], [1234.5, 1234567.0, 3.0], "CHF 1234.5"),
        (["1 200,50 EUR", "900 EUR"], [1200.5, 900.0], "1.234,5 EUR"),
        (["12 500 kr", "14 500 kr"], [12500.0, 14500.0], "1234.5 kr"),
        (["9 500", "14 500"], [9500.0, 14500.0], ""),
        (["2 345,50", "9 800,00"], [2345.5, 9800.0], "1.234,5"),
        (["(1 234)", "5"], [-1234.0, 5.0], ""),
    ],
)
def test_blanks_and_apostrophes_separate_thousands(
    tmp_path: Path, texts: list[str], numbers: list[float], form: str
) -> None:
    """A population or a price, as French, Swiss and Swedish programs write them, would be a category or be left out."""
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert (column.kind, column.values.to_list(), column.form) == ("number", numbers, form)
    assert column.notes[-1] == f"the column 'x' is read as numbers, so that '{texts[0]}' is {numbers[0]:.15g}"
    new = cells.read_as(table_of(tmp_path, texts[:1]), "x", "number", form, RULES)
    assert new.values.to_list() == numbers[:1]
    like = {"config": {"missing": []}, "features": [{"name": "x", "column": "x", "unit": "", "form": form}]}
    assert requests.problem(requests.Request.model_validate({"rows": [{"x": texts[0]}]}), like) is None


@pytest.mark.parametrize(
    "texts",
    [
        ["640 480", "800 600"],
        [*["640 480", "800 600"] * 60, "unknown"],
        ["12 345", "1 2345", "3"],
        ["030 123 456", "040 123 458"],
        ["1 234", "a"],
    ],
)
def test_pairs_and_telephone_numbers_stay_texts(tmp_path: Path, texts: list[str]) -> None:
    """The width and the height of a screen would be one number."""
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert (column.kind, column.values.to_list()) == ("text", texts)


@pytest.mark.parametrize(
    ("texts", "numbers", "form"),
    [
        (["74 bhp", "98.5bhp", ""], [74.0, 98.5, None], "1234.5 bhp"),
        (["17% off", "9% off", "-5 % off"], [17.0, 9.0, -5.0], "1234.5% off"),
        (["$1,200", "-$3.5", "$-4", "0"], [1200.0, -3.5, -4.0, 0.0], "$1,234.5"),
        (["1.200,50 €", "7 €"], [1200.5, 7.0], "1.234,5 €"),
        (["EUR 12", "EUR 3"], [12.0, 3.0], "EUR 1234.5"),
        (["R$ 10,50", "R$ 1.200,00"], [10.5, 1200.0], "R$1.234,5"),
        (["US$1,200", "US$3.5"], [1200.0, 3.5], "US$1,234.5"),
        (["kr 10", "kr 3.5"], [10.0, 3.5], "kr1234.5"),
        (["1 day", "2 days", "5 days"], [1.0, 2.0, 5.0], "1234.5 days"),
        (["1 year", "1.5 years"], [1.0, 1.5], "1234.5 year"),
        (["1.200,50\u00a0€", "7 €", "8\u202f€"], [1200.5, 7.0, 8.0], "1.234,5 €"),
        (["US$\u00a05\u202fM", "US$3K"], [5e6, 3e3], "US$1234.5 with K, M or B"),
        (["50#", "60 #", "-5#"], [50.0, 60.0, -5.0], "1234.5#"),
        (["1,000,000+", "5+"], [1e6, 5.0], "1,234.5+"),
        (["$56.7M", "$537K", "-$1.5 bn", "0"], [56.7e6, 537e3, -1.5e9, 0.0], "$1234.5 with K, M or B"),
        (["1,5 M", "12 k", "900", "-3"], [1.5e6, 12e3, 900.0, -3.0], "1.234,5 with K, M or B"),
        (["1.2B", "3K", "2B"], [1.2e9, 3e3, 2e9], "1234.5 with K, M or B"),
        (["£5m", "£3k"], [5e6, 3e3], "£1234.5 with K, M or B"),
        (["13:45", "00:30:36"], [13.75, 0.51], number_units.WITH_SECONDS),
        (["13:45", "130:00"], [13.75, 130.0], number_units.LONG),
        (["-0:30", "−1:30", "1:15"], [-0.5, -1.5, 1.25], "13:45, in hours"),
        (["16:48", "1:31:12", "59:24"], [0.28, 1.52, 0.99], number_units.DURATION),
        (["2 days 13:45:00", "-1 days +23:30:00", "1 day, 2:15:00"], [61.75, -0.5, 26.25], "13:45:00, in hours"),
        (["12:00\u202fAM", "12:30 PM", "1:15 pm"], [0.0, 12.5, 13.25], "13:45, in hours"),
    ],
)
def test_numbers_with_one_unit_are_numbers(tmp_path: Path, texts: list[str], numbers: list[float], form: str) -> None:
    """A power or a price would be a category, or be left out as an id."""
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert (column.kind, column.values.to_list(), column.form) == ("number", numbers, form)
    assert column.notes == (f"the column 'x' is read as numbers that are written as {form}",)
    new = cells.read_as(table_of(tmp_path, texts), "x", "number", form, RULES)
    assert new.values.to_list() == numbers


@pytest.mark.parametrize(
    ("texts", "numbers", "form"),
    [
        (["($9.50)", "$13.00"], [-9.5, 13.0], "$1234.5"),
        (["(6.7%)", "5%"], [-6.7, 5.0], "1234.5%"),
        (["(1.200,50\u00a0€)", "7 €"], [-1200.5, 7.0], "1.234,5 €"),
        (["$(9.50)", "$13.00"], [-9.5, 13.0], "$1234.5"),
        (["$ (1,200.50)", "$ 13.00"], [-1200.5, 13.0], "$1,234.5"),
        (["−5 °C", "12 °C"], [-5.0, 12.0], "1234.5 °C"),
        (["−€5.50", "€7"], [-5.5, 7.0], "€1234.5"),
        (["−5.2", "−0.4"], [-5.2, -0.4], ""),
        (["−5 °C", "−3 °C"], [-5.0, -3.0], "1234.5 °C"),
        (["($9.50)", "($3)"], [-9.5, -3.0], "$1234.5"),
    ],
)
def test_negative_numbers_may_have_a_unit(texts: list[str], numbers: list[float], form: str, tmp_path: Path) -> None:
    """A column of amounts would be left out as ids."""
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert (column.kind, column.values.to_list(), column.form) == ("number", numbers, form)
    assert f"so that '{texts[0]}' is negative" in column.notes[-1]
    assert cells.read_as(table_of(tmp_path, texts), "x", "number", form, RULES).values.to_list() == numbers


@pytest.mark.parametrize(
    "texts",
    [
        ["Mon Jan 19 04:44:54 2015", "Tue Feb  3 10:00:00 2015"],
        ["2007-Q2", "2008-Q1"],
        ["Q2 2007", "Q1 2008"],
        ["3h 8m", "1h 12m"],
        ["300 MB", "1.2 GB"],
        ["$5M", "3K"],
        ["1 500 g", "2 kg"],
        ["$ -", "$7.50"],
        ["1 20,50 EUR", "900 EUR"],
        ["2007-W05", "2008-W52"],
        ["2007q2", "2008q1"],
        ["1. Mai 2024", "12. März 2024"],
        ["85 m2", "120 m2"],
        ["45.3° N", "12° S"],
        ["0.12D+01", "-0.5D-02"],
        ["Fri Jan. 5, 2024", "Sat Feb. 17th, 2024"],
        ["1939, May", "1986, October"],
        ["POINT (-73.88 40.66)", "POINT (-73.76 40.7)"],
        ["R+15.2", "D +3"],
    ],
)
def test_other_numbers_and_dates_are_texts_with_a_message(texts: list[str], tmp_path: Path) -> None:
    """A column of sizes or times would become categories without a message."""
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert column.kind == "text"
    assert column.notes[0].startswith(f"the column 'x' is read as text, such as '{texts[0]}'")


def test_numbers_of_two_units_are_texts_with_a_message(tmp_path: Path) -> None:
    """The fuel consumption of 8,000 cars, 88 of which drive on gas, would become 393 categories without a message."""
    texts = [f"{number / 10} kmpl" for number in range(150, 240)] + ["17.3 km/kg", "26.2 km/kg"]
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert column.kind == "text"
    assert column.notes[0].startswith(
        "the column 'x' is read as text, such as '15.0 kmpl', unlike '17.3 km/kg': if they are"
    )
    texts[:20] = ["unknown"] * 20
    assert not cells.read(table_of(tmp_path, texts), "x", RULES).notes


def test_letters_of_a_sorted_table_are_found_after_its_first_cells(tmp_path: Path) -> None:
    """Two thousand values in millions, then those in thousands: the column would be a text."""
    texts = [f"€{number}M" for number in range(2000, 0, -1)] + ["€900K"]
    column = cells.read(table_of(tmp_path, texts), "x", RULES)
    assert (column.kind, column.values.to_list()[-2:]) == ("number", [1e6, 9e5])


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([10142018, 8012016, 12312017], "10142018 looks like a date: if it is one, write it as 2018-10-14"),
        ([31122017, 1022018, 15032018], "31122017 looks like a date: if it is one, write it as 2017-12-31"),
        ([1022018, 3042018, 5062018], "01022018 looks like a date: if it is one, write it as year-month-day"),
        ([10142018, 8012016, 13312017], ""),
        ([10142018, 8012016, 12319017], ""),
        ([10142018, 10142018, 10142018], ""),
        ([20240131, 0, 20240229, 20240301], "20240131 looks like a date, unlike 0: add missing=[0] if that means an empty"),
        ([20240131, 0, 20240229, 5], ""),
        ([20240131, 20240229, 20240301, *range(4)], ""),
        ([20240131, 20240229, 20240301, 1e30], "unlike 1000000000000000019884624838656"),
        ([12.2020, 1.2021, 10.2021], "12.2020 looks like a month: if it is one, write it as 2020-12"),
        ([12.2020, 13.2021, 10.2021], ""),
        ([12.2020, 1.2021, 10.25], ""),
        ([1.2, 2.2, 3.2], ""),
    ],
)
def test_numbers_that_look_like_dates_have_a_message(numbers: list[float], shown: str, tmp_path: Path) -> None:
    """The order of dates of several years would be wrong, without a message, or the message would name the wrong day."""
    column = cells.days(cells.read(table_of(tmp_path, list(map(str, numbers))), "x", RULES))
    assert (column.kind, bool(column.notes)) == ("number", bool(shown))
    assert shown in "".join(column.notes)


@pytest.mark.parametrize("decimal", [".", ","])
def test_the_hours_of_times_have_a_decimal_point(decimal: str, tmp_path: Path) -> None:
    """With decimal=, for another column, 9:07:30 would be 9125 hours, and 9:30 a text."""
    config, texts = PrepareConfig(decimal=decimal), ["9:07:30", "10:37:30"]
    table = table_of(tmp_path, texts)
    column = cells.read(table, "x", config)
    new = cells.read_as(table, "x", "number", column.form, config)
    assert (column.form, column.values.to_list(), new.values.to_list()) == (
        number_units.WITH_SECONDS,
        *[[9.125, 10.625]] * 2,
    )
    assert cells.read(table_of(tmp_path, ["9:30", "10:00"]), "x", config).values.to_list() == [9.5, 10.0]


@pytest.mark.parametrize(
    "texts",
    [
        ["74 bhp", "98 kW"],
        ["74 bhp", "98"],
        ["900", "12.8K"],
        ["$5M", "3K"],
        ["5M", "3K", "2 kg"],
        ["100B", "4K", "12M"],
        ["5m", "3k", "2m"],
        ["OUT049", "OUT010"],
        ["007A", "008A"],
        ["A12", "A13"],
        ["1. Male", "2. Male"],
        ["4.0.3 and up", "5.0.1 and up"],
        ["45-54", "55-64"],
        ["10:00", "1 pm"],
        ["5more", "more"],
        [*["0_no"] * 199, "1_yes"],
    ],
)
def test_several_units_and_codes_are_texts(tmp_path: Path, texts: list[str]) -> None:
    """74 horsepower would be less than 98 kilowatts, or a code would be a size."""
    assert cells.read(table_of(tmp_path, texts), "x", RULES).kind == "text"


def test_an_ambiguous_number_with_a_unit_is_a_text_with_a_message(tmp_path: Path) -> None:
    """$1,234 is 1234 or 1.234, and a fit would stop because of a column that may not matter."""
    column = cells.read(table_of(tmp_path, ["$1,234", "$9,000"]), "x", RULES)
    assert column.kind == "text"
    assert "written as 1,234.5 or as 1.234,5: it is read as text; add decimal=." in column.notes[0]
    assert cells.read(table_of(tmp_path, ["$1,234"]), "x", PrepareConfig(decimal=".")).values.to_list() == [1234.0]


def test_thousands_separated_by_a_comma_may_have_a_unit(tmp_path: Path) -> None:
    """$1,200K beside $2.5M would be 1,200, as if its comma were a decimal one."""
    config = PrepareConfig()
    frame = table_of(tmp_path, ["$1,200K", "$2.5M", "$537K"])
    column = cells.read(frame, "x", config)
    assert column.values.to_list() == [1_200_000, 2_500_000, 537_000]
    assert cells.read_as(frame, "x", "number", column.form, config).values.to_list() == column.values.to_list()
    ambiguous = cells.read(table_of(tmp_path, ["$1,200K", "$2M", "$537K"]), "x", config)
    assert ambiguous.values.dtype == pl.String
    assert "decimal=" in ambiguous.notes[0]
    point = cells.read(table_of(tmp_path, ["$1,200K", "$2M", "$537K"]), "x", PrepareConfig(decimal="."))
    assert point.values.to_list() == [1_200_000, 2_000_000, 537_000]


def test_new_rows_may_leave_out_the_unit_but_not_change_it(tmp_path: Path) -> None:
    """Kilowatts would be horsepower, or 900 beside 12.8K would be 900K, without a message."""
    new = cells.read_as(table_of(tmp_path, ["74 bhp", "98", "98 kW", "0"]), "x", "number", "1234.5 bhp", RULES)
    assert new.values.to_list() == [74.0, None, None, 0.0]
    assert new.notes == (
        "the column 'x' has cells that are not numbers and count as empty (2): '98' (a.csv:3), '98 kW' (a.csv:4)",
    )
    note = "the column 'x' has numbers without the unit of training: they are read as 1234.5 bhp"
    for rows in (["74", "98", "0"], [74, 98, 0]):
        if isinstance(rows[0], int):
            pl.DataFrame({"x": rows, "y": range(3)}).write_parquet(tmp_path / "a.parquet")
            table = sources.read([tmp_path / "a.parquet"], Census())
        else:
            table = table_of(tmp_path, rows)
        new = cells.read_as(table, "x", "number", "1234.5 bhp", RULES)
        assert (new.values.to_list(), new.notes) == ([74.0, 98.0, 0.0], (note,))
    with pytest.raises(UserError, match=r"held numbers in training, but has none now: '98 kW'"):
        cells.read_as(table_of(tmp_path, ["98 kW", "7 kW"]), "x", "number", "1234.5 bhp", RULES)


def test_numbers_of_parquet_have_no_unit(tmp_path: Path) -> None:
    """5 % in one file and 0.05 in another, the same fraction, would be 5 and 0.05."""
    pl.DataFrame({"x": [f"{number} %" for number in range(1, 61)], "y": range(60)}).write_csv(tmp_path / "a.csv")
    pl.DataFrame({"x": [0.05], "y": [1]}).write_parquet(tmp_path / "b.parquet")
    column = cells.read(sources.read([tmp_path / "a.csv", tmp_path / "b.parquet"], Census()), "x", RULES)
    assert column.kind == "text"
    assert "is read as text" in column.notes[0]


def test_a_target_with_a_unit(tmp_path: Path) -> None:
    """A price would be refused as too many classes, or a few sizes would be classes without their unit."""
    rows = [(f"${number},000.00", ("64 GB", "128 GB")[number % 2], number) for number in range(1, 121)]
    pl.DataFrame(rows, schema=["price", "disk", "x"], orient="row").write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, tmp_path / "a.csv", target="price")["task"]["kind"] == "regression"
    manifest = prepare(tmp_path, tmp_path / "a.csv", target="disk", overwrite=True)
    assert manifest["target"]["names"] == ["128 GB", "64 GB"]


@pytest.mark.parametrize(
    ("texts", "metric", "task"),
    [
        ([f"{number} €" for number in range(10, 107)], "", "regression"),
        (["5 €", "9 €", "12 €"] * 40, "mean_absolute_error", "regression"),
        (["05", *map(str, range(6, 60))] * 3, "", "regression"),
        ([f"{number:02}" for number in range(1, 13)] * 10, "", "multiclass"),
    ],
)
def test_many_numbers_with_a_unit_are_no_classes(tmp_path: Path, texts: list[str], metric: str, task: str) -> None:
    """A rent of 97 different values would have 97 classes, and an error of a regression would be refused as its metric."""
    pl.DataFrame({"x": range(len(texts)), "y": texts}).write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, tmp_path / "a.csv", target="y", metric=metric)["task"]["kind"] == task


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([f"${number},000" for number in range(10, 60)], "such as '10,000', written as 1,234.5 or as 1.234,5"),
        ([*map(str, range(18, 67)), "unknown"], "since 12 of 600 cells are not numbers: 'unknown'"),
    ],
)
def test_many_texts_of_which_most_are_numbers_are_no_classes(tmp_path: Path, texts: list[str], why: str) -> None:
    """A model of 50 classes would be fitted to prices, or to ages of which 2 % are unknown."""
    pl.DataFrame({"x": range(600), "y": texts * 12}).write_csv(tmp_path / "a.csv")
    with pytest.raises(UserError, match=f"50 different texts, most of which are numbers: .* task=multiclass .*{why}"):
        prepare(tmp_path, tmp_path / "a.csv")
    assert len(prepare(tmp_path, tmp_path / "a.csv", task="multiclass")["target"]["names"]) == 50
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text().replace("unknown", "NA"))
    if "unknown" in texts:
        assert prepare(tmp_path, tmp_path / "a.csv", missing=("NA",), overwrite=True)["task"]["kind"] == "regression"


@pytest.mark.parametrize("form", ["{}-{}", "{}.{}.1"])
def test_ranges_and_codes_may_be_classes(tmp_path: Path, form: str) -> None:
    """Groups of ages such as 20-24 would be refused as numbers."""
    texts = [form.format(5 * number, 5 * number + 4) for number in range(12)]
    pl.DataFrame({"x": range(120), "y": texts * 10}).write_csv(tmp_path / "a.csv")
    assert len(prepare(tmp_path, tmp_path / "a.csv")["task"]["classes"]) == 12


def test_classes_that_rarely_repeat_are_refused(tmp_path: Path) -> None:
    """Numbers of an unknown form would be as many classes as rows."""
    texts = [f"{number} 373" for number in range(10, 100)]
    pl.DataFrame({"x": range(90), "y": texts}).write_csv(tmp_path / "a.csv")
    with pytest.raises(UserError, match="target=y has 90 different texts in 90 rows, too many for classes"):
        prepare(tmp_path, tmp_path / "a.csv", target="y")


def test_the_kind_of_a_sorted_column_is_that_of_a_shuffled_one(tmp_path: Path) -> None:
    """Units and times in the later rows, or in every second row, would make the column one of texts."""
    amounts = [str(number) for number in range(1000, 2100)] + [f"{number}K" for number in range(1, 900)] + ["1M", "2M"] * 50
    column = cells.read(table_of(tmp_path, amounts), "x", RULES)
    assert (column.kind, column.form) == ("number", "1234.5 with K, M or B")
    alternating = [text for number in range(750) for text in ("0", f"{number % 30 + 1} %")]
    assert cells.read(table_of(tmp_path, alternating), "x", RULES).kind == "number"
    times = ["2024-01-31"] * 1100 + ["2024-01-31 10:00"] * 900
    assert cells.read(table_of(tmp_path, times), "x", RULES).kind == "date"


def test_a_time_of_two_parts_keeps_its_scale(tmp_path: Path) -> None:
    """One cell such as 0:59:30 would make all minutes hours, and new rows would mix hours with minutes."""
    durations = ["59:24", "1:31:12"] * 100
    column = cells.read(table_of(tmp_path, [*durations, "0:59:30"]), "x", RULES)
    assert (column.form, column.values[:2].to_list()) == (number_units.DURATION, [0.99, 1.52])
    assert cells.read(table_of(tmp_path, [*durations, *["0:59:30"] * 9]), "x", RULES).kind == "text"
    for training, new in (("59:24", ["59:24", "1:05:10"]), ("1:05:10", ["59:24"]), ("13:45", ["59:24", "1:05:10"])):
        form = cells.read(table_of(tmp_path, [training]), "x", RULES).form
        assert cells.read_as(table_of(tmp_path, [training]), "x", "number", form, RULES).values.count() == 1
        with pytest.raises(UserError, match="write all times of the new rows with as many parts as in training"):
            cells.read_as(table_of(tmp_path, new), "x", "number", form, RULES)


@pytest.mark.parametrize(
    ("training", "new", "values"),
    [
        (["2 days", "-1 days"], ["3 days 06:00:00", "-1 days +12:00:00", "5 days"], [3.25, -0.5, 5.0]),
        (["2 days 06:00:00", "-1 days +12:00:00"], ["3 days", "5 days 00:00:00"], [72.0, 120.0]),
    ],
)
def test_whole_days_and_days_with_hours_are_the_same_durations(
    training: list[str], new: list[str], values: list[float], tmp_path: Path
) -> None:
    """A frame of pandas and its CSV, which has no hours if all are whole days, could not predict each other's rows."""
    for config in (RULES, PrepareConfig(decimal=",")):  # 3.25 would be 325
        form = cells.read(table_of(tmp_path, training), "x", config).form
        assert cells.read_as(table_of(tmp_path, new), "x", "number", form, config).values.to_list() == values


@pytest.mark.parametrize(("others", "odd"), [("12.8K", "900"), ("56.6%", "0.48"), ("07:30", "closed")])
def test_a_cell_without_the_unit_counts_as_empty(tmp_path: Path, others: str, odd: str) -> None:
    """900 would be more than 12.8K, or one word among times such as 07:30 would make them categories."""
    column = cells.read(table_of(tmp_path, [others] * 199 + [odd]), "x", RULES)
    assert column.values[-1] is None
    assert f"cells that are not numbers and count as empty (1): '{odd}' (a.csv:201)" in column.notes[0]


def test_one_time_among_numbers_with_a_unit_counts_as_empty(tmp_path: Path) -> None:
    """The whole column would be text, and so categories or an id."""
    column = cells.read(table_of(tmp_path, [f"{number} bhp" for number in range(60, 259)] + ["12:30"]), "x", RULES)
    assert (column.kind, column.values[0], column.values[-1]) == ("number", 60, None)
    assert "cells that are not numbers and count as empty (1): '12:30' (a.csv:201)" in column.notes[0]


def test_a_rare_class_that_is_no_code_is_one(tmp_path: Path) -> None:
    """The message would say that X1 is not a text."""
    pl.DataFrame({"x": range(402), "y": ["01", "02", "03"] * 133 + ["X1"] * 3}).write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, tmp_path / "a.csv", target="y")["target"]["names"] == ["01", "02", "03", "X1"]


@pytest.mark.parametrize(
    ("form", "values", "other"),
    [("$1,234.5", ["$1,200", "1,200", 1200, "(12.5)"], "€ 1,200"), ("1.234,5 €", ["1.234.567,5 €", "7", "12,50-"], "7 kg")],
)
def test_a_request_may_have_the_form_of_training(form: str, values: list[str | int], other: str) -> None:
    """The service would refuse what a file may hold."""
    like = {"config": {"missing": []}, "features": [{"name": "x", "column": "x", "unit": "", "form": form}]}
    asked = [requests.Request(rows=[{"x": value}]) for value in [*values, other]]
    assert [requests.problem(request, like) is None for request in asked] == [True] * len(values) + [False]


@pytest.mark.parametrize(
    ("values", "hours"),
    [
        ([datetime.time(13, 45), datetime.time(0, 0, 0, 900_000), None], [13.75, 0.00025, None]),
        ([datetime.timedelta(days=2, hours=1.5), datetime.timedelta(seconds=-0.9), None], [49.5, -0.00025, None]),
    ],
)
def test_times_and_durations_of_frames_are_those_of_files(values: list[Any], hours: list[float], tmp_path: Path) -> None:
    """A column of pandas or polars would be left out, or be refused beside a CSV file of the same table."""
    pl.DataFrame({"x": values}).write_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": values}).to_csv(tmp_path / "b.csv", index=False)
    for files in (["a.parquet"], ["a.parquet", "b.csv"]):
        table = sources.read([tmp_path / name for name in files], Census())
        for column in (cells.read(table, "x", RULES), cells.read_as(table, "x", "number", "13:45, in hours", RULES)):
            assert column.values.to_list() == pytest.approx(hours * len(files))


def test_a_mark_of_missing_values_counts_in_any_form(tmp_path: Path) -> None:
    """98.0, as pandas writes the code 98 beside empty cells, would be a category."""
    config = PrepareConfig(missing=("98",), categorical=("x",))
    column = cells.read(table_of(tmp_path, ["1.0", "98.0", "98", "980"]), "x", config)
    assert column.values.to_list() == ["1", None, None, "980"]


def test_a_category_is_the_same_with_and_without_decimals(tmp_path: Path) -> None:
    """The shops 12 of one file and 12.0 of another, as pandas writes them beside an empty cell, would be two categories."""
    config, texts = PrepareConfig(categorical=("x",)), ["12", "12.0", "0.0", "-3.00", "1.5", "012.0", "1e3", ""]
    expected = ["12", "12", "0", "-3", "1.5", "012.0", "1e3", None]
    assert cells.read(table_of(tmp_path, texts), "x", config).values.to_list() == expected
    assert cells.read_as(table_of(tmp_path, texts), "x", "text", "", config).values.to_list() == expected
    assert cells.read_as(table_of(tmp_path, texts), "x", "text", "", RULES).values.to_list() == [*texts[:-1], None]


def test_booleans_of_new_rows_may_be_numbers_and_numbers_booleans(tmp_path: Path) -> None:
    """New rows would be refused that pandas wrote with other types than the rows of training."""
    assert cells.read_as(table_of(tmp_path, ["1.0", "0.0"]), "x", "truth", "", RULES).values.to_list() == [True, False]
    pl.DataFrame({"x": [True, False, None]}).write_parquet(tmp_path / "a.parquet")
    table = sources.read([tmp_path / "a.parquet"], Census())
    assert cells.read_as(table, "x", "number", "", RULES).values.to_list() == [1.0, 0.0, None]


def test_the_advice_fits_the_settings_too(tmp_path: Path) -> None:
    """The advice would be to write numbers as they are, or to separate the columns that were all dropped."""
    (tmp_path / "a.csv").write_text("x;y\n" + "1.4748;1\n2.3127;2\n" * 50)
    with pytest.raises(
        UserError, match=r"such as '1.4748': if they are numbers or dates, write them with the mark of decimal=,"
    ):
        prepare(tmp_path, tmp_path / "a.csv", target="x", decimal=",", task="regression")
    sentence = r"no column is left to predict y from: the only other columns are those of drop=\[x\], which are no features"
    with pytest.raises(UserError, match=sentence):
        prepare(tmp_path, tmp_path / "a.csv", drop=("x",))
    with pytest.raises(UserError, match=r"no column is left to predict y from: the only other .* of id=x, which"):
        prepare(tmp_path, tmp_path / "a.csv", id="x")


def test_the_longest_duration_is_not_a_short_one(tmp_path: Path) -> None:
    """2^63 - 1 milliseconds would wrap to one millisecond less than 0."""
    durations = pl.Series([2**63 - 1, 1 - 2**63, 3_600_000]).cast(pl.Duration("ms"))
    pl.DataFrame({"x": durations, "y": range(3)}).write_parquet(tmp_path / "a.parquet")
    hours = cells.read(sources.read([tmp_path / "a.parquet"], Census()), "x", RULES).values.to_list()
    assert [abs(hours[0]) > 1e9, abs(hours[1]) > 1e9, hours[2]] == [True, True, 1]


def test_the_message_about_separated_thousands_shows_a_number(tmp_path: Path) -> None:
    """If the first of them marks a missing value, the preparation would end in a traceback."""
    table = table_of(tmp_path, ["9 999", "12 345", "3"])
    column = cells.read(table, "x", PrepareConfig(missing=("9999",)))
    assert column.values.to_list() == [None, 12345.0, 3.0]
    assert column.notes[-1] == "the column 'x' is read as numbers, so that '12 345' is 12345"
