"""Classes of settings with postponed annotations, with optional types, and with types that settings cannot have."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest

from ensemble import configuration
from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    num_weeks: int = 8
    """Of a series."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The annotations are texts, because of the import above."""

    out: str = "???"
    """A folder."""
    num_trees: int = 1
    """Of a model."""
    kind: Literal["no", "all"] = "all"
    """A choice."""
    drop: tuple[str, ...] = ()
    """Columns."""
    group: str | None = None
    """A column."""
    num_rows: int | None = None
    """At most."""
    panel: Panel = dataclasses.field(default_factory=Panel)
    """A group of settings."""


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("out=1.10", "out", "1.10"),
        ("out=2026_11", "out", "2026_11"),
        ("kind=no", "kind", "no"),
        ("drop=[no,1.10]", "drop", ("no", "1.10")),
        ("group=no", "group", "no"),
        ("group=null", "group", None),
        ("out=null", "out", "null"),
        ("num_rows=064", "num_rows", 64),
        ("panel.num_weeks=4", "panel", Panel(num_weeks=4)),
    ],
)
def test_annotations_may_be_postponed_and_optional(word: str, name: str, value: Any) -> None:
    """The text 1.10 would become 1.1, the text no would become False, and the default that --help shows a text."""
    assert getattr(configuration.load(Config, None, ["out=x", word]), name) == value


def test_a_wrong_value_of_such_a_setting_is_one_sentence() -> None:
    """The form of the value would be looked up by the text of the annotation, and end in a traceback."""
    for word, form in (
        ("num_trees=many", "a whole number"),
        ("num_rows=many", "a whole number"),
        ("kind=x", "one of no, all"),
    ):
        with pytest.raises(UserError, match=f"{word} does not fit: write {form}"):
            configuration.load(Config, None, ["out=x", word])


@pytest.mark.parametrize("kind", [list[str], int | str, Literal[1, 2], tuple, Panel | None, dict[str, tuple[str, ...]]])
def test_a_type_that_settings_cannot_have_is_refused(kind: Any) -> None:
    """A list[str] would get other texts than the user wrote, without a message."""
    schema = dataclasses.make_dataclass("RecipeConfig", [("column", kind, None)])
    with pytest.raises(
        UserError, match=r"column of RecipeConfig has the type .*, which no setting can have: write bool, int"
    ):
        configuration.describe(schema)
