"""Requests to the service of a table, rows as JSON: errors name the column, predictions are those for a file of the rows."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fits
import numpy as np
import pandas as pd
import polars as pl
import psutil
import pytest
from fastapi.testclient import TestClient
from launcher import TIMEOUT_S
from pydantic import ValidationError

from ensemble.errors import Failure, UserError
from ensemble.pipeline import plan
from ensemble.predictor import fitting
from ensemble.predictor.loaded import Predictor
from ensemble.predictor.service import make_app
from ensemble.predictor.settings import ServeConfig
from ensemble.recipes.table import number_forms, requests
from ensemble.trees import threads

LIKE: dict[str, Any] = {
    "config": {"missing": []},
    "task": {"kind": "binary"},
    "target": {"column": "y", "names": ["no", "yes"]},
    "features": [
        {"name": "age", "column": "age", "unit": ""},
        {"name": "job", "column": "job", "unit": "category", "categories": 2, "values": ["a", "b"]},
        {"name": "is_new", "column": "is new", "unit": "0 or 1"},
        {"name": "day", "column": "day", "unit": "days since 1970-01-01"},
        {"name": "day_weekday", "column": "day", "unit": "weekday", "part": "weekday"},
    ],
}


def request_of(*rows: dict[str, Any]) -> requests.Request:
    return requests.Request(rows=list(rows))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"age": "old"}, "age"),
        ({"age": True}, "age"),
        ({"day": 2.5}, "day"),
        ({"day": "2024-13-45"}, "day"),
        ({"day": "garbage"}, "day"),
        ({"day": 5}, "day"),
        ({"is new": 7}, "is new"),
        ({"age": float("inf")}, "age"),
        ({"age": "1e999"}, "age"),
        ({"age": "1_0"}, "age"),
        ({"age": "1,2,3"}, "age"),
        ({"age": "\u0663"}, "age"),
    ],
)
def test_a_wrong_value_is_named_by_its_column(row: dict[str, Any], column: str) -> None:
    """The value would count as empty, without a message."""
    problem = requests.problem(request_of({"age": 1, "day": "2024-01-31"}, row), LIKE)
    assert problem
    assert problem[0] == ["rows", 1, column]


@pytest.mark.parametrize("unit", ["", " kg"])
def test_a_decimal_point_is_refused_if_the_mark_is_a_comma(unit: str) -> None:
    """The value would count as empty."""
    features = [{"name": "x", "column": "x", "unit": "", "form": f"1.234,5{unit}"}]
    like = {"config": {"missing": [], "decimal": ","}, "features": features}
    for text in ("1,5", "1.500"):
        assert requests.problem(request_of({"x": f"{text}{unit}"}), like) is None
    for text in ("1.5", ".5"):
        problem = requests.problem(request_of({"x": f"{text}{unit}"}), like)
        assert problem
        assert problem[1] == f"\"{text}{unit}\" does not fit: the column 'x' holds numbers with decimal commas"


def test_the_texts_of_a_column_are_examined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with 100,000 durations, or prices such as $1,200, would take minutes."""
    respelled, sizes = number_forms.respelled, []
    monkeypatch.setattr(number_forms, "respelled", lambda cells: sizes.append(len(cells)) or respelled(cells))
    like = {"config": {"missing": []}, "features": [{"name": "x", "column": "x", "unit": "", "form": "13:45, in hours"}]}
    rows = [{"x": f"{number // 60}:{number % 60:02}"} for number in range(300)]
    assert requests.problem(request_of(*rows), like) is None
    problem = requests.problem(request_of(*rows, {"x": "9:5x"}), like)
    assert problem == (["rows", 300, "x"], "\"9:5x\" does not fit: the column 'x' holds numbers")
    assert len(sizes) < 10


def test_names_have_no_blanks_around_them() -> None:
    """The value of ` age` would not be checked, and a request with such names alone would be refused, unlike a file."""
    request = request_of({" age": 1, "job ": "a"}, {" age": True})
    assert requests.problem(request, LIKE) == (["rows", 1, "age"], "true does not fit: the column 'age' holds numbers")
    assert requests.tables(request)[0].column_names == ["age", "job"]
    with pytest.raises(ValidationError, match="two columns 'age'"):
        request_of({"age": 1, " age": 2})


