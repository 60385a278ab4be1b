"""What a cell holds: ids as they were written, numbers, truth values, dates and texts, decided once over all files."""

import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import names_of, prepare, rows_of
from written_tables import DIGITS, FORMATS, TEXTS, pieces, write_one

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, sources
from ensemble.recipes.table.settings import PrepareConfig

NUM_GROUPS, ROWS_OF_GROUP = 20, 5
NUM_ROWS = NUM_GROUPS * ROWS_OF_GROUP
RULES = PrepareConfig()


def read_files(folder: Path, **contents: str | bytes | pl.DataFrame) -> sources.Table:
    """A table of files that are written to `folder`: text, or a frame as Parquet."""
    paths = []
    for name, content in contents.items():
        paths.append(folder / name)
        if isinstance(content, pl.DataFrame):
            content.write_parquet(paths[-1])
        else:
            paths[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
    return sources.read(paths, Census())


def read_cells(folder: Path, values: Sequence[str], **rules: Any) -> cells.Cells:
    """A CSV with one column beside another."""
    lines = "".join(f'1,"{value}"\n' for value in values)
    return cells.read(read_files(folder, a="other,x\n" + lines), "x", PrepareConfig(**rules))


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,x\n0000000481,1\n481,2\n 481 ,3\n,4\nNA,5\n1.0,6\n", ["0000000481", "481", " 481 ", None, "NA", "1.0"]),
        ("id\tx\n01\t1\n1\t2\n", ["01", "1"]),
        ('{"id": "00004"}\n{"id": 4}\n{"id": 9007199254740993}\n{}\n', ["00004", "4", "9007199254740993", None]),
        (pl.DataFrame({"id": [2**60 + 1, 2**60, None]}), ["1152921504606846977", "1152921504606846976", None]),
        (pl.DataFrame({"id": [2**64 - 1]}, schema={"id": pl.UInt64}), ["18446744073709551615"]),
        (pl.DataFrame({"id": [7.0, None, float("nan")]}), ["7", None, None]),
        (pl.DataFrame({"id": ["a", ""]}), ["a", None]),
    ],
)
def test_ids_are_as_they_were_written(tmp_path: Path, content: str | pl.DataFrame, expected: list[str]) -> None:
    """Two customers would have one id, or the forecast would have other ids than the user's table."""
    assert read_files(tmp_path, a=content).texts("id", "id").to_list() == expected


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (
            pl.DataFrame({"id": [1.5, 2.0]}),
            r"id=id holds floats such as 1\.5, and ids are texts or whole numbers below 2\^53",
        ),
        (pl.DataFrame({"id": [2.0**53]}), r"id=id holds floats such as 9007199254740992\.0"),
        (pl.DataFrame({"id": [7, 2**24]}, schema={"id": pl.Float32}), r"id=id holds floats such as 16777216\.0"),
        (pl.DataFrame({"id": [[1], [2]]}), r"id=id holds List\(Int64\): ids are texts or whole numbers"),
        (pl.DataFrame({"id": [b"a"]}), "id=id holds Binary: ids are"),
        (pl.DataFrame({"id": ["a", "b\0c"]}), "id=id has a NUL byte in a:2: remove it"),
    ],
)
def test_what_is_no_id_is_refused(tmp_path: Path, frame: pl.DataFrame, sentence: str) -> None:
    """An id would be rounded, or printed as a list."""
    with pytest.raises(UserError, match=sentence):
        read_files(tmp_path, a=frame).texts("id", "id")


@pytest.mark.parametrize("number", ["9007199254740993.0", "1e20", "1.5"])
def test_json_floats_are_ids_only_if_they_are_exact(tmp_path: Path, number: str) -> None:
    """Two customers beyond 2^53 would be one, where the same column of Parquet is refused."""
    lines = '{"id": 7.0, "x": 1}\n{"id": 9007199254740993, "x": 2.5}\n{"id": null, "x": 3}\n'
    assert read_files(tmp_path, a=lines).texts("id", "id").to_list() == ["7", "9007199254740993", None]
    table = read_files(tmp_path, a=lines, b=f'{{"id": {number}, "x": 1}}\n')
    with pytest.raises(
        UserError, match=r"group=id holds floats such as .* \(b:1\), and ids are texts or whole numbers below"
    ):
        table.texts("id", "group")
    assert cells.read(table, "id", RULES).kind == "number"


