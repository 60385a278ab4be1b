"""The first rows of the forecast, for the report."""

from typing import Any

from ensemble.predictor.forecast import value_as_text
from ensemble.report.run import Run
from ensemble.report.words import feature_value, number

NUM_ROWS = 50
"""Largest number of rows that the report shows."""


def rows(run: Run) -> dict[str, Any]:
    """The names of the forecast's columns, and for each of its first rows the cells and reasons as text."""
    assert run.forecast is not None
    names = [name for name in run.forecast.column_names if name not in ("reasons", "why")]
    features = {feature["name"]: feature for feature in run.manifest["features"]}
    rows = []
    for row in run.forecast.slice(0, NUM_ROWS).to_pylist():
        contributions = [reason for reason in row.get("reasons") or () if reason["feature"] in features]
        reasons = [
            f"{run.feature_labels[reason['feature']]}: {feature_text(reason['value'], features[reason['feature']])}"
            for reason in contributions
        ]
        is_lower = bool(contributions) and contributions[0]["contribution"] < 0
        rows.append({"cells": [_cell(row[name]) for name in names], "reasons": reasons, "is_lower": is_lower})
    return {
        "columns": [name.replace("_", " ") for name in names],
        "rows": rows,
        "num_rows": run.forecast.num_rows,
        "explained_by": explained_by(run),
    }


def explained_by(run: Run) -> str:
    """The members whose contributions are the reasons, as words within a sentence; empty for none."""
    if not run.explained_by:
        return ""
    *others, last = run.explained_by
    return f"the members {', '.join(others)} and {last}, by their weights" if others else f"the member {last}"


def _cell(value: Any) -> str:
    if isinstance(value, list):  # of probabilities
        return ", ".join(number(each, 3) for each in value)
    if isinstance(value, float):
        return number(value, 3 if value == 0 or 0.001 <= abs(value) <= 1 else None)
    return "–" if value is None else str(value)


def feature_text(value: float, feature: dict[str, Any]) -> str:
    """A value of a feature as text; `feature` is an entry of the manifest's `features`."""
    text = value_as_text(value, feature)
    return feature_value(value, feature["unit"], []) if text is None else text