def test_dates_of_any_form_are_taken() -> None:
    """The service would refuse dates that a file or data frame may have."""
    texts = [
        "2024-01-31",
        "31/12/2024",
        "12/31/2024",
        "31-Jan-2024",
        "2024-01",
        "20240131",
        20240131,
        20240131.0,
        " 2024-01-31T10:00Z ",
        "?",
        " ",
    ]
    assert all(requests.problem(request_of({"day": text}), LIKE) is None for text in texts)
    rows = [{"day": text} for text in [*texts, "2024-02-30", "yesterday"]]
    assert requests.problem(request_of(*rows), LIKE) == (
        ["rows", len(texts), "day"],
        "\"2024-02-30\" does not fit: the column 'day' holds dates",
    )


def test_a_date_of_digits_has_all_eight() -> None:
    """Beside other dates, 2024111 would count as empty, and its row would get a prediction instead of an error."""
    feature = {"name": "day", "column": "day", "unit": "days since 1970-01-01", "form": "%Y%m%d"}
    problem = requests.problem(request_of({"day": 20240131}, {"day": 2024111}), LIKE | {"features": [feature]})
    assert problem == (["rows", 1, "day"], "2024111 does not fit: the column 'day' holds dates")


def test_marks_of_missing_values_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service would refuse an empty cell that a file may have."""
    assert requests.problem(request_of({"day": " NA ", "age": " ? "}), LIKE) is None
    monkeypatch.setitem(LIKE, "config", {"missing": ["0", "-1"]})
    assert requests.problem(request_of({"day": 0}, {"day": -1}, {"day": " -1"}), LIKE) is None
    assert requests.problem(request_of({"day": 0.0, "is new": 1.0}, {"is new": -1.0}), LIKE) is None
    assert requests.problem(request_of({"day": 0}, {"day": 2}), LIKE)


def test_values_that_mean_the_same_are_taken() -> None:
    """A caller's JSON library writes numbers and truth values in its own way."""
    rows = [{"age": "1,234.5", "job": 3, "is new": 1, "day": "2024-01-31"}, {"age": None, "is new": "yes", "other": "x"}]
    assert requests.problem(request_of(*rows), LIKE) is None
    table, _ = requests.tables(request_of(*rows))
    assert table["job"].to_pylist() == [3, None]
    assert table["is new"].to_pylist() == ["1", "yes"]


@pytest.mark.parametrize(
    ("form", "decimal", "values"),
    [
        ("1.234,5", "", [1.125, "2,125"]),
        ("1234.5%", "", [7.5, "5%"]),
        ("1234.5 %", "", ["7.5 %", "0", "NA", "5"]),
        ("1.234,5 %", ",", ["7,5 %", "0,0", "NA", "5"]),
        ("13:45, in hours", "", ["9:05", "13.75"]),
        ("$1,234.5", "", [1234.5, "$1,234"]),
        ("13:45, in hours", "", [13.75, "9:05"]),
        ("1.234,5", ",", [1.5, "NA"]),
        ("", "", [1.5, "1,234"]),
        ("", "", ["1.5", "2,5"]),
        ("1.234,5", "", ["1.25", "1.234"]),
        ("€1.234,5", "", ["€1.25", "€1,234"]),
        ("%d/%m/%Y", "", ["01/02/2024", "05/02/2024", "2024-02-01"]),
    ],
)
def test_a_value_means_the_same_beside_any_other(form: str, decimal: str, values: list[Any]) -> None:
    """The prediction of a row would depend on the other rows: 2,125 beside a JSON number would be 2125."""
    unit = "days since 1970-01-01" if "%d" in form else ""
    like = {
        "config": {"missing": [], "decimal": decimal},
        "features": [{"name": "x", "column": "x", "unit": unit, "form": form}],
    }
    for request in (request_of(*({"x": value} for value in column)) for column in (values[:-1], values[-1:])):
        assert requests.problem(request, like) is None
    problem = requests.problem(request_of(*({"x": value} for value in values)), like)
    assert problem is not None
    assert problem[0] == ["rows", len(values) - 1, "x"]
    assert requests.problem(request_of({"age": 1.5}, {"age": "2"}), LIKE) is None