def test_json_objects_are_no_ids(tmp_path: Path) -> None:
    """The text of an object would be the id of a row."""
    table = read_files(tmp_path, a='{"id": {"a": 1}, "x": 1}\n{"id": "b", "x": 2}\n')
    with pytest.raises(UserError, match="id=id holds lists or objects"):
        table.texts("id", "id")


def test_groups_do_not_depend_on_the_other_files(tmp_path: Path) -> None:
    """One stray text in one file would give every group of the other files a second name, and cut it by a split."""
    rows = "".join(f"{number // 4},{number},{number % 2}\n" for number in range(120))
    (tmp_path / "a.csv").write_text("group,x,y\n" + rows)
    (tmp_path / "b.csv").write_text("group,x,y\n" + rows + "none,1,1\n")
    frame = pl.read_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "c.parquet")
    manifest = prepare(tmp_path, *(tmp_path / name for name in ("a.csv", "b.csv", "c.parquet")), group="group")
    assert sum(facts["groups"] for facts in manifest["splits"].values()) == 31
    assert names_of(tmp_path, "cluster").to_list() == [*map(str, range(30)), "none"]


# -- what a column holds -----------------------------------------------------------------------------------------------


def test_an_infinite_number_of_parquet_beside_texts_is_bad(tmp_path: Path) -> None:
    """Members would learn from the infinity, and no message would name the cell."""
    frame = pl.DataFrame({"other": [1.0, 1.0], "x": [2.5, float("inf")]})
    cells_of_x = cells.read(read_files(tmp_path, a="other,x\n1,7\n", b=frame), "x", RULES)
    assert (cells_of_x.kind, cells_of_x.values.to_list(), cells_of_x.bad.tolist()) == ("number", [7.0, 2.5, None], [2])
    assert "has cells that are not numbers and count as empty (1): 'inf' (b:2)" in cells_of_x.notes[-1]


@pytest.mark.parametrize(
    ("values", "rules", "kind", "expected"),
    [
        (["1", " 2 ", "3e2", ""], {}, "number", [1, 2, 300, None]),
        (["1", "NA", "?", "4"], {}, "number", [1, None, None, 4]),
        (["red", "NA", "blue"], {}, "text", ["red", "NA", "blue"]),
        (["red", "NA", "blue"], {"missing": ("NA",)}, "text", ["red", None, "blue"]),
        (["1", "NA", "none"], {"missing": ("none",)}, "text", ["1", "NA", None]),
        (["1,234", "12", "1,234,567.5"], {}, "number", [1234, 12, 1234567.5]),
        (["1.234", "12,50", "7"], {}, "number", [1234, 12.5, 7]),
        (["0,125", "1,234"], {}, "number", [0.125, 1.234]),
        (["1,234", "5"], {"decimal": "."}, "number", [1234, 5]),
        (["1,234", "5"], {"decimal": ","}, "number", [1.234, 5]),
        (["a,b", "1"], {}, "text", ["a,b", "1"]),
        (["1", "inf"], {}, "number", [1, None]),
        (["True", "false", "NA"], {}, "truth", [True, False, None]),
        (["31/01/2020", "01/02/2020"], {}, "date", ["2020-01-31", "2020-02-01"]),
        (["01/31/2020", "01/02/2020"], {}, "date", ["2020-01-31", "2020-01-02"]),
        (["01/02/2020", "03/04/2020"], {"dates": "day_first"}, "date", ["2020-02-01", "2020-04-03"]),
        (["01.02.2020 10:30", "03.04.2020 00:00"], {}, "date", ["2020-02-01 10:30", "2020-04-03"]),
        (["05/05/2020", "06/06/2020"], {}, "date", ["2020-05-05", "2020-06-06"]),
        (["2020-01-01T00:30:00+01:00", "2020-06-01T00:00:00Z"], {}, "date", ["2019-12-31 23:30", "2020-06-01"]),
        (["2020-01-01", "soon"], {}, "text", ["2020-01-01", "soon"]),
        (["", ""], {}, "text", [None, None]),
    ],
)
def test_the_kind_of_a_column_follows_from_its_cells(
    tmp_path: Path, values: list[str], rules: dict[str, Any], kind: str, expected: list[Any]
) -> None:
    """A number or a date would be read as another one, without a message."""
    column = read_cells(tmp_path, values, **rules)
    moments = column.values.dt.strftime("%Y-%m-%d %H:%M").str.replace(" 00:00", "") if kind == "date" else column.values
    assert (column.kind, moments.to_list()) == (kind, expected)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            ["1,234", "5"],
            r"the column 'x' holds numbers such as '1,234', written as 1,234\.5 or as 1\.234,5: add dec",
        ),
        (
            ["01/02/2020", "03/03/2020"],
            "holds dates such as '01/02/2020', written as day/month/year or as month/day/year: ",
        ),
    ],
)
def test_what_can_be_read_in_two_ways_is_asked(tmp_path: Path, values: list[str], sentence: str) -> None:
    """01/02 would be read as the wrong day, or 1,234 as 1.234, without a message."""
    with pytest.raises(UserError, match=sentence):
        read_cells(tmp_path, values)
    with pytest.raises(UserError, match=r"month_first$|decimal=,$"):  # a target cannot be dropped
        read_cells(tmp_path, values, target="x")


