"""Columns that are ambiguous by themselves are read like the other columns of the table."""

from pathlib import Path

import polars as pl
import pytest
from small_tables import prepare

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import conventions, sources
from ensemble.recipes.table.settings import PrepareConfig

RULES = PrepareConfig()


def table_of(folder: Path, name: str = "a.csv", **columns: list[str]) -> sources.Table:
    """A table of one text file with these columns."""
    if name.endswith(".jsonl"):
        pl.DataFrame(columns).write_ndjson(folder / name)
    else:
        pl.DataFrame(columns).write_csv(folder / name, separator=";")
    return sources.read([folder / name], Census())


@pytest.mark.parametrize(
    ("ambiguous", "other", "expected"),
    [
        (["1,004", "13", "2,500"], ["33.51", "7", "1016806.46"], [1004.0, 13.0, 2500.0]),
        (["1,004", "13", "2,500"], ["12,5", "7", "1,25"], [1.004, 13.0, 2.5]),
        (["$1,234", "$950", "$9,000"], ["33.51", "7", "8.5"], [1234.0, 950.0, 9000.0]),
        (["1,004", "13", "2,500"], ["$1,234.50", "$7.25", "$8.10"], [1004.0, 13.0, 2500.0]),
        (["1.234", "987", "5.125"] * 20, ["33.51", "7", "8.5"] * 20, [1.234, 987.0, 5.125] * 20),
    ],
)
def test_an_ambiguous_decimal_mark_is_that_of_the_other_columns(
    tmp_path: Path, ambiguous: list[str], other: list[str], expected: list[float]
) -> None:
    """A published table would be refused, and prices in dollars would be texts, although its other columns show the mark."""
    column = conventions.read(table_of(tmp_path, x=ambiguous, y=other), ["x", "y"], RULES)["x"]
    assert (column.kind, column.values.to_list()) == ("number", expected)
    if "," in "".join(ambiguous):
        assert column.notes[-1] == "the column 'x' could be read in two ways: it has the decimal mark of the column 'y'"


@pytest.mark.parametrize(
    ("ambiguous", "other", "expected"),
    [
        (["07/01/2013", "10/01/2013"], ["06/30/2014", "12/31/2013"], "2013-07-01"),
        (["07/01/2013", "10/01/2013"], ["30/06/2014 10:00", "31/12/2013"], "2013-01-07"),
    ],
)
def test_an_ambiguous_order_of_day_and_month_is_that_of_the_other_columns(
    tmp_path: Path, ambiguous: list[str], other: list[str], expected: str
) -> None:
    """A table with the first days of years beside the last ones would be refused."""
    table = table_of(tmp_path, x=ambiguous, same=["01/01/2013", "02/02/2013"], y=other)
    read = conventions.read(table, ["x", "same", "y"], RULES)
    assert str(read["x"].values[0].date()) == expected
    assert read["x"].form == read["same"].form, "new rows would have another order"
    assert read["y"].form.startswith(read["x"].form)
    assert read["x"].notes[-1].endswith("in two ways: it has the order of day and month of the column 'y'")


@pytest.mark.parametrize(
    "others",
    [
        {"y": ["7", "8", "9"]},
        {"y": ["1.234", "2.345", "3.456"]},
        {"y": ["33.51", "7", "8"], "z": ["12,5", "7", "1,25"]},
        {"y": ["06/30/2014", "12/31/2013", "01/31/2013"]},
        {"y": ["1:02:30.5", "0:10:20.25", "2:00:10.75"]},
    ],
)
def test_without_a_clear_mark_the_column_is_refused(tmp_path: Path, others: dict[str, list[str]]) -> None:
    """1,004 would be 1004 or 1.004 by chance."""
    table = table_of(tmp_path, x=["1,004", "13", "2,500"], **others)
    with pytest.raises(
        UserError, match=r"'x' holds numbers such as '1,004', written as 1,234.5 or as 1.234,5: add decimal=."
    ):
        conventions.read(table, ["x", *others], RULES)


@pytest.mark.parametrize(
    "others",
    [
        {"y": ["01/01/2013", "02/02/2013"]},
        {"y": ["2014-06-30", "2013-12-31"]},
        {"y": ["06/30/2014", "12/31/2013"], "z": ["30.06.2014", "31.12.2013"]},
        {"y": ["33.5", "7.25"]},
    ],
)
def test_without_a_clear_order_the_dates_are_refused(tmp_path: Path, others: dict[str, list[str]]) -> None:
    """07/01/2013 would be in January or in July by chance."""
    table = table_of(tmp_path, x=["07/01/2013", "10/01/2013"], **others)
    with pytest.raises(UserError, match=r"'x' holds dates such as '07/01/2013', written as day/month/year or as month/day/"):
        conventions.read(table, ["x", *others], RULES)


def test_json_numbers_say_nothing_about_texts(tmp_path: Path) -> None:
    """JSON always has a decimal point, whatever the program writes into texts."""
    (tmp_path / "a.jsonl").write_text('{"x": "1,004", "y": 33.51}\n{"x": "13", "y": 7.5}\n')
    with pytest.raises(UserError, match="'x' holds numbers such as '1,004'"):
        conventions.read(sources.read([tmp_path / "a.jsonl"], Census()), ["x", "y"], RULES)


def test_new_rows_are_read_as_in_training(tmp_path: Path) -> None:
    """New rows have a column more or less, which must not change the others."""
    rows = [f'{number},"1,{number:03}",{number}.25,07/0{1 + number % 9}/2013,06/30/2014' for number in range(60)]
    (tmp_path / "a.csv").write_text("target,x,y,start,end\n" + "\n".join(rows) + "\n")
    manifest = prepare(tmp_path, tmp_path / "a.csv", target="target", task="regression")
    forms = {feature["meaning"]: feature.get("form", "") for feature in manifest["features"]}
    assert forms["x"] == "1,234.5"
    assert {form for meaning, form in forms.items() if meaning.startswith("start")} == {"%m/%d/%Y"}
