"""The report's forecast: the first rows, as forecast.csv has them."""

import math
from typing import Any

from ensemble.predictor.forecast import value_in_words
from ensemble.report.run import Run
from ensemble.report.words import feature_value, number

NUM_ROWS = 50


def rows(run: Run) -> dict[str, Any]:
    """The first rows of a table's forecast: the columns, the cells of each row in words, and the reasons where there are."""
    assert run.forecast is not None
    names = [name for name in run.forecast.column_names if name not in ("reasons", "why")]
    features = {feature["name"]: feature for feature in run.about["features"]}
    found = []
    for row in run.forecast.slice(0, NUM_ROWS).to_pylist():
        contributions = [reason for reason in row.get("reasons") or () if reason["feature"] in features]
        reasons = [
            f"{run.feature_words[reason['feature']]}: {_value(reason['value'], features[reason['feature']])}"
            for reason in contributions
        ]
        is_lower = bool(contributions) and contributions[0]["contribution"] < 0
        found.append({"cells": [_cell(name, row[name]) for name in names], "reasons": reasons, "is_lower": is_lower})
    return {
        "columns": [name.replace("_", " ") for name in names],
        "rows": found,
        "num_rows": run.forecast.num_rows,
        "explained_by": explained_by(run),
    }


def explained_by(run: Run) -> str:
    """The members that give reasons, within a sentence; empty for none."""
    if not run.explained_by:
        return ""
    *others, last = run.explained_by
    return f"the members {', '.join(others)} and {last}, by their weights" if others else f"the member {last}"


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list):  # of probabilities
        return ", ".join(number(each, 3) for each in value)
    if isinstance(value, float):
        return number(value, 3 if abs(value) <= 1 else None)
    return "–" if value is None else str(value)


def _value(value: float, feature: dict[str, Any]) -> str:
    """A feature's value in the words of its column."""
    if math.isnan(value):
        return "unknown"
    words = value_in_words(value, feature)
    return feature_value(value, feature["unit"], []) if words is None else words