def test_few_bad_cells_leave_numbers_what_they_are(tmp_path: Path) -> None:
    """A row of units would make a column of numbers one of texts, or many bad cells would cause no message."""
    values = ["kg", *map(str, range(99))]
    column = read_cells(tmp_path, values)
    assert (column.kind, column.bad.tolist(), column.values[:2].to_list()) == ("number", [0], [None, 0])
    assert column.notes == ("the column 'x' has cells that are not numbers and count as empty (1): 'kg' (a:2)",)
    column = read_cells(tmp_path, values[:50])
    assert column.kind == "text"
    expected = r"is read as text, since 1 of 50 cells are not numbers: 'kg' \(a:2\); correct them, name .* max_bad_fraction$"
    assert re.search(expected, column.notes[0])
    assert read_cells(tmp_path, values[:50], missing=("kg",)).kind == "number"


@pytest.mark.parametrize("role", ["target", "time", "weight"])
def test_no_message_advises_to_allow_bad_cells_of_the_target(role: str, tmp_path: Path) -> None:
    """The user would raise max_bad_fraction for heights like 165cm in the target, and be refused again."""
    note = read_cells(tmp_path, ["165cm", *map(str, range(49))], **{role: "x"}).notes[0]
    assert note.endswith("'165cm' (a:2); correct them, or name them in missing=[…] if they mean an empty cell")


def test_texts_that_count_as_missing_are_counted(tmp_path: Path) -> None:
    """Half of a column would be left out without a message."""
    column = read_cells(tmp_path, ["1", "NA", "?", "4", "NA"])
    assert column.values.to_list() == [1, None, None, 4, None]
    assert column.notes == ("the column 'x' has 3 cells that count as empty: 'NA' (2), '?' (1)",)


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("values", [[1, -999, 3], [1.5, -999.0, 2.5]])
def test_a_number_that_marks_missing_values_counts_in_every_format(form: str, values: list[float], tmp_path: Path) -> None:
    """-999 in a Parquet file or a DataFrame would be learned as a value, although missing= names it."""
    frame = pl.DataFrame({"x": values, "word": ["u", "-999", "v"]})
    (tmp_path / "a").write_bytes(FORMATS[form](frame))
    (tmp_path / "b").write_bytes(FORMATS["csv"](frame))
    rules = PrepareConfig(missing=("-999",))
    for files in (["a"], ["a", "b"]):
        table = sources.read([tmp_path / name for name in files], Census())
        expected = [values[0], None, values[2]] * len(files)
        for column in (cells.read(table, "x", rules), cells.read_as(table, "x", "number", "", rules)):
            assert column.values.to_list() == expected
            assert not len(column.bad)
        assert cells.read(table, "word", rules).values.to_list() == ["u", None, "v"] * len(files)
    (note,) = cells.read(sources.read([tmp_path / "a"], Census()), "x", rules).notes
    assert re.fullmatch(r"the column 'x' has 1 cell that counts as empty: '-999(\.0)?' \(1\)", note)


