"""Several files of one table: a repeated header, copies, and numbers of a wide range that must stay apart."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from small_tables import prepare, rows_of

from ensemble.arrow import open_table
from ensemble.data.census import MALFORMED, Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, columns, new_data, sources
from ensemble.recipes.table.settings import PrepareConfig


def test_a_header_in_the_middle_is_no_row(tmp_path: Path) -> None:
    """`cat a.csv b.csv` would add a row of names, and a class to a target of texts."""
    (tmp_path / "both.csv").write_text("\ufeffa,y\n1,no\n a,y\n2,yes\n\ufeffa,y\n3,no\n")
    census = Census()
    table = sources.read([tmp_path / "both.csv"], census)
    assert table.texts("y", "target").to_list() == ["no", "yes", "no"]
    assert [table.place(row) for row in range(3)] == ["both.csv:2", "both.csv:4", "both.csv:6"]
    assert (census.dropped, census.rows_kept) == ({sources.HEADER: 2}, 3)


def test_files_that_end_after_their_header_are_left_out(tmp_path: Path) -> None:
    """A table of daily files would be refused, or lose all columns, because of a day without rows."""
    contents = {"a.csv": "x,y\n1,2\n", "b.csv": "x,y\n", "c.csv": "x,y\r\n", "d.csv": "x,y\n\n3,4\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content.encode())
    table = sources.read([tmp_path / name for name in contents], Census())
    assert table.texts("x", "id").to_list() == ["1", "3"]
    assert [table.place(row) for row in range(2)] == ["a.csv:2", "d.csv:3"]
    assert table.notes == ("files without rows below their header are left out: b.csv, c.csv",)
    (tmp_path / "e.csv").write_text("5,6\n")
    with pytest.raises(UserError, match=r"e\.csv has no rows below its header"):
        sources.read([tmp_path / "a.csv", tmp_path / "e.csv"], Census())


def test_copies_of_rows_in_another_file_get_a_message(tmp_path: Path) -> None:
    """The same table as CSV and as JSON lines would stand in training and in the scored rows, without a message."""
    rows = [(number, f"t{number}") for number in range(9)]
    (tmp_path / "a.csv").write_text("".join(["n,t\n", *(f"{n},{t}\n" for n, t in rows)]))
    (tmp_path / "b.jsonl").write_text("".join(f'{{"n": {n}, "t": "{t}"}}\n' for n, t in [*rows[2:], (10, "t10")]))
    (tmp_path / "c.csv").write_text("n,t\n1,x\n" + "20,y\n" * 9)
    (tmp_path / "d.csv").write_text("n,t\n" + "20,y\n" * 9)
    table = sources.read([tmp_path / name for name in ("a.csv", "b.jsonl", "c.csv", "d.csv")], Census())
    (note,) = table.notes  # equal rows within d.csv are ordinary
    assert note.startswith("7 of 8 rows of b.jsonl are in a.csv too: leave copies out")


def test_a_copy_in_parquet_is_found_beside_other_types(tmp_path: Path) -> None:
    """A date, a truth value or a whole number is written in another way in CSV, and no row would be equal."""
    frame = pl.DataFrame({"n": [1.0, 2.0, 3.5], "t": ["a", "b", "c"], "is": [True, False, None], "w": [1.0, 2.0, 3.0]})
    frame = frame.with_columns(day=pl.Series(["2024-01-01", "2024-01-02", None]).str.to_datetime())
    frame.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("n,t,is,w,day\n1.0,a,True,1,2024-01-01\n2.0,b,False,2,2024-01-02\n3.5,c,,3,\n")
    (note,) = sources.read([tmp_path / "a.parquet", tmp_path / "b.csv"], Census()).notes
    assert note.startswith("3 of 3 rows of b.csv are in a.parquet too: leave copies out")


@pytest.mark.parametrize("kind", ["id", "row number"])
def test_copies_with_ids_of_their_own_stay_in_one_fold(kind: str, tmp_path: Path) -> None:
    """Where each copy of a row has another id, a model would be scored on copies of the rows that it was trained on: noise
    would be predicted well, without a message."""
    generator = np.random.default_rng(0)
    noise = pl.DataFrame({name: generator.normal(size=60) for name in "xy"})
    row = pl.Series(generator.permutation(180))
    numbered = {"id": "k" + row.cast(pl.String), "row number": row}[kind].alias("key")
    pl.concat([noise] * 3).insert_column(0, numbered).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    rows = rows_of(tmp_path, manifest)
    assert rows.group_by("x").agg(pl.col("fold", "cluster").n_unique())["fold", "cluster"].to_numpy().max() == 1
    assert manifest["notes"][0].startswith("120 of 180 rows with a target repeat an earlier row")
    few = {"key": numbered, "sex": ["f", "m"] * 90, "grade": [1, 2, 3] * 60, "y": [0, 1, 1, 0] * 45}
    pl.DataFrame(few).write_csv(tmp_path / "a.csv")  # rows that are equal by chance
    manifest = prepare(tmp_path, tmp_path / "a.csv", overwrite=True)
    assert rows_of(tmp_path, manifest)["cluster"].n_unique() == 180
    assert not [note for note in manifest["notes"] if "repeat" in note]


def test_the_time_to_read_many_files_is_linear(tmp_path: Path) -> None:
    """A thousand files of Spark would be compared in pairs, in minutes."""
    for number in range(30):
        (tmp_path / f"{number}.csv").write_text(f"n,t\n{number},a\n{-1 - number},b\n")
    with mock.patch.object(pl.Series, "is_in", autospec=True, side_effect=pl.Series.is_in) as comparison:
        assert sources.read(sorted(tmp_path.iterdir()), Census()).notes == ()
    assert comparison.call_count < 30


def test_the_time_to_read_many_columns_is_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame makes the list of its names anew each time: ten thousand columns would take a minute."""
    names = [f"c{number}" for number in range(200)]
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{','.join(names[::-1])}\n")
    lists: list[str] = []

    def counted(name: str, get: Callable[[pl.DataFrame], Any]) -> property:
        return property(lambda frame: lists.append(name) or get(frame))

    for name in ("columns", "schema"):
        monkeypatch.setattr(pl.DataFrame, name, counted(name, getattr(pl.DataFrame, name).fget))
    assert sources.read([tmp_path / "a.csv"], Census()).columns == names
    assert len(lists) < 100