def test_a_long_value_is_shortened_in_an_error() -> None:
    """The response would repeat a text of any length, such as a page that was sent for a number."""
    like = {"config": {"missing": []}, "features": [{"name": "x", "column": "x", "unit": "", "form": "1.234,5"}]}
    for values in (["x" * 5000], [1.5, "0" * 5000]):  # a text that is no number, and one beside a JSON number
        problem = requests.problem(request_of(*({"x": value} for value in values)), like)
        assert problem
        assert "… does not fit" in problem[1]
        assert len(problem[1]) < 300


def test_whole_numbers_of_any_length_are_exact() -> None:
    """A number of more than 64 bits would cause status 500 with a traceback, or one of over 53 bits would lose digits."""
    rows = [{"age": 10**400, "job": 2**53 + 1}, {"age": 1.5, "job": 8.0}]
    table, _ = requests.tables(request_of(*rows))
    assert table["age"].to_pylist() == [str(10**400), "1.5"]
    assert table["job"].to_pylist() == ["9007199254740993", "8"]


def test_a_number_beside_texts_keeps_its_point() -> None:
    """5.125 beside a blank, or beside a text with a decimal comma, would be 5125 for members trained on decimal commas."""
    table, _ = requests.tables(request_of({"age": 5.125, "job": 5.125}, {"age": " ", "job": "7,5"}))
    assert table["age"].to_pylist() == [5.125, None]
    assert table["job"].to_pylist() == ["5.1250", "7,5"]


def test_nan_beside_texts_is_a_missing_value() -> None:
    """A text or id that is NaN, as json.dumps writes a missing one of pandas, would become the word nan."""
    content = '{"rows": [{"note": NaN, "id": NaN}, {"note": "late", "id": 7}, {"note": "nan", "id": "a"}]}'
    table, _ = requests.tables(requests.Request.model_validate_json(content))
    assert table.to_pydict() == {"note": [None, "late", "nan"], "id": [None, "7", "a"]}


@pytest.mark.parametrize(
    ("unit", "form", "value"),
    [("", "$1,234.5", "$1,234"), ("days since 1970-01-01", "%Y-%m-%d", "2024-01-31"), ("0 or 1", "", True)],
)
def test_nan_is_a_missing_value_of_any_column(unit: str, form: str, value: Any) -> None:
    """NaN would be refused as a number beside texts, or, with other marks of missing values, as no date or truth value."""
    feature = {"name": "x", "column": "x", "unit": unit, "form": form}
    like = {"config": {"missing": ["?"]}, "features": [feature]}
    assert requests.problem(request_of({"x": float("nan")}, {"x": value}), like) is None


def test_rows_without_a_known_column_are_refused() -> None:
    """All cells would count as empty, and each row would get the same prediction."""
    problem = requests.problem(request_of({"Age": 1}), LIKE)
    assert problem
    assert "age" in problem[1]
    with pytest.raises(ValidationError):
        request_of()


def test_nested_values_are_refused_only_in_features() -> None:
    """Records could not be sent as they are: a list or an object in a column that training left out would be an error."""
    rows = [{"age": 1, "tags": ["a", {"b": None}]}, {"age": 2, "tags": {}}, {"age": 3, "tags": 4}]
    assert requests.problem(request_of(*rows), LIKE) is None
    assert requests.tables(request_of(*rows))[0]["tags"].to_pylist() == ['["a", {"b": null}]', "{}", "4"]
    for name, kind in {"age": "numbers", "job": "texts", "is new": "true or false", "day": "dates"}.items():
        sentence = f"[1] does not fit: the column '{name}' holds {kind}"
        assert requests.problem(request_of({"age": 1}, {name: [1]}), LIKE) == (["rows", 1, name], sentence)


def test_the_schema_describes_the_columns() -> None:
    """A caller could only guess what to send."""
    schema = requests.facts(LIKE)["columns"]
    assert schema == {
        "age": {"holds": "number"},
        "job": {"holds": "text", "values": ["a", "b"]},
        "is new": {"holds": "true or false"},
        "day": {"holds": "date"},
    }