def test_two_columns_of_parquet_without_a_name_are_refused(tmp_path: Path) -> None:
    """One of the columns would be dropped, or there would be a traceback."""
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["", ""]), tmp_path / "a")
    with pytest.raises(UserError, match="has two columns without a name: give each its own name"):
        sources.read([tmp_path / "a"], Census())


def test_kinds_are_decided_over_all_files(tmp_path: Path) -> None:
    """'0' of one file and '0.0' of another would be two categories."""
    parts = {"a": "x,y\n" + "0,1\n" * 50, "b": pl.DataFrame({"x": [0.0, 1.5], "y": [1, 2]}), "c": "x,y\nstray,1\n"}
    column = cells.read(read_files(tmp_path, **parts), "x", PrepareConfig(max_bad_fraction=0.05))
    assert (column.kind, column.values.n_unique(), column.bad.tolist()) == ("number", 3, [52])
    assert "'stray' (c:2)" in column.notes[0]
    assert cells.read(read_files(tmp_path, **parts), "x", RULES).values.to_list() == ["0"] * 51 + ["1.5", "stray"]


def test_files_may_write_dates_and_numbers_differently(tmp_path: Path) -> None:
    """Dates of Parquet beside those of a CSV would become texts, and the column would be left out."""
    parts = {"a": "x,y\n31/01/2020,1\n,2\n", "b": pl.DataFrame({"x": [datetime.date(2020, 2, 1), None], "y": [3, 4]})}
    column = cells.read(read_files(tmp_path, **parts), "x", RULES)
    assert [str(value)[:10] for value in column.values] == ["2020-01-31", "None", "2020-02-01", "None"]
    parts = {"a": 'x,y\n"12,5",1\n"1,25",1\n', "b": pl.DataFrame({"x": [0.5], "y": [3]})}
    assert cells.read(read_files(tmp_path, **parts), "x", RULES).values.to_list() == [12.5, 1.25, 0.5]


def test_leading_zeros_are_pointed_out(tmp_path: Path) -> None:
    """A postal code would be shown as another number."""
    (note,) = read_cells(tmp_path, ["01067", "80331"]).notes
    assert note == "the column 'x' is read as numbers, so that '01067' is 1067: their leading zeros do not count"


# -- whole tables ------------------------------------------------------------------------------------------------------


def small(folder: Path, columns: dict[str, Sequence[Any]], **settings: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    """A CSV of some columns, and 100 rows of the target `y`, prepared: the manifest, and all rows by row_id."""
    frame = pl.DataFrame({name: [str(value) for value in values] for name, values in columns.items()})
    frame.write_csv(folder / "small.csv")
    manifest = prepare(folder, folder / "small.csv", **settings)
    return manifest, rows_of(folder, manifest).sort("row_id")


def test_a_class_may_be_called_na(tmp_path: Path) -> None:
    """The rows of a real class would be left out of the training."""
    manifest, _ = small(tmp_path, {"x": range(0, 198, 2), "y": ["NA", "EU", "US"] * 33})
    assert manifest["task"]["classes"] == ("EU", "NA", "US")
    assert manifest["notes"] == ["'NA' of y is a class: add missing=[NA] if it means an empty cell"]


def test_a_mark_among_booleans_is_named(tmp_path: Path) -> None:
    """The message would call booleans truths."""
    with pytest.raises(UserError, match=r"target=y holds 'NA' \(1\) among its booleans \(true or false\): add missing="):
        small(tmp_path, {"x": range(101), "y": ["NA", *(["true", "false"] * 50)]})


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (
            "inf",
            r"target=y has cells that are not numbers \(1\): 'inf' \(small.csv:2\); correct them, or name them in missing",
        ),
        ("oops", r"target=y has cells that are not numbers \(1\): 'oops' \(small.csv:2\)"),
        ("NA", r"target=y holds 'NA' \(1\) among its numbers: add missing=\[NA\] if that means an empty cell"),
    ],
)
def test_a_bad_target_is_no_forecast(tmp_path: Path, word: str, sentence: str) -> None:
    """A training row would become a row of the forecast, without a message."""
    values = [word, *(f"{number}.5" for number in range(119))]
    with pytest.raises(UserError, match=sentence):
        small(tmp_path, {"x": range(120), "y": values})
    manifest, _ = small(tmp_path, {"x": range(120), "y": values}, missing=(word,))
    assert manifest["splits"]["forecast"]["rows"] == 1


