"""Tables as spreadsheets, R, SAP and pandas export them."""

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_tables import prepare

from ensemble.arrow import open_table
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, new_data, number_forms, sources
from ensemble.recipes.table.settings import PrepareConfig

RULES = PrepareConfig()
NUM_ROWS = 120


def read_file(folder: Path, content: str) -> sources.Table:
    (folder / "a.csv").write_text(content)
    return sources.read([folder / "a.csv"], Census())


def predicted(folder: Path, train: pl.DataFrame, new: pl.DataFrame, suffix: str = ".csv", **settings: str) -> pa.Table:
    """The features of new rows, prepared like the training rows."""
    for name, frame in (("train", train), ("new", new)):
        if suffix == ".csv":
            frame.write_csv(folder / f"{name}.csv", separator=";")
        else:
            frame.write_parquet(folder / f"{name}{suffix}")
    manifest = prepare(folder, folder / f"train{suffix}", **settings)
    new_data.prepare(manifest, {"source": (str(folder / f"new{suffix}"),), "out": str(folder / "prepared")})
    return open_table(folder / "prepared" / "rows" / "forecast")


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("a,b,y,\n1,2,3\n4,5,6\n", ["a", "b", "y"]),
        ('"Betrag\n(€)";Farbe;y\n1,5;rot;1\n2,5;blau;0\n', ["Betrag\n(€)", "Farbe", "y"]),
        ("Umsatz, netto;y\n1,5;1\n2,5;0\n3,5;1\n4,5;0\n5,5;1\n6,5;0\n7,5;1\n8,5;0\n9,5;1\nEnde\n", ["Umsatz, netto", "y"]),
    ],
    ids=["a delimiter at the end of the header", "a line break in the header", "a footer"],
)
def test_headers_of_spreadsheets(tmp_path: Path, content: str, columns: list[str]) -> None:
    """No line of the file could be read, or the names and the numbers would be cut at their commas."""
    assert read_file(tmp_path, content).columns == columns


def test_row_names_of_r_get_an_advice(tmp_path: Path) -> None:
    """The message would advise about quotes and lines above the names."""
    with pytest.raises(UserError, match=r"give each field a name, also the field of row names or numbers that R writes"):
        read_file(tmp_path, '"a","y"\n"1",2,3\n"2",5,6\n')


def test_fields_between_blanks_are_no_columns(tmp_path: Path) -> None:
    """The target would have too many classes."""
    (tmp_path / "a.data").write_text("".join(f" {row % 5}  {row % 2} \n" for row in range(NUM_ROWS)))
    with pytest.raises(
        UserError, match="the table has no other column; if a line has several fields, separate them by commas"
    ):
        prepare(tmp_path, tmp_path / "a.data", target="0  0", max_categories=500)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["46.043,00-", "1,50"], [-46043.0, 1.5]),
        (["(46,043.00)", "1.50"], [-46043.0, 1.5]),
        (["−3.5", "4"], [-3.5, 4.0]),
        (["1,136e-06", "2,5"], [1.136e-6, 2.5]),
        (["\u200e849", "850\ufeff"], [849.0, 850.0]),
    ],
)
def test_numbers_of_spreadsheets(tmp_path: Path, texts: list[str], numbers: list[float]) -> None:
    """Negative amounts would be texts, and a message would advise to count them as empty."""
    table = read_file(tmp_path, "other;x\n" + "".join(f"1;{text}\n" for text in texts))
    column = cells.read(table, "x", RULES)
    assert (column.kind, column.values.to_list()) == ("number", numbers)
    assert cells.read_as(table, "x", "number", column.form, RULES).values.to_list() == numbers


def test_numbers_in_parentheses_alone_are_texts(tmp_path: Path) -> None:
    """The categories (1) and (2) would be negative numbers."""
    assert cells.read(read_file(tmp_path, "other;x\n1;(1)\n1;(2)\n"), "x", RULES).kind == "text"


