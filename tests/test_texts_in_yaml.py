"""Texts in a YAML file that look like numbers or booleans."""

import dataclasses
from pathlib import Path

import pytest

from ensemble import configuration
from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True)
class Config:
    out: str = ""
    drop: tuple[str, ...] = ()
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    num_rows: int = 0
    rate: float = 0.0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("out: 2026_11", "2026_11 is the number 202611 in YAML"),
        ("drop: [2024_01]", "2024_01 is the number 202401 in YAML"),
        ("drop: [a, 1_000]", "1_000 is the number 1000 in YAML: .*, or put quotes around a text"),
        ("out: 0x1A", "0x1A is the number 26 in YAML"),
        ("columns: {rating: +5}", r"\+5 is the number 5 in YAML"),
        ("out: 1.10", "YAML reads a text such as 1.10 as a number, here 1.1: put the text of out in quotes"),
        ("drop: [1e3]", "YAML reads a text such as 1.10 as a number, here 1000.0: put the text of drop in quotes"),
        (
            "drop: [NA, null]",
            r"drop=\['NA', None\] does not fit: write quotes around null and ~, which are no texts in YAML",
        ),
        (
            "columns: {2020: a}",
            "columns={2020: 'a'} does not fit: write a mapping, .*, with quotes around names such as 2020",
        ),
        ("columns: {rating: no}", "YAML reads a text such as no, on or off as a boolean: put the text of columns in quotes"),
    ],
)
def test_a_text_that_yaml_changes_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    """The folder 2026_11 would be 202611, the column 1.10 would be 1.1, or the error would not say what to change."""
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(UserError, match=sentence):
        configuration.load(Config, str(tmp_path / "a.yaml"))


def test_a_text_that_yaml_changes_is_refused_in_a_word() -> None:
    """The column 1_000 would be 1000, which does not exist."""
    with pytest.raises(UserError, match="the command line: 1_000 is the number 1000 in YAML"):
        configuration.load(Config, None, ["columns={rating: 1_000}"])
    assert configuration.load(Config, None, ["num_rows=1_000", "drop=[1_000]"]) == Config(drop=("1_000",), num_rows=1000)


def test_quoted_texts_and_numbers_are_kept(tmp_path: Path) -> None:
    """A number of rows could not have its thousands marked, or a quoted text would be refused too."""
    lines = ("out: '2026_11'", "drop: ['1.10', 2024]", "columns: {rating: 'no'}", "num_rows: 1_000_000", "rate: 1e-3")
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    config = configuration.load(Config, str(tmp_path / "a.yaml"))
    assert config == Config("2026_11", ("1.10", "2024"), {"rating": "no"}, 1_000_000, 0.001)


@pytest.mark.parametrize("text", ["a${b", "a${b}", r"\${b}", r"a\b", "$b"])
def test_stored_texts_are_literal(text: str) -> None:
    """A fit in a folder named a${b} would end in the middle: its settings would refer to the setting b."""
    assert configuration.from_dict(Config, {"out": text, "drop": [text]}) == Config(text, (text,))
    assert configuration.load(Config, None, [f"out={configuration.literal(text)}"]) == Config(text)


def test_an_unfinished_reference_is_explained(tmp_path: Path) -> None:
    """The message would be "write a string", or a traceback of the library."""
    with pytest.raises(UserError, match=r"out=a\$\{b has \$\{, which begins the name of another setting: write \\\$\{ for"):
        configuration.load(Config, None, ["out=a${b"])
    (tmp_path / "a.yaml").write_text("out: 'a${b'")
    with pytest.raises(UserError, match=r"a.yaml has \$\{, which begins"):
        configuration.load(Config, str(tmp_path / "a.yaml"))


def test_tabs_between_a_setting_and_a_comment(tmp_path: Path) -> None:
    """A file with tabs, as editors align comments, would end with a traceback, although YAML allows them."""
    (tmp_path / "a.yaml").write_text("out:\tx\t# a comment\nnum_rows: 3\t# another\ndrop: [a,\tb]\n")
    assert configuration.load(Config, str(tmp_path / "a.yaml")) == Config("x", ("a", "b"), num_rows=3)
    (tmp_path / "a.yaml").write_text("num_rows:\t010\n")
    with pytest.raises(UserError, match="010 is an octal number in YAML"):
        configuration.load(Config, str(tmp_path / "a.yaml"))


def test_an_alias_of_itself_is_refused() -> None:
    """The command would never end."""
    with pytest.raises(UserError, match=r"cannot be read \(.*recursive"):
        configuration.load(Config, None, ["columns=&a {b: *a}"])


def test_a_text_that_marks_a_setting_without_a_value_is_named() -> None:
    """The message would be to write a list, which it is: missing=[NA,???] for the question marks of a table."""
    for word in ("drop=[NA,???]", "drop=???"):
        with pytest.raises(UserError, match=r"^the command line: \?\?\? cannot be in a list, .*: replace it in drop and in"):
            configuration.load(Config, None, [word])