def test_folders_named_key_and_value_are_a_column(tmp_path: Path) -> None:
    """Spark and Hive store the columns of a partition in these names alone: the table would lose them without a message."""
    cells = {"year=2024/shop=a%2Fb": "1\n2", f"year={sources.HIVE_NULL}/shop=c": "3", "n=9/year=2023/shop=": "4"}
    for folder, rows in cells.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "part.csv").write_text(f"n\n{rows}\n")
    table = sources.read([tmp_path / folder / "part.csv" for folder in cells], Census())
    assert table.texts("year", "id").to_list() == ["2024", "2024", None, "2023"]
    assert table.texts("shop", "id").to_list() == ["a/b", "a/b", "c", None]
    assert table.texts("n", "id").to_list() == ["1", "2", "3", "4"]
    assert table.notes[0] == "the column 'year' is read from the names of folders such as year=2024"
    (tmp_path / "part.csv").write_text("n\n5\n")
    with pytest.raises(UserError, match="has no column 'year', which another of the files has"):
        sources.read([tmp_path / "year=2024/shop=a%2Fb/part.csv", tmp_path / "part.csv"], Census())


@pytest.mark.parametrize("other", [pl.Series([0, 1] * 20), pl.Series([0.0, 1.0] * 20), pl.Series(["0", "1"] * 20)])
def test_booleans_beside_0_and_1_of_another_file_are_booleans(tmp_path: Path, other: pl.Series) -> None:
    """A target would have the four classes 0, 1, false and true."""
    x = pl.Series(range(40))
    pl.DataFrame({"x": x, "y": x % 3 == 0}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"x": x + 40, "y": other}).write_parquet(tmp_path / "b.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (manifest["task"]["kind"], manifest["target"]["names"]) == ("binary", ["false", "true"])
    assert manifest["splits"]["train"]["positives"] == 14 + 20
    assert "the column 'y' is read as booleans: 1 is true and 0 is false" in manifest["notes"]


def test_half_a_character_is_a_malformed_record(tmp_path: Path) -> None:
    """A lone surrogate would be a NUL byte in a text, and be reported as one in an id."""
    lines = [r'{"a": "x\ud800y"}', r'{"a": "\ud83d\ude00"}', r'{"a": "\\ud800"}', r'{"a": "x\udc00"}', r'{"a\ud800": "x"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    census = Census()
    assert sources.read([tmp_path / "a.jsonl"], census).texts("a", "id").to_list() == ["😀", r"\ud800"]
    assert census.dropped == {MALFORMED: 3}


def test_a_name_with_a_nul_byte_is_refused(tmp_path: Path) -> None:
    """There would be a traceback, since polars would not find the column."""
    pl.DataFrame({"a\0": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has a column whose name 'a\\x00' holds a NUL byte: rename it"):
        sources.read([tmp_path / "a.parquet"], Census())


@pytest.mark.parametrize("name", ["*", "^a$", " ^x.*$ "])
@pytest.mark.parametrize("layout", ["csv", "ndjson", "parquet"])
def test_a_name_that_is_a_pattern_is_refused(name: str, layout: str, tmp_path: Path) -> None:
    """There would be a traceback, since polars would select other columns by the name."""
    getattr(pl.DataFrame({name: [1, 2], "x": [3, 4]}), f"write_{layout}")(tmp_path / "a")
    with pytest.raises(UserError, match=rf"a has a column '{re.escape(name.strip())}', and \* and .* in polars: rename it"):
        sources.read([tmp_path / "a"], Census())


@pytest.mark.parametrize("others", [[], [0.0], [0.0, 3e12]])
def test_an_outlier_does_not_merge_the_other_numbers(others: list[float]) -> None:
    """Milliseconds since 1970 would be equal within two minutes because of one 0."""
    numbers = np.array([*others, *(1.7e12 + np.arange(200))])
    offset = columns.offset_of(numbers, np.ones(len(numbers), bool))
    assert len(np.unique((numbers - offset).astype(np.float32))) == len(numbers)


def test_settings_of_reviews_are_refused_for_new_rows() -> None:
    """min_matched=0.9 would have no effect, without a message."""
    with pytest.raises(UserError, match="min_matched= is for metadata of products, but this ensemble was fitted on a table"):
        new_data.prepare({}, {"source": ("new.csv",), "out": "out", "min_matched": 0.9})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("size, m;price;y\n1,5;2,5;0\n2,5;3,5;1\n", ["size, m", "price", "y"]),
        ("size, m;price;y\n1.5;2.5;0\n2.5;3.5;1\n", ["size, m", "price", "y"]),
        ("size\t;price;y\n1.5;2.5;0\n2.5;3.5;1\n", ["size", "price", "y"]),
        ("a, b, c\ty\n1, 2, 3\t0\n", ["a, b, c", "y"]),
        ("a;b,y\n1,0\n2,1\n", ["a;b", "y"]),
        ('"a;b|c",y\n1,0\n', ["a;b|c", "y"]),
        ("Preis, EUR;Menge, kg;y, z\n1,5;2,3;7,1\n2,5;0,3;4,2\n", ["Preis, EUR", "Menge, kg", "y, z"]),
    ],
)
def test_a_comma_in_a_name_does_not_separate_columns(tmp_path: Path, content: str, names: list[str]) -> None:
    """A table with semicolons would be cut at the comma of a name such as `size, m`, and its target would not be found."""
    (tmp_path / "a.csv").write_text(content)
    assert sources.read([tmp_path / "a.csv"], Census()).columns == names


def test_json_lines_in_latin_1_are_explained(tmp_path: Path) -> None:
    """The person would be told that the lines are no objects, which they are."""
    (tmp_path / "a.jsonl").write_bytes('{"a": "Köln"}\n{"a": "Münster"}\n'.encode("latin-1"))
    with pytest.raises(UserError, match="which is not a JSON object: convert it to UTF-8, as `iconv -f latin1"):
        sources.read([tmp_path / "a.jsonl"], Census())


@pytest.mark.parametrize("lines", ["1,2,3\n4,5,6\n", "1,2,\n", '1,5" tube\n'])
def test_a_file_without_a_readable_line_is_explained(tmp_path: Path, lines: str) -> None:
    """All rows would be "bad", without a word of the header that does not fit them."""
    (tmp_path / "a.csv").write_text(f"x,y\n{lines}")
    with pytest.raises(
        UserError, match=r"a\.csv can be read: the header has 2 names \(x, y\), and line 2 is '.*: give each"
    ):
        sources.read([tmp_path / "a.csv"], Census())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('x,z,y\n1, "a, b", 2\n2, "c, d", 3\n', r"line 2 is '1, \"a, b\", 2': remove the blanks before quotes"),
        ("Sales of 2024,,\nx,z,y\n1,2,3\n", r"two columns without a name: give .* delete empty columns and lines above the"),
        (
            "# Source: A, B\n#\n# C\nx,z,y\n1,2,3\n",
            r"has 2 names \(# Source: A, B\), and .*: remove the lines above the names",
        ),
        ("# Trees\n# of a city\nx,y\n1,2\n", r"name \(# Trees\), and line 3 is 'x,y': remove .* `grep -v '\^#' OLD > NEW`"),
        ("0.1,0.1,5\n1,2,3\n", r"'0\.1': give each its own name, in a line above the first one if that is a row$"),
    ],
)
def test_the_advice_names_what_is_wrong(tmp_path: Path, content: str, sentence: str) -> None:
    """The user would look for the row names of R, or give names to columns that do not exist."""
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=sentence):
        sources.read([tmp_path / "a.csv"], Census())