def test_days_as_floats_are_days_in_new_rows_too(tmp_path: Path) -> None:
    """pandas writes 20240131.0 if one cell of the column is empty: the same file could not be predicted."""
    days = pd.date_range("2022-03-01", periods=NUM_ROWS).strftime("%Y%m%d")
    frame = pl.DataFrame(
        {"day": [f"{day}.0" for day in days], "x": np.arange(NUM_ROWS) * 2.0, "y": [0, 1] * (NUM_ROWS // 2)}
    )
    new = predicted(tmp_path, frame, frame.drop("y"))
    month = next(name for name in new.column_names if "month" in name)
    assert new[month].to_pylist()[:2] == [3.0, 3.0]


def test_decimal_points_of_training_are_those_of_new_rows(tmp_path: Path) -> None:
    """Some of the training rows would be refused as new rows, since all their numbers have three decimals."""
    price = [f"{row}.000,5" for row in range(1, NUM_ROWS + 1)]
    factor = [f"{row}.125" if row else "0.5" for row in range(NUM_ROWS)]
    frame = pl.DataFrame({"price": price, "factor": factor, "y": [0, 1] * (NUM_ROWS // 2)})
    new = predicted(tmp_path, frame, frame.drop("y").tail(3))
    assert new["factor"].to_pylist() == [117.125, 118.125, 119.125]


def test_the_category_of_a_number_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    """1.0 alone would be the text 1, and beside 0.5 the text 1.0."""
    rating = pl.Series([0.5, 1.0, 1.5, 2.0] * (NUM_ROWS // 4))
    frame = pl.DataFrame({"rating": rating, "x": rating * 3, "y": [0, 1] * (NUM_ROWS // 2)})
    new = pl.DataFrame({"rating": [1.0, 2.0], "x": [1.0, 2.0]})
    table = predicted(tmp_path, frame, new, ".parquet", categorical=("rating",))  # type: ignore[arg-type]
    assert table["rating"].to_pylist() == [1.0, 3.0]


def test_categories_of_pandas_in_parquet_are_categories(tmp_path: Path) -> None:
    """A categorical column of pandas would be read as the whole numbers that Parquet stores for it."""
    frame = pd.DataFrame({"store": pd.Categorical([3, 1, 2, 1] * (NUM_ROWS // 4)), "y": [0.5, 1.5] * (NUM_ROWS // 2)})
    frame.to_parquet(tmp_path / "a.parquet")
    (feature,) = prepare(tmp_path, tmp_path / "a.parquet")["features"]
    assert feature["values"] == ["1", "2", "3"]


@pytest.mark.parametrize("zone", ["+05:30", "UTC"])
def test_times_without_the_zone_of_training_get_a_message(tmp_path: Path, zone: str) -> None:
    """13:00 would be 7:30 in training and 13:00 in new rows, without a message in either."""
    times = pa.array([datetime.datetime(2024, 5, 5, 13, tzinfo=datetime.UTC)], pa.timestamp("us", zone))
    pq.write_table(pa.table({"x": times, "y": [1]}), tmp_path / "a.parquet")
    column = cells.read(sources.read([tmp_path / "a.parquet"], Census()), "x", RULES)
    has_offset = "the column 'x' has times with a UTC offset, which are converted to UTC"
    assert column.notes == ((has_offset,) if zone != "UTC" else ())
    new = cells.read_as(read_file(tmp_path, "x,y\n2024-05-05 13:00,1\n"), "x", "date", column.form, RULES)
    assert new.notes == ("the column 'x' has times without a UTC offset, unlike in training: they are read as times in UTC",)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("Id", range(NUM_ROWS)),
        ("Id", range(NUM_ROWS, 0, -1)),
        *((name, range(0, -3 * NUM_ROWS, -3)) for name in ("", "Unnamed: 0")),
    ],
)
def test_a_column_of_row_numbers_gets_a_message(name: str, numbers: range, tmp_path: Path) -> None:
    """If rows were sorted by their class before they were numbered, the score would be perfect, and useless for new rows."""
    frame = pl.DataFrame({name: numbers, "x": [1, 5, 3] * (NUM_ROWS // 3), "y": [0] * 60 + [1] * 60})
    frame.write_csv(tmp_path / "a.csv")
    notes = prepare(tmp_path, tmp_path / "a.csv")["notes"]
    (note,) = [note for note in notes if "numbers the rows" in note]
    assert note.startswith(f"the column '{name or 'column 1'}' numbers the rows: add it to drop=[…] unless their order")


def test_fractions_in_a_column_without_a_name_are_no_row_numbers(tmp_path: Path) -> None:
    """Measured values whose column has lost its name would be called row numbers."""
    frame = pl.DataFrame({"": [1.7 * number for number in range(NUM_ROWS)], "y": [0, 1] * (NUM_ROWS // 2)})
    frame.write_csv(tmp_path / "a.csv")
    assert not [note for note in prepare(tmp_path, tmp_path / "a.csv")["notes"] if "numbers the rows" in note]


def test_an_index_of_pandas_in_parquet_is_no_feature(tmp_path: Path) -> None:
    """Members would learn from the row labels that pandas adds to a filtered or shuffled frame, which new rows lack."""
    frame = pd.DataFrame({"x": [1, 5, 3] * (NUM_ROWS // 3), "y": [0, 1] * (NUM_ROWS // 2)}).sort_values("y")
    frame.to_parquet(tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    assert [feature["column"] for feature in manifest["features"]] == ["x"]
    assert manifest["left_out"] == {"__index_level_0__": "holds the row labels of a pandas frame"}
    manifest = prepare(tmp_path, tmp_path / "a.parquet", time="__index_level_0__", overwrite=True)
    assert not manifest["left_out"]


def test_many_columns_that_are_left_out_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of a thousand indicator columns would fill the terminal with those that are constant."""
    constant = {f"k{number}": [1] * NUM_ROWS for number in range(1200)}
    frame = pl.DataFrame({"x": range(NUM_ROWS), "empty": [None] * NUM_ROWS, **constant, "y": [0, 1] * (NUM_ROWS // 2)})
    frame.write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    assert len(manifest["left_out"]) == 1201
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")] == [
        "left out: the column 'empty' is empty in train",
        "left out: 1,200 columns, each of which has one value in train: 'k0', 'k1', 'k2', 'k3', 'k4' and 1,195 more",
    ]


def test_dates_are_no_weights(tmp_path: Path) -> None:
    """Each row would have a weight of some 19,700, its days since 1970."""
    frame = pl.DataFrame({"w": ["2024-01-05", "2024-01-06"] * 60, "e": "", "x": range(0, 240, 2), "y": [0, 1] * 60})
    frame.write_csv(tmp_path / "a.csv")
    with pytest.raises(UserError, match="weight=w holds dates: name a column of numbers"):
        prepare(tmp_path, tmp_path / "a.csv", weight="w")
    with pytest.raises(UserError, match="weight=e is empty in every row: name another column"):
        prepare(tmp_path, tmp_path / "a.csv", weight="e")


@pytest.mark.parametrize(("setting", "fit"), [("weight", "numbers"), ("time", "numbers or dates")])
def test_no_kind_is_advised_that_is_refused_next(tmp_path: Path, setting: str, fit: str) -> None:
    """The error for weights that are lists would advise dates or texts, which are refused too."""
    pl.DataFrame({"w": [[1]] * 60, "x": range(60), "y": [0, 1] * 30}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=rf"{setting}=w holds List\(Int64\): name a column of {fit}$"):
        prepare(tmp_path, tmp_path / "a.parquet", **{setting: "w"})


def test_a_number_beyond_32_bits_is_named_as_such(tmp_path: Path) -> None:
    """The message would say that 1e39 is no number."""
    with pytest.raises(UserError, match=r"held numbers up to 3.4e\+38 in training, but has none now: '1e39'"):
        cells.read_as(read_file(tmp_path, "x,y\n1e39,1\n"), "x", "number", number_forms.PLAIN, RULES)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("b,,{}", "since its target is the sum of the others: delete it, or it counts as a training row"),
        ("Total,3,5.5", "since it holds 'Total'"),
        ("b,3,5.5", ""),
    ],
)
def test_a_row_of_totals_is_named(last: str, why: str, tmp_path: Path) -> None:
    """The sum of all targets, as a report has it below its rows, would be learned as the target of a row."""
    targets = np.random.default_rng(0).normal(9, 1, 60).round(2)
    rows = [f"{'ab'[row % 2]},{row * 7 % 11},{target}" for row, target in enumerate(targets)]
    text = "\n".join(["shop,x,y", *rows, last.format(targets.sum().round(2))])
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    notes = [note for note in prepare(tmp_path, tmp_path / "a.csv")["notes"] if "row of totals" in note]
    assert len(notes) == bool(why)
    assert all("the last row with a target, a.csv:62, is probably" in note and why in note for note in notes)


@pytest.mark.parametrize("second", [",Response,Response,Response,Response", "0,Other,Response,b,yes"])
def test_a_second_header_of_a_survey_is_named(second: str, tmp_path: Path) -> None:
    """`Response` of the line below the names would be a third class of the target, without a message."""
    rows = [f"{row},{'ab'[row % 2]},{'cde'[row % 3]},{'ab'[row % 2]},{('yes', 'no')[row % 2]}" for row in range(60)]
    for name in ("a", "b"):
        text = "\n".join(["person,Which?,How?,Where?,y", second.replace("0", name), *(f"{name}{row}" for row in rows)])
        (tmp_path / f"{name}.csv").write_text(text)
    notes = prepare(tmp_path, tmp_path / "a.csv", tmp_path / "b.csv")["notes"]
    expected = [f"{name}.csv:2 is probably a second header, since 4 of its texts, such as 'Response'" for name in "ab"]
    found = [note for note in notes if "second header" in note]
    assert [note.split(", are in")[0] for note in found] == (expected if second.count("Response") > 1 else [])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["1E5", "2E3", "7E1"], "'1E5' is 100000"),
        (["3.1", "3.10", "3.9"], "'3.10' is 3.1"),
        (["NA", "3.1", "3.10"], "'3.10' is 3.1"),
        (["3.1", "3.10", "4"], ""),
        (["3.10", "3.20", "4.00"], ""),
        (["3.1", "3.0", "3.00"], ""),
        (["1E5", "2E3", "20.5"], ""),
    ],
)
def test_codes_that_are_read_as_numbers_get_a_message(texts: list[str], message: str, tmp_path: Path) -> None:
    """The versions 3.1 and 3.10 would be one value, and the codes 1E5 and 2E3 would be far apart, without a message."""
    notes = cells.read(read_file(tmp_path, "x,y\n" + "".join(f"{text},1\n" for text in texts)), "x", RULES).notes
    assert len([note for note in notes if f"{message}: add it to categorical=[…] if these are codes" in note]) == bool(
        message
    )


def test_a_name_that_looks_like_the_one_that_was_given_is_shown_with_its_odd_characters(tmp_path: Path) -> None:
    """The error would ask whether `total y` is meant by `total y`, where the file has a no-break space."""
    pl.DataFrame({"x": range(60), "total\u00a0y": [0, 1] * 30}).write_csv(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"target=total y: the table has no such column; did you mean 'total\\xa0y'\?"):
        prepare(tmp_path, tmp_path / "a.csv", target="total y")
