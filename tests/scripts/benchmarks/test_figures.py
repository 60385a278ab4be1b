"""Figures of the READMEs: filling, comparison with the JSON, and the list of those whose code has changed."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import figures

from ensemble.errors import UserError

MEASURED = {"train.py": {"median_s": 0.046}, "report.py": {"median_s": 0.031}, "rows": [3, 22363], "gain": [0.1, -0.2]}


def marked(keys: str, form: str, text: str = "?", name: str = "help_times") -> str:
    return f"<!--f {name} {keys} {form}-->{text}<!--/f-->"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one measured JSON file."""
    results = tmp_path / figures.RESULTS
    results.mkdir(parents=True)
    interval = {"value": 0.25, "low": 0.2, "high": 0.31}
    content = {**MEASURED, "ap": interval, "a, b": {"mean": 5.265, "deviation": 0.81, "least": 1}}
    (results / "help_times.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "form", "text"),
    [
        ("train.py/median_s", ".0f*1000", "46"),
        ("rows/1", ",", "22,363"),
        ("rows/0", ".1f/60", "0.1"),
        ("ap", ".2f", "0.25 [0.20, 0.31]"),
        ("a, b", ".1f", "5.3 ± 0.8"),
        ("max:*/median_s", ".3f", "0.046"),
        ("range:*/median_s", ".0f*1000", "31 to 46"),
        ("level:gain/*", "d", "1"),
        ("count:gain/*", "d", "2"),
    ],
)
def test_a_figure_is_filled_and_then_agrees(root: Path, keys: str, form: str, text: str) -> None:
    """The README would state another number than its JSON, or lose the text around it."""
    page = root / "README.md"
    page.write_text(f"# Title\n\n| **{marked(keys, form)}** s | {marked(keys, form, 'old')} |\nend", encoding="utf-8")
    assert figures.fill(root) == 2
    assert page.read_text(encoding="utf-8") == (
        f"# Title\n\n| **{marked(keys, form, text)}** s | {marked(keys, form, text)} |\nend"
    )
    assert figures.fill(root, check=True) == 2


def test_a_wrong_figure_is_an_error_with_file_and_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make check` would pass with an old figure, or not name its place."""
    page = root / "folder" / "README.md"
    page.parent.mkdir()
    wrong = f"# Title\n{marked('train.py/median_s', '.0f*1000', '47')} ms\n"
    page.write_text(wrong, encoding="utf-8")
    with pytest.raises(UserError, match="1 of 1 figures differ from slurm/results: run make figures"):
        figures.fill(root, check=True)
    assert capsys.readouterr().out == "folder/README.md:2: help_times train.py/median_s: '47' is now '46'\n"
    assert page.read_text(encoding="utf-8") == wrong


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (marked("train.py/mean_s", ".0f"), "README.md:1: slurm/results/help_times.json has no train.py/mean_s"),
        (marked("rows/0", ".0f", name="absent"), "README.md:1: there is no slurm/results/absent.json"),
        (marked("*/median_s", ".0f"), r"README.md:1: \*/median_s needs one of min, max"),
        (marked("sum:rows/*", ".0f"), r"README.md:1: sum:rows/\* needs one of min, max"),
        (marked("max:rows/1", ".0f"), "README.md:1: max:rows/1 needs one of min, max"),
        (marked("train.py", ".0f"), "README.md:1: train.py of slurm/results/help_times.json cannot be written as .0f"),
        (marked("rows/0", "abc"), "README.md:1: rows/0 of slurm/results/help_times.json cannot be written as abc"),
        ("<!--f help_times rows/0 d-->3", "README.md:1 has a marker that is not"),
    ],
)
def test_a_wrong_marker_is_one_sentence(root: Path, text: str, error: str) -> None:
    """A misspelt key would leave an old figure in place, or end in a traceback."""
    (root / "README.md").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=error):
        figures.fill(root)
    assert (root / "README.md").read_text(encoding="utf-8") == text


def test_figures_whose_code_changed_are_listed(root: Path) -> None:
    """Figures of old code would look current, or a file that only moved, or a README, would count as changed code."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)

    def commit() -> None:
        git("add", ".")
        git("commit", "-m", "x")

    git("init")
    old = root / "ensemble/settings.py"
    page = root / "scripts/benchmarks/trees/README.md"
    unmeasured = root / "tests/scripts/test_train.py"
    for file in (old, page, unmeasured):
        file.parent.mkdir(parents=True)
    page.write_text("1", encoding="utf-8")
    (root / figures.RESULTS / "trees.json").write_text("{}", encoding="utf-8")
    old.write_text("".join(f"line {number}\n" for number in range(50)), encoding="utf-8")
    unmeasured.write_text("1", encoding="utf-8")
    commit()  # the JSON names no commit: the one that wrote it counts
    assert figures.ages(root) == []
    old.rename(root / "ensemble/errors.py")
    for changed in (unmeasured, page):
        changed.write_text("2", encoding="utf-8")
    commit()
    assert figures.ages(root) == []
    with (root / "ensemble/errors.py").open("a", encoding="utf-8") as file:
        file.write("one more\n")
    [line] = figures.ages(root)
    assert line.startswith("help_times.json: measured at ")
    assert line.endswith("since then changed: ensemble/errors.py")


def test_a_missing_commit_is_unknown(root: Path) -> None:
    """`make check` would fail in a shallow clone, or where there is no git."""
    path = root / figures.RESULTS / "help_times.json"
    path.write_text(json.dumps({"environment": {"commit": "0" * 40}}), encoding="utf-8")
    [line] = figures.ages(root)
    assert "unknown" in line


def test_each_result_has_an_entry_of_its_code() -> None:
    """The figures of a new JSON file would never be listed as old."""
    assert {path.stem for path in (figures.ROOT / figures.RESULTS).glob("*.json")} == set(figures.MEASURED)
    for paths in figures.MEASURED.values():
        assert all(list(figures.ROOT.glob(path)) for path in paths)


def test_each_result_has_a_row_in_the_page() -> None:
    """A reader would not know what a JSON file measures, nor with which command."""
    folder = figures.ROOT / figures.RESULTS
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in sorted(folder.glob("*.json")) if f"\n| `{path.name}` |" not in page] == []


def test_make_bench_measures_what_needs_no_other_files() -> None:
    """It would replace a JSON file by one without the parts that the READMEs show, and `make figures` would fail."""
    makefile = (figures.ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.findall(r"for figure in ([a-z_ ]+);", makefile)[0].split()
    for name in names:
        command = json.loads((figures.ROOT / figures.RESULTS / f"{name}.json").read_text(encoding="utf-8"))["environment"][
            "command"
        ]
        assert not re.search(r"=\S*[./]", command), command
