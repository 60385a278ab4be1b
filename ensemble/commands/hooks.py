"""Checks of the functions and classes of a recipe's package, in sentences for its author."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ensemble.errors import UserError, shortened

RETURNED = {
    "baselines.kinds": "dict",
    "plan.plan": "list of PlannedMember",
    "plan.combining": "dict",
    "plan.follow_up": "FollowUp",
    "comparison.compare": "dict",
    "outputs.forecast_table": "pyarrow.Table",
    "outputs.scores_by_part": "dict",
    "page.parts": "dict",
    "page.pictures": "list of tuple",
    "page.feature_label": "str",
    "page.prepare_words": "list of str",
    "card.parts": "Parts",
}
"""The type that each function must return, by its module and name. Types are named, since to import them may take long."""


def checked(value: Any, module: str, name: str, recipe: str) -> Any:
    """Return `value`, the object `name` of a module of a recipe. A function of `RETURNED` raises `UserError` if it returns
    a value of another type."""
    expected = RETURNED.get(f"{module}.{name}")
    if expected is None or not callable(value):
        return value
    function: Callable[..., Any] = value

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        outer, _, inner = expected.partition(" of ")
        wrong = [result] if not _is(result, outer) else [entry for entry in result if not _is(entry, inner)] if inner else []
        if wrong:
            found = "None" if wrong[0] is None else f"{shortened(repr(wrong[0]))} of the type {type(wrong[0]).__name__}"
            place = "" if wrong[0] is result else " in its list"
            raise UserError(f"{name}(…) in {module}.py of the recipe {recipe} returns {found}{place}: return a {expected}")
        return result

    return call


def _is(value: Any, type_name: str) -> bool:
    """Whether the type of `value`, or one that it inherits from, has a name."""
    return type_name.rpartition(".")[2] in [kind.__name__ for kind in type(value).__mro__]


def checked_settings(schema: type, recipe: str) -> type:
    """A class of settings of a recipe; `UserError` unless it is a dataclass whose fields have defaults."""
    if not dataclasses.is_dataclass(schema):
        fix = "write @dataclasses.dataclass(frozen=True, kw_only=True) above it"
        raise UserError(f"{schema.__name__} of the recipe {recipe} is no dataclass: {fix}")
    for field in dataclasses.fields(schema):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            fix = 'write = and a value after its type, or = "???" if the user must give it'
            raise UserError(f"{field.name} of {schema.__name__} of the recipe {recipe} has no default: {fix}")
    return schema