def test_a_target_whose_square_is_infinite_is_named_by_its_cell(tmp_path: Path) -> None:
    """The error would be about a file of the preparation, after warnings of NumPy."""
    values = ["-1.797e308", *(f"{number}.5" for number in range(119))]
    with pytest.raises(
        UserError, match=r"^target=y holds -1.797e\+308 \(small.csv:2\), beyond 1e\+150: correct it, or name it"
    ):
        small(tmp_path, {"x": range(120), "y": values})
    manifest, _ = small(tmp_path, {"x": range(120), "y": values}, missing=("-1.797e308",))
    assert manifest["splits"]["forecast"]["rows"] == 1


def test_new_booleans_are_called_by_their_name(tmp_path: Path) -> None:
    """The message would call booleans "truths"."""
    with pytest.raises(UserError, match=r"held booleans \(true or false\) in training, but has none now: 'yes' \(a:2\)"):
        cells.read_as(read_files(tmp_path, a="x,y\nyes,1\n"), "x", "truth", "", RULES)


def test_a_row_of_units_is_named(tmp_path: Path) -> None:
    """The column would become one of texts, or the row a training row, without a message."""
    manifest, _ = small(tmp_path, {"x": ["°C", *range(119)], "y": ["", *range(119)]})
    assert [feature["name"] for feature in manifest["features"]] == ["x"]
    assert (manifest["features"][0].get("values"), manifest["splits"]["forecast"]["rows"]) == (None, 1)
    assert "the column 'x' has cells that are not numbers and count as empty (1): '°C' (small.csv:2)" in manifest["notes"]