@pytest.mark.parametrize("header", ["#", "#chrom"])
def test_a_name_may_begin_like_a_comment(tmp_path: Path, header: str) -> None:
    """A table of colours, or of positions in a genome, would be refused because of a damaged line."""
    (tmp_path / "a.csv").write_text(f"{header},y\n#ff0000,1\n#00ff00,2\n3\n")
    table = sources.read([tmp_path / "a.csv"], census := Census())
    assert (table.columns, table.height, census.dropped) == ([header, "y"], 2, {"malformed line": 1})


def test_json_lines_without_a_key_are_refused(tmp_path: Path) -> None:
    """The user would get a traceback of polars."""
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    with pytest.raises(UserError, match=r"^no record of \S+/a\.jsonl has a key: check how it was made"):
        sources.read([tmp_path / "a.jsonl"], Census())


def test_an_error_shows_that_it_leaves_names_out(tmp_path: Path) -> None:
    """The number of names would differ from that of the names in the error, as if the header were read wrongly."""
    (tmp_path / "a.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6,7\n")
    with pytest.raises(UserError, match=r"the header has 6 names \(a, b, c, d, e and 1 more\), and line 2"):
        sources.read([tmp_path / "a.csv"], Census())


def test_blanks_around_a_name_do_not_count(tmp_path: Path) -> None:
    """A frame that pandas has read from `a, y` would lack the column that a CSV file has, and the other way round."""
    frame = pl.DataFrame({"a ": [0.5 * row for row in range(60)], " y": [0, 1] * 30, " l": [[1]] * 60})
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ndjson(tmp_path / "a.jsonl")
    frame.drop(" l").write_csv(tmp_path / "new.csv")
    for number, name in enumerate(("a.parquet", "a.jsonl")):
        manifest = prepare(tmp_path / str(number), tmp_path / name, target=" y" if number else "y ")
        assert [feature["column"] for feature in manifest["features"]] == ["a"]
        assert list(manifest["left_out"]) == ["l"]
        new = new_data.prepare(manifest, {"source": (str(tmp_path / "new.csv"),), "out": str(tmp_path / f"new{number}")})
        assert new["notes"] == []
        # The manifest of an ensemble that was fitted when blanks did count
        features = [{**feature, "column": "a "} for feature in manifest["features"]]
        config = {**manifest["config"], "target": " y"}
        earlier = {**manifest, "features": features, "left_out": {" l": ""}, "config": config}
        old = new_data.prepare(earlier, {"source": (str(tmp_path / name),), "out": str(tmp_path / f"old{number}")})
        assert old["notes"] == []
        assert open_table(tmp_path / f"old{number}" / "rows" / "forecast")["a"].null_count == 0
    pl.DataFrame({"a": [1], "a ": [2]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match="has two columns 'a': give each its own name"):
        sources.read([tmp_path / "b.parquet"], Census())


@pytest.mark.parametrize(
    ("first", "second", "ids"),
    [
        (
            pl.Series(["2024-01-04", "2024-01-05"]).str.to_date(),
            pl.Series(["2024-01-05 00:00:00", "2024-01-06 10:00:00"]).str.to_datetime("%Y-%m-%d %H:%M:%S"),
            ["2024-01-04", "2024-01-05", "2024-01-05", "2024-01-06 10:00:00"],
        ),
        (
            pl.Series(["2024-01-05 00:00:00", "2024-01-06 10:00:00"]).str.to_datetime("%Y-%m-%d %H:%M:%S"),
            pl.Series(["2024-01-05 00:00:00", "2024-01-06 10:00:00"]),
            ["2024-01-05", "2024-01-06 10:00:00"] * 2,
        ),
        (pl.Series(["3.00", "20.50"], dtype=pl.Decimal(12, 2)), pl.Series([3, 10]), ["3", "20.5", "3", "10"]),
        (pl.Series(["3.00", "20.00"], dtype=pl.Decimal(12, 2)), pl.Series(["3.00", "010"]), ["3", "20", "3", "010"]),
        (pl.Series([3.0, 20.0]), pl.Series(["3.0", "20"]), ["3", "20", "3", "20"]),
        (pl.Series([True, False]), pl.Series(["True", "Unknown"]), ["true", "false", "true", "Unknown"]),
        (pl.Series(["3.00", "True"]), pl.Series(["3", "true"]), ["3.00", "True", "3", "true"]),
    ],
    ids=["days", "times and text", "decimals", "decimals and text", "floats and text", "booleans and text", "texts"],
)
def test_a_group_is_the_same_in_files_with_different_types(
    first: pl.Series, second: pl.Series, ids: list[str], tmp_path: Path
) -> None:
    """One group would be two units, one of them in training and the other in the scored rows, without a message."""
    for name, values in {"a.parquet": first, "b.parquet": second}.items():
        values.to_frame("g").write_parquet(tmp_path / name)
    assert sources.read([tmp_path / "a.parquet", tmp_path / "b.parquet"], Census()).texts("g", "group").to_list() == ids


@pytest.mark.parametrize("is_date_in_training", [True, False])
def test_a_day_is_the_same_category_in_new_rows_of_another_type(is_date_in_training: bool, tmp_path: Path) -> None:
    """pandas has times where polars has dates: all cells of a categorical day would count as empty."""
    days = pl.DataFrame({"day": ["2024-01-04", "2024-01-05"] * 30, "y": [0, 1] * 30}).with_columns(
        pl.col("day").str.to_date()
    )
    times = days.with_columns(pl.col("day").cast(pl.Datetime("us")))
    (days if is_date_in_training else times).write_parquet(tmp_path / "a.parquet")
    (times if is_date_in_training else days).write_parquet(tmp_path / "new.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet", categorical=("day",))
    new = new_data.prepare(manifest, {"source": (str(tmp_path / "new.parquet"),), "out": str(tmp_path / "new")})
    assert (manifest["features"][0]["values"], new["notes"]) == (["2024-01-04", "2024-01-05"], [])


def test_a_midnight_of_csv_is_the_same_category_in_a_frame(tmp_path: Path) -> None:
    """pandas writes 00:00:00 to CSV if other cells have a time: midnights of a frame would count as empty."""
    texts = pl.DataFrame({"time": ["2024-01-05 00:00:00", "2024-01-06 10:00:00"] * 30, "y": [0, 1] * 30})
    texts.write_csv(tmp_path / "a.csv")
    texts.with_columns(pl.col("time").str.to_datetime()).write_parquet(tmp_path / "new.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.csv", categorical=("time",))
    new = new_data.prepare(manifest, {"source": (str(tmp_path / "new.parquet"),), "out": str(tmp_path / "new")})
    assert new["notes"] == []


@pytest.mark.parametrize(("end", "num_empty"), [(";;\n; ;\n;;", 3), (";;\n1;;\n", 0), ("", 0)])
def test_lines_of_delimiters_at_the_end_are_no_rows(tmp_path: Path, end: str, num_empty: int) -> None:
    """Lines such as ;;; that Excel writes below a table would be a forecast in a fit, and each get a prediction."""
    (tmp_path / "a.csv").write_text("x;z;y\n" + "1;2;3\n;;\n" * 20 + "1;2;3\n" + end, encoding="utf-8")
    census = Census()
    assert sources.read([tmp_path / "a.csv"], census).height == 41 + (2 if end and not num_empty else 0)
    assert census.dropped == ({"lines of delimiters alone at the end": num_empty} if num_empty else {})


def test_a_file_of_delimiters_alone_has_no_rows(tmp_path: Path) -> None:
    """An exported sheet that is empty below its header would get a prediction for each line."""
    (tmp_path / "a.csv").write_text("x;z;y\n;;\n; ;\n;;\n", encoding="utf-8")
    census = Census()
    assert sources.read([tmp_path / "a.csv"], census).height == 0
    assert census.dropped == {sources.NO_CELLS: 3}


@pytest.mark.parametrize("rounded", ["1.23457E+11", "1,23457E+11"])
def test_ids_that_excel_has_rounded_are_refused(rounded: str, tmp_path: Path) -> None:
    """Customers whose numbers begin with the same six digits would be one group."""
    (tmp_path / "a.csv").write_text(f"g;y\n123456789012;1\n{rounded};2\n1.5E10;3\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"group=g holds '{re.escape(rounded)}' in a\.csv:3, which Excel has rounded"):
        sources.read([tmp_path / "a.csv"], Census()).texts("g", "group")


@pytest.mark.parametrize("num_rows", [600, 1_500])
def test_the_separator_does_not_depend_on_the_length_of_a_file(num_rows: int, tmp_path: Path) -> None:
    """The sample of a long file ends within a line, whose fields would then count against the semicolon."""
    names, row = ";".join(f"temperature {number}, C" for number in range(25)), ";".join(["21,53"] * 25)
    (tmp_path / "a.csv").write_text("\n".join([names, *[row] * num_rows, ""]), encoding="utf-8")
    assert len(sources.read([tmp_path / "a.csv"], Census()).pieces) == 25


@pytest.mark.parametrize("end", ["\x1a\n", "\x1a", "\r\n\x1a"])
def test_the_mark_by_which_dos_ends_a_file_is_no_data(end: str, tmp_path: Path) -> None:
    """The last number would not be one, so that the column would be text, or the mark would be a damaged line."""
    (tmp_path / "a.csv").write_text(f"x,y\n1,2.5\n2,6.2{end}", newline="")
    census = Census()
    table = sources.read([tmp_path / "a.csv"], census)
    column = cells.read(table, "y", PrepareConfig())
    assert (column.kind, column.values.to_list(), census.dropped) == ("number", [2.5, 6.2], {})


def test_the_mark_by_which_dos_ends_a_file_is_not_in_an_id(tmp_path: Path) -> None:
    """Ids are kept as they are written, so the last row would be one of another customer or group."""
    (tmp_path / "a.csv").write_text("x,who\n1,anna\n2,anna\x1a")
    table = sources.read([tmp_path / "a.csv"], Census())
    assert table.texts("who", "id").to_list() == ["anna", "anna"]


def test_control_characters_are_visible_in_messages(tmp_path: Path) -> None:
    """A message would show 6.2 as a cell that is no number."""
    lines = "".join(f"{number},{number}.5\n" for number in range(200))
    (tmp_path / "a.csv").write_text(f"x,y\n0,6.2\a\n{lines}\0damaged")
    census = Census()
    (note,) = cells.read(sources.read([tmp_path / "a.csv"], census), "y", PrepareConfig()).notes
    assert note.endswith(r"count as empty (1): '6.2\x07' (a.csv:2)")
    assert census.examples[MALFORMED][0].excerpt == r"\x00damaged"
