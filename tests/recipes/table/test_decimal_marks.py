"""The decimal mark of a column in each of several files."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_tables import prepare

from ensemble.arrow import open_table
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table import cells, new_data, number_forms, sources
from ensemble.recipes.table.settings import PrepareConfig

RULES = PrepareConfig()


def read_files(folder: Path, **contents: str) -> sources.Table:
    """A table of files that are written to `folder`."""
    for name, content in contents.items():
        (folder / name).write_text(content)
    return sources.read([folder / name for name in contents], Census())


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("other;x\n1;1,0\n1;2,5\n", '{"other": 1, "x": 1.234}\n{"other": 1, "x": 7}\n', [1.0, 2.5, 1.234, 7.0]),
        ("other;x\n1;1,0\n1;2,5\n", "other,x\n1,0.5\n1,1.25\n", [1.0, 2.5, 0.5, 1.25]),
        ("other;x\n1;1,234\n1;2,345\n", "other;x\n1;2,5\n1;7\n", [1.234, 2.345, 2.5, 7.0]),
        ('other,x\n1,"1,234"\n', "other,x\n1,0.5\n", [1234.0, 0.5]),
        ("other;x\n1;1.234,5\n", "other;x\n1;7\n1;8\n", [1234.5, 7.0, 8.0]),
    ],
)
def test_each_file_may_have_its_own_decimal_mark(tmp_path: Path, first: str, second: str, expected: list[float]) -> None:
    """Numbers of one file would be a thousand times as large because of the other file."""
    cells_of_x = cells.read(read_files(tmp_path, a=first, b=second), "x", RULES)
    assert (cells_of_x.kind, cells_of_x.values.to_list()) == ("number", expected)


def test_a_file_of_thousands_or_decimals_beside_decimal_commas_is_refused(tmp_path: Path) -> None:
    """1.234 in one file is 1234 or 1.234, whatever the other file holds."""
    table = read_files(tmp_path, a="other;x\n1;1,0\n1;2,5\n", b="other;x\n1;1.234\n1;5\n")
    with pytest.raises(
        UserError, match=r"'x' holds numbers such as '1.234', whose point may be decimal or, as in 1.234,5, sep"
    ):
        cells.read(table, "x", RULES)


def test_a_decimal_comma_in_the_settings_is_not_for_numbers_of_json(tmp_path: Path) -> None:
    """The number 1.234 would be 1234, and 1.5 no number."""
    table = read_files(tmp_path, a="other;x\n1;1,234\n", b='{"other": 1, "x": 1.234}\n{"other": 1, "x": 1.5}\n')
    assert cells.read(table, "x", PrepareConfig(decimal=",")).values.to_list() == [1.234, 1.234, 1.5]


def test_new_files_are_read_in_the_form_of_training_each_by_itself(tmp_path: Path) -> None:
    """A number of JSON beside them would turn 1,234 of new rows into 1234."""
    table = read_files(tmp_path, a="other;x\n1;1,234\n1;2,345\n", b='{"other": 1, "x": 0.5}\n')
    new = cells.read_as(table, "x", "number", number_forms.DECIMAL_COMMA, RULES)
    assert new.values.to_list() == [1.234, 2.345, 0.5]
    assert new.notes == ("the column 'x' is read as numbers that are written as 1.234,5 in a",)


def new_rows(folder: Path, manifest: dict[str, Any], content: str) -> list[float]:
    """The feature x of new rows."""
    (folder / "new.csv").write_text(content)
    shutil.rmtree(folder / "new", ignore_errors=True)
    new_data.prepare(manifest, {"source": (str(folder / "new.csv"),), "out": str(folder / "new")})
    return open_table(folder / "new/rows/forecast")["x"].to_pylist()


AMERICAN = "x;other;y\n" + "".join(f"{number},000.50;{number};{number % 2}\n" for number in range(1, 61))
EUROPEAN = "x;other;y\n" + "".join(f"{number}.000,50;{number};{number % 2}\n" for number in range(1, 61))


@pytest.mark.parametrize("order", [("american", "european"), ("european", "american")])
def test_with_both_marks_in_training_ambiguous_new_rows_are_refused(order: tuple[str, str], tmp_path: Path) -> None:
    """The order of the training files would decide whether 1.234 of new rows is 1234."""
    for name, content in (("american", AMERICAN), ("european", EUROPEAN)):
        (tmp_path / name).write_text(content)
    manifest = prepare(tmp_path, *(tmp_path / name for name in order))
    with pytest.raises(UserError, match=r"'1.234', written as 1234.5 or as 1.234,5, and training had both: leave out"):
        new_rows(tmp_path, manifest, "x;other\n1.234;1\n5.678;2\n")
    assert new_rows(tmp_path, manifest, "x;other\n1.234,5;1\n5.678;2\n") == [1234.5, 5678.0]
    assert new_rows(tmp_path, manifest, 'x;other\n"1,234.5";1\n5.6;2\n') == [1234.5, pytest.approx(5.6)]


@pytest.mark.parametrize("target", [",5", ""], ids=["target", "feature"])
def test_whole_numbers_of_training_become_no_decimals_beside_decimal_commas(target: str, tmp_path: Path) -> None:
    """987 of training and 1.234 of new rows, 1234 by the same writer, would be 987 and 1.234."""
    other = "" if target else ",5"
    rows = (f"{900 + number};{number % 7}{other};{number}{target}\n" for number in range(60))
    (tmp_path / "a.csv").write_text("x;other;y\n" + "".join(rows))
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    assert new_rows(tmp_path, manifest, f"x;other\n987;1{other}\n1.234;2{other}\n") == [987.0, 1234.0]


@pytest.mark.parametrize("text", ["1.234", "1,234"])
def test_whole_numbers_beside_columns_with_both_marks_are_ambiguous_in_new_rows(text: str, tmp_path: Path) -> None:
    """1,234 of new rows would be 1.234 because of one column, although it is 1234 in another."""
    rows = (f"{number};{1 + number % 7}.234,5;{1 + number % 5},234.5;{number % 2}\n" for number in range(60))
    (tmp_path / "a.csv").write_text(f"x;european;american;y\n{''.join(rows)}")
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    with pytest.raises(UserError, match=f"'x' holds numbers such as '{text}', .* and training had both"):
        new_rows(tmp_path, manifest, f"x;european\n{text};1,5\n")


def test_whole_numbers_of_training_become_no_decimals_beside_thousands(tmp_path: Path) -> None:
    """12.500 and 950 of a spreadsheet, where training had 12500 and 950, would be 12.5 and 950 without a message."""
    rows = "".join(f"{900 + 10 * number};{number};{number % 2}\n" for number in range(60))
    (tmp_path / "a.csv").write_text(f"x;small;y\n{rows}")
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"'12.500', written as 1234.5 or as 1.234,5, and training had whole numbers: leave"):
        new_rows(tmp_path, manifest, "x;small\n950;1\n12.500;2\n")
    assert new_rows(tmp_path, manifest, "x;small\n950;1.234\n12.5000;2\n") == [950.0, 12.5]
    assert new_rows(tmp_path, manifest, "x;small\n950.0;1\n12.500;2\n") == [950.0, 12.5]
    frame = pl.DataFrame({"x": [950.0, 12.125], "small": [1, 2]})
    frame.write_parquet(tmp_path / "new.parquet")
    new_data.prepare(manifest, {"source": (str(tmp_path / "new.parquet"),), "out": str(tmp_path / "of_parquet")})
    assert open_table(tmp_path / "of_parquet/rows/forecast")["x"].to_pylist() == [950.0, 12.125]


def test_texts_of_another_file_have_no_decimal_mark(tmp_path: Path) -> None:
    """A fit would be refused for a column of texts, because one of them looks like a number."""
    table = read_files(tmp_path, a="other;x\n1;1,5\n1;red\n1;blue\n", b="other;x\n1;1.234\n1;5\n")
    assert cells.read(table, "x", RULES).kind == "text"


@pytest.mark.parametrize(
    ("texts", "unit", "is_refused"),
    [
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)] + ["987", "500"], "", True),
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)] + ["987", "500"], " €", True),
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)], "", False),
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)] + ["1.5", "500"], "", False),
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)] + ["1234", "500"], "", False),
        ([f"{number / 1000:.3f}" for number in range(1001, 1099)] + ["2.000", "500.000"], "", False),
        (["1.234", "2.345", "987"], "", False),
    ],
)
def test_thousands_that_are_separated_by_points_are_no_decimals(
    tmp_path: Path, texts: list[str], unit: str, is_refused: bool
) -> None:
    """987 would be more than 9.556, and thus a town of 987 inhabitants larger than one of 9556."""
    table = read_files(tmp_path, a="other;x\n" + "".join(f"1;{text}{unit}\n" for text in texts))
    message = (
        r"numbers such as '1.001' and '987', none with one or two decimals: the points may be decimal or separate thous"
    )
    if is_refused and not unit:
        with pytest.raises(UserError, match=message):
            cells.read(table, "x", RULES)
    elif is_refused:
        column = cells.read(table, "x", RULES)
        assert column.kind == "text"
        assert "separate thousands: it is read as text; add decimal=. or decimal=," in column.notes[0]
    else:
        assert cells.read(table, "x", RULES).kind == "number"
    assert cells.read(table, "x", PrepareConfig(decimal=".")).values[0] == float(texts[0])


@pytest.mark.parametrize("texts", [["8.500 €", "12.250 €"], ["8.500", "NA", "12.250"], ["8.500 €", "?", "(12.250 €)"]])
def test_points_beside_decimal_commas_are_refused_with_a_unit_and_empty_cells_too(tmp_path: Path, texts: list[str]) -> None:
    """Where another column has decimal commas, 8.500 € would be 8.5, and so would 8.500 if one cell were NA."""
    rows = (f"{texts[number % len(texts)]};{number},5;{number % 2}\n" for number in range(60))
    (tmp_path / "a.csv").write_text("x;other;y\n" + "".join(rows))
    with pytest.raises(UserError, match=r"'x' holds numbers such as '8.500', whose point may be .* 'other' has decimal c"):
        prepare(tmp_path, tmp_path / "a.csv")
    assert prepare(tmp_path, tmp_path / "a.csv", decimal=",")["splits"]["train"]["rows"] == 60


def test_points_of_new_rows_with_a_unit_beside_decimal_commas_are_refused(tmp_path: Path) -> None:
    """8.500 € of new rows would be 8.5, although the writer of their other column separates thousands by points."""
    rows = (f"{900 + number} €;{number}.5;{number % 2}\n" for number in range(60))
    (tmp_path / "a.csv").write_text("x;other;y\n" + "".join(rows))
    manifest = prepare(tmp_path, tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"'x' holds numbers such as '8.500', whose point may be .* 'other' has decimal c"):
        new_rows(tmp_path, manifest, "x;other\n8.500 €;1,5\n950 €;2,5\n")


def test_a_cell_that_is_no_number_does_not_make_thousands_decimals(tmp_path: Path) -> None:
    """One cell such as n.a. in a file would turn 1234, which must be asked for, into 1.234."""
    thousands = "".join(f"1;{number}.{number + 100}\n" for number in range(1, 150))
    table = read_files(tmp_path, a=f"other;x\n{thousands}1;987\n1;n.a.\n")
    with pytest.raises(UserError, match=r"'1.101' and '987', none with one or two decimals"):
        cells.read(table, "x", RULES)
    table = read_files(tmp_path, a="other;x\n1;1,0\n1;2,5\n", b=f"other;x\n{thousands}1;n.a.\n")
    with pytest.raises(UserError, match=r"'x' holds numbers such as '1.101', whose point may be decimal or"):
        cells.read(table, "x", RULES)