def test_a_number_beyond_float32_is_named(tmp_path: Path) -> None:
    """The number would be missing in training, without a message."""
    manifest, _ = small(tmp_path, {"x": [*range(119), "-1e300"], "y": range(120)})
    note = "the column 'x' has cells that are not in the range of 32-bit floats and count as empty (1): '-1e+300'"
    assert f"{note} (small.csv:121)" in manifest["notes"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"x,y\n" + "stra\xdfe,1\n".encode("latin1") * 50, "rows are bad .* convert the files to UTF-8, as `iconv"),
        ("a.jsonl", b'{"x": NaN, "y": 1}\n' * 50, "JSON has no NaN and no Infinity: write null for them"),
        ("a.csv", b"y\n" + b"1\n2\n" * 50, "no column is left to predict y from: the table has no other column"),
        (
            "a.csv",
            b"x,t,y\n" + b"1,Q1 2024,1\n2,Q2 2024,2\n" * 50,
            "such as 'Q1 2024': write all dates in the same form",
        ),
    ],
)
def test_the_advice_fits_the_error(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    """The advice would be to allow more bad rows, although the encoding is wrong."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        prepare(tmp_path, tmp_path / name, time="t" if b"t," in content else "")


def test_classes_are_called_as_in_the_table(tmp_path: Path) -> None:
    """Class 1234567 would be called 1.23457e+06, and 01 would be the same as 1."""
    manifest, _ = small(tmp_path, {"x": range(120), "y": [1234567, 1234568, 1234569] * 40})
    assert manifest["task"]["classes"] == ("1234567", "1234568", "1234569")
    manifest, _ = small(tmp_path, {"x": range(120), "y": ["01", "1", "2"] * 40}, overwrite=True)
    assert manifest["task"]["classes"] == ("01", "1", "2")
    manifest, _ = small(tmp_path, {"x": range(120), "y": [2**53, 2**53 + 1, 7] * 40}, overwrite=True)
    assert manifest["task"]["classes"] == ("7", "9007199254740992", "9007199254740993")


def test_days_as_digits_are_days(tmp_path: Path) -> None:
    """An embargo of 30 days would be one of 30 units of a number that jumps by 8870 at new year."""
    day = np.datetime64("2019-06-01") + np.arange(400).astype("timedelta64[D]")
    digits = [str(one).replace("-", "") for one in day]
    manifest, _ = small(tmp_path, {"t": digits, "x": range(400), "y": [0, 1] * 200}, time="t", embargo=30, test=0.2)
    assert manifest["splits"]["train"]["from"] == "2019-06-01"
    assert manifest["census"]["dropped"]["embargo before the test"]["count"] == 30
    assert not any("embargo" in note for note in manifest["notes"])


def test_the_unit_of_an_embargo_is_shown(tmp_path: Path) -> None:
    """An embargo of 30 days would be one of 30 milliseconds, and the future would be learned from, without a message."""
    times = [1_500_000_000_000 + number * 86_400_000 for number in range(400)]
    manifest, _ = small(tmp_path, {"t": times, "x": range(0, 800, 2), "y": [0, 1] * 200}, time="t", embargo=30, test=0.2)
    assert manifest["notes"] == [
        "embargo=30 is in the unit of time=t, which holds numbers from 1500000000000 to 1534473600000"
    ]


def test_numbers_that_lie_close_stay_apart(tmp_path: Path) -> None:
    """Times of one day, or counters from 1.7e12 on, would all be the same float32, without a message."""
    seconds = [f"2024-01-01 00:{number // 60:02}:{number % 60:02}" for number in range(120)]
    columns = {"big": [1_700_000_000_000 + number for number in range(120)], "t": seconds, "x": range(120)}
    manifest, rows = small(tmp_path, {**columns, "y": [0, 1] * 60})
    units = [feature["unit"] for feature in manifest["features"]]
    assert [unit.rstrip("0123456789") for unit in units[:1]] + units[1:] == ["above ", "days since 2024-01-01", "hour", ""]
    least = rows["big"].min()
    assert (rows["big"] - least).to_list() == list(range(120))
    np.testing.assert_allclose(rows["t"] * 86400, range(120), atol=0.01)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (["1e300", *["1"] * 119], r"weight=w is 1e\+300 in small.csv:2: weights must be from 0 to 3e38"),
        (["", *["1"] * 119], "weight=w is empty in small.csv:2"),
        (["1e-60"] * 120, "weight=w is too small for a 32-bit float in every row"),
        (["1"] * 19 + ["0"] * 101, "19 rows have a target and a weight above 0, and at least 20 are needed: give more"),
    ],
)
def test_weights_that_cannot_be_learned_from_are_refused(tmp_path: Path, weights: list[str], sentence: str) -> None:
    """Members would learn with an infinite weight, or only the last stage would refuse."""
    with pytest.raises(UserError, match=sentence):
        small(tmp_path, {"t": range(120), "w": weights, "x": range(120), "y": [0, 1] * 60}, weight="w", time="t", test=0.2)


def test_a_late_key_is_a_column(tmp_path: Path) -> None:
    """A key that the first 1,000 records lack would be dropped; as the target it would be called missing."""
    records = [{"x": number, **({"late": number % 7, "y": number % 2} if number >= 1500 else {})} for number in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    manifest = prepare(tmp_path, tmp_path / "a.jsonl")
    assert [feature["name"] for feature in manifest["features"]] == ["x", "late"]
    assert manifest["splits"]["forecast"]["rows"] == 1500


def test_a_file_may_lack_a_key_but_not_a_column(tmp_path: Path) -> None:
    """JSON lines that lack the keys of empty cells would be refused, or a CSV without a column would be accepted."""
    table = read_files(tmp_path, a='{"x": 1}\n', b=pl.DataFrame({"x": [2, 3], "z": [True, False]}), c=b"x,z\n4,\n")
    assert table.notes == ("no record of a has the key 'z': its cells are empty there",)
    assert cells.read(table, "z", RULES).values.to_list() == [None, True, False, None]
    with pytest.raises(UserError, match="d has no column 'z', which another of the files has"):
        read_files(tmp_path, d="x\n1\n", e="x,z\n1,2\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"x,gr\xf6sse\n1,2\n", r"the header of .*a is not UTF-8 text \(byte 0xf6 after 'x,gr'\): convert it, as `iconv"),
        (b'{"x": 1, "x": 2}\n', "line 1: the key 'x' occurs twice: keep one of them"),
        (b"x,y,\n1,2,3\n", None),
        (b"x,y\n", "has no rows below its header: check how it was made, or leave it out"),
        (b"x,,\n1,2,3\n", "has two columns without a name: give each its own name"),
    ],
)
def test_a_header_is_read_or_refused(tmp_path: Path, content: bytes, sentence: str | None) -> None:
    """Two columns would become one, or a column would get another name."""
    if sentence is None:
        assert read_files(tmp_path, a=content).columns == ["x", "y", "column 3"]
        return
    with pytest.raises(UserError, match=sentence):
        read_files(tmp_path, a=content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('id\tnote\n"a"\t"1\t2"\n"b"\t"c"\n', ["a", "b"]),
        ('id\tnote\n5" screen\t1\n"b"\t"c"\n', ['5" screen', '"b"']),
        ("id;note\n1,5;b\n2,5;c\n", ["1,5", "2,5"]),
        ('id|note\na;1|b\n"b|2"|c\n', ["a;1", "b|2"]),
    ],
)
def test_quotes_and_delimiters(tmp_path: Path, content: str, expected: list[str]) -> None:
    """The quotes of a tab-separated file would be part of its ids, or quotes within texts would be lost."""
    assert read_files(tmp_path, a=content).texts("id", "id").to_list() == expected


# -- values of tables in all formats -----------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.hypothesis
@settings(max_examples=25)
@given(data=st.data())
def test_values_are_read_as_written(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An id, a group or a number would depend on the format, or on how the rows are divided into files."""
    groups = data.draw(st.lists(TEXTS | DIGITS, min_size=NUM_GROUPS, max_size=NUM_GROUPS, unique=True))
    pool = ["a", *data.draw(st.lists(TEXTS | DIGITS | st.none(), max_size=9))]
    numbers = data.draw(st.lists(NUMBERS | st.none(), max_size=20))
    generator = np.random.default_rng(data.draw(st.integers(0, 9)))
    frame = pl.DataFrame(
        {
            "id": [*pool, *(pool[place] for place in generator.integers(0, len(pool), NUM_ROWS - len(pool)))],
            "group": [groups[place] for place in generator.permutation(NUM_ROWS) // ROWS_OF_GROUP],
            "number": ([0.0, 1.0, *numbers] * NUM_ROWS)[:NUM_ROWS],
            "word": generator.choice(["wood", "stone", "Ä <b>,;"], NUM_ROWS),
            "y": ["yes", "no"] * (NUM_ROWS // 2),
        },
        schema={"id": pl.String, "group": pl.String, "number": pl.Float64, "word": pl.String, "y": pl.String},
    )
    folder = tmp_path_factory.mktemp("cells")
    files = [write_one(data, frame[begin:end], folder / str(begin)) for begin, end in pieces(data, NUM_ROWS)]
    manifest = prepare(folder, *files, id="id", group="group")
    assert manifest["census"]["rows_kept"] == NUM_ROWS
    rows = rows_of(folder, manifest).sort("row_id")
    assert rows["id"].to_list() == [value or "" for value in frame["id"]]
    assert names_of(folder, "cluster").gather(rows["cluster"]).to_list() == frame["group"].to_list()
    np.testing.assert_array_equal(rows["number"], frame["number"].cast(pl.Float32).fill_null(np.nan))
    (word,) = (feature for feature in manifest["features"] if feature["name"] == "word")
    assert [word["values"][int(code)] for code in rows["word"]] == frame["word"].to_list()