def test_a_mistake_in_python_names_no_file_of_ours(tmp_path: Path) -> None:
    """The message would begin with the name of a temporary file or be about YAML, or a pipe would stay open."""
    with pytest.raises(UserError, match=r"^there is no setting 'tarket'; did you mean 'target'"):
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "out", tarket="y")
    with pytest.raises(UserError, match="seed=-1 is impossible"):  # NumPy's integers are accepted
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "out", target="x", seed=np.int64(-1))
    with pytest.raises(UserError, match="target=z: the table has no such column"):  # floats are accepted as texts
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "out", target="z", missing=[-999.0])
    with pytest.raises(UserError, match="drop=x: the table has no such column"):
        Predictor.fit(pl.DataFrame({"y": [1, 2]}), out=tmp_path / "out", target="y", drop=pd.DataFrame({"x": []}).columns)
    with pytest.raises(UserError, match=r"^target is a list of 20,000 values: give one text, such as the name of a column$"):
        Predictor.fit(pl.DataFrame({"x": range(20_000)}), out=tmp_path / "out", target=pd.Series(range(20_000)))
    with pytest.raises(
        UserError, match="is not a setting: give a string, a number, true or false, or a list of them"
    ) as caught:
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "out", target=pl.Series([1, 2]))
    assert "\n" not in str(caught.value)


def test_a_file_in_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script named ensemble.py or random.py beside a notebook would replace a module of the fit."""
    (tmp_path / "ensemble.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^there is no setting 'tarket'"):
        Predictor.fit("a.csv", out="out", tarket="y")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_fit_ends_with_the_kernel_of_its_notebook() -> None:
    """The fit would go on for an hour, and hold the lock of its folder."""
    child = f"import time; print('begun', flush=True); time.sleep({TIMEOUT_S})"
    lines = ("import sys; from ensemble.predictor import fitting", f"fitting.COMMAND = [sys.executable, '-c', {child!r}]")
    statement = "\n".join((*lines, "fitting.fit('a.csv', 'out', 'table', False, {})"))
    with subprocess.Popen([sys.executable, "-c", statement], stderr=subprocess.PIPE, text=True) as kernel:
        assert kernel.stderr is not None
        assert kernel.stderr.readline() == "begun\n"
        (fit,) = psutil.Process(kernel.pid).children()
        kernel.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([fit], TIMEOUT_S / 2)[1] == []


def test_a_fit_that_is_interrupted_saves_its_state_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fit would be refused while the first one still uses the folder, and the advice to continue would be lost."""

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if text == "begun\n":
                raise KeyboardInterrupt
            return super().write(text)

    last = "print('.\\n' * 99_999, 'stopped: continue with --resume auto'); open('saved', 'w').close(); sys.exit()"
    child = f"import os, signal, sys, time\ndef stop(*_):\n {last}\nsignal.signal(signal.SIGTERM, stop)\n"
    # Not `print`: a signal that arrives within its write would let `stop` fail with "reentrant call inside BufferedWriter"
    begin = f"os.write(1, b'begun\\n')\ntime.sleep({TIMEOUT_S})"
    monkeypatch.setattr(fitting, "COMMAND", [sys.executable, "-c", child + begin])
    monkeypatch.setattr(sys, "stderr", printed := Interrupting())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fitting.fit("a.csv", "out", "table", False, {})
    assert Path("saved").exists()
    assert printed.getvalue().endswith("stopped: continue with resume=True\n")


def test_a_fit_without_its_folder_of_temporary_files_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that runs for weeks, whose folder in /tmp was deleted, would end in a FileNotFoundError of tempfile."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(Failure, match=r"^no temporary files can be written \(.*/gone/.*\): create their folder again$"):
        Predictor.fit("a.csv", out=tmp_path / "out", target="y")


def test_a_fit_whose_exit_code_would_be_lost_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that ignores SIGCHLD each fit would seem to succeed: after an error, an older fit in `out` was loaded."""
    monkeypatch.setattr(fitting, "COMMAND", [sys.executable, "-c", "import sys; sys.exit('error: an error')"])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(UserError, match="ignores the signal SIGCHLD, so that no exit code of a fit is known: call"):
            fitting.fit("a.csv", tmp_path / "out", "table", False, {})
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("name", ["😀", "a\x7fb", "a\u2028b", "ä\nb", r"\ud83d\ude00", "007", "no"])
def test_any_text_is_a_setting_in_python(tmp_path: Path, name: str) -> None:
    """A column or folder with an emoji in its name could not be given, or another name would be looked for."""
    with pytest.raises(UserError) as caught:
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "😀", target=name)
    assert str(caught.value) == f"target={name}: the table has no such column; it has x"


def test_the_encoding_of_an_editor_does_not_end_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors set PYTHONIOENCODING: an umlaut in a message would stop the fit with a UnicodeDecodeError."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin1")
    with pytest.raises(UserError, match=r"^target=größe: the table has no such column; it has x$"):
        Predictor.fit(pl.DataFrame({"x": [1, 2]}), out=tmp_path / "out", target="größe")


def test_an_error_of_several_lines_is_whole_in_python(tmp_path: Path) -> None:
    """The message would be its last line, `0  rows kept`."""
    (tmp_path / "a.csv").write_text("a,y\n1,2\n" + "1\n" * 9)
    with pytest.raises(UserError, match=r"^9 of 10 rows are bad \(90.00%.*\n(.*\n)+ *1  rows kept$"):
        Predictor.fit(tmp_path / "a.csv", out=tmp_path / "out", target="y")


def test_a_fit_in_python_prints_how_the_rows_were_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that are left out, cells that count as empty, and columns that are left out would not be seen."""
    lines = [f"{number},{'x' if number == 7 else number % 5},,{number % 2}" for number in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,d,y", "1", *lines, ""]))
    settings = {"target": "y", "time_limit": 0.0, "members": ["lightgbm"], "num_draws": 5}
    fitting.fit(tmp_path / "a.csv", tmp_path / "out", "table", False, settings)
    printed = capsys.readouterr().err
    assert re.search(r"\n +1  malformed line\n +a.csv:2: 1\n", printed)
    assert "the column 'b' has cells that are not numbers and count as empty (1): 'x' (a.csv:10)" in printed
    assert "left out: the column 'd' is empty in train" in printed
    with pytest.raises(UserError, match=r"contains a fit: add resume=True to continue it, or overwrite=True to replace it"):
        fitting.fit(tmp_path / "a.csv", tmp_path / "out", "table", False, settings)
    with pytest.raises(UserError, match=r"with other settings: .*, or add overwrite=True without resume$"):
        fitting.fit(tmp_path / "a.csv", tmp_path / "out", "table", True, {**settings, "seed": 7})
    assert printed.index("malformed line") < printed.index("combining") < printed.index("base rate")


def test_what_is_neither_a_path_nor_a_frame_is_refused(tmp_path: Path) -> None:
    """Two frames would be looked for as files, or a fit would be written to a folder named None and end in a traceback."""
    frame = pl.DataFrame({"x": [1, 2]})
    with pytest.raises(UserError, match=r"^rows are of the type list: give a path, a pandas or polars DataFrame"):
        Predictor.fit([frame, frame], out=tmp_path / "out", target="x")
    with pytest.raises(UserError, match=r"^out=None is not a path: name the folder to write"):
        Predictor.fit(frame, out=None, target="x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^resume='no' is neither True nor False: give True to continue the fit in out"):
        Predictor.fit(frame, out=tmp_path / "out", target="x", resume="no")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^recipe=None is not a name: give one, as in recipe='table', or leave it out"):
        Predictor.fit(frame, out=tmp_path / "out", target="x", recipe=None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^the recipe emulator predicts no new rows, so fit it by the commands, not in"):
        Predictor.fit(frame, out=tmp_path / "out", recipe="emulator")  # not at the end of the fit
    with pytest.raises(UserError, match=r"^None is not a path: give the folder of an ensemble"):
        Predictor.load(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^threads='two' is impossible"):
        Predictor.load(tmp_path, threads="two")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^threads='two' is impossible"):  # at the beginning, not after the fit
        Predictor.fit(frame, out=tmp_path / "out", target="no column", threads="two")  # type: ignore[arg-type]


def test_the_service_answers_as_a_file_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service of a table would predict otherwise than the command, or refuse with a traceback."""
    monkeypatch.setattr(plan, "plan", lambda manifest, num_threads: fits.planned("lightgbm"))
    monkeypatch.setattr("ensemble.pipeline.run.plan", lambda manifest, num_threads: fits.planned("lightgbm"))
    threads.provide_openmp()  # `threads.configure` would call it, but is replaced in the next line
    monkeypatch.setattr(threads, "configure", lambda requested=0: 1)
    people = fits.people()
    people.write_csv(tmp_path / "people.csv")
    fits.fit(tmp_path / "people.csv", tmp_path / "out")
    new = people.tail(fits.NUM_NEW).drop("y")
    new.write_csv(tmp_path / "new.csv")
    folder = tmp_path / "out/ensemble"
    with Predictor.load(folder, threads=1) as predictor:
        client = TestClient(make_app(predictor, ServeConfig(ensemble=str(folder))))
        answer = client.post("/predict", content=json.dumps({"rows": new.to_dicts()}))
        assert answer.status_code == 200, answer.text
        prediction_of = {row["id"]: row["prediction"] for row in answer.json()["forecast"]}
        frame = predictor.predict(tmp_path / "new.csv")
        assert frame["id"].to_list() == new["who"].to_list()
        with monkeypatch.context() as moved:  # as by os.chdir in a notebook, where the workers would read another file
            moved.chdir(tmp_path)
            assert predictor.predict("new.csv").equals(frame)
        assert [prediction_of[name] for name in frame["id"]] == frame["prediction"].to_list()
        again = predictor.predict(new.to_pandas().set_axis(range(7, 7 + len(new))))
        assert again["prediction"].to_list() == frame["prediction"].to_list()
        assert again.index[0] == 7  # pandas joins columns by the index
        with pytest.warns(UserWarning, match=r"new\.csv is given twice, also as .*new\.csv: it is read once"):
            assert predictor.predict([tmp_path / "new.csv"] * 2).equals(frame)
        sentences = "the new rows lack|training did not have the column 'unknown'|no training row has such a value, so the"
        with pytest.warns(UserWarning, match=sentences):
            one = predictor.predict(pl.DataFrame({"age": [20.0], "unknown": ["x"]}))
        assert one["prediction"].is_between(0, 1).all()
        answer = client.post("/predict", content='{"rows": [{"age": 20}, {"age": 1e300}]}')
        median = "2 of 2 rows of forecast have an empty or unknown value in 'colour'; no training row has such a value"
        assert [note.startswith(median) for note in answer.json()["notes"]].count(True) == 1
        assert any(
            "the column 'age' has cells that are not numbers and count as empty (1): " in note
            for note in answer.json()["notes"]
        )
        assert "'1e+300' (rows:2)" in answer.text
        with pytest.raises(UserError, match=re.escape(f"{tmp_path}/no.parquet does not exist")):
            predictor.predict(tmp_path / "no.parquet")
        for wrong in (pl.Series([1]), [{"age": 1}], pl.DataFrame({"age": [1]}, schema={"age": pl.Int128})):
            with pytest.raises(UserError, match=r"rows are of the type|cannot be read"):
                predictor.predict(wrong)
        refused = client.post("/predict", content=json.dumps({"rows": [{"age": "old"}]}))
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["body", "rows", 0, "age"]
        schema = client.get("/schema").json()
        assert schema["ensemble"]["columns"]["age"] == {"holds": "number"}
    predictor.close()  # again
    with pytest.raises(UserError, match="this Predictor was closed: load the ensemble again"):
        predictor.predict(new)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/out is the folder of a whole fit: give its ensemble")):
        Predictor.load(tmp_path / "out")
    with pytest.raises(UserError, match=r"people.csv/ensemble.json does not exist"):
        Predictor.load(tmp_path / "people.csv")


def test_a_missing_value_of_a_file_is_one_of_a_request() -> None:
    """The service would refuse NA, which a file of new rows may hold."""
    assert requests.problem(request_of({"age": "NA"}, {"age": "?"}), LIKE) is None
    assert requests.problem(request_of({"age": "NA"}), {**LIKE, "config": {"missing": ["none"]}}) is not None
