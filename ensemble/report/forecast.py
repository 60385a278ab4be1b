"""The first rows of the forecast, for the report. The reasons of a row are the features that contribute most to its
prediction."""

from typing import Any

from markupsafe import Markup

from ensemble.predictor.forecast import value_as_text
from ensemble.report.run import Run
from ensemble.report.words import feature_value, number

NUM_ROWS = 50
"""Largest number of rows that the report shows."""
NUM_CLASSES = 6
"""Largest number of classes whose probabilities are all shown; with more classes, only that of the likeliest one is."""


def rows(run: Run) -> dict[str, Any]:
    """The names of the columns; for each of the first rows the cells as text, the labels and values of the features that
    are its reasons, and whether the first reason lowers the prediction; the number of all rows; and the members that give
    the reasons."""
    assert run.forecast is not None
    classes = {f"probability of {name}": name for name in run.task.classes}
    if not classes.keys() <= set(run.forecast.column_names):  # a recipe may write other columns
        classes = {}
    names = [name for name in run.forecast.column_names if name not in ("reasons", "why", *classes)]
    probabilities = list(classes) if len(classes) <= NUM_CLASSES else []
    features, labels = {feature["name"]: feature for feature in run.manifest["features"]}, run.feature_labels
    rows = []
    for row in run.forecast.slice(0, NUM_ROWS).to_pylist():
        contributions = [reason for reason in row.get("reasons") or () if reason["feature"] in features]
        reasons = [
            (labels[each["feature"]], feature_text(each["value"], features[each["feature"]])) for each in contributions
        ]
        is_lower = bool(contributions) and contributions[0]["contribution"] < 0
        likeliest = [max(classes, key=row.__getitem__)] if classes else []
        cells = [
            *(row[name] for name in names),
            *map(classes.get, likeliest),
            *(row[name] for name in likeliest + probabilities),
        ]
        rows.append({"cells": list(map(_cell, cells)), "reasons": reasons, "is_lower": is_lower})
    return {
        "columns": [
            *(name.replace("_", " ") for name in names),
            *(("likeliest class", "its probability") if classes else ()),
            *(Markup("probability of <bdi>{}</bdi>").format(classes[name]) for name in probabilities),
        ],
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
    """A value of forecast.parquet as text."""
    if isinstance(value, list):  # of probabilities
        return ", ".join(number(each, 3) for each in value)
    if isinstance(value, float):
        return number(value, 3 if value == 0 or 0.01 <= abs(value) <= 1 else None)
    return "–" if value is None else str(value)


def feature_text(value: float, feature: dict[str, Any]) -> str:
    """A value of a feature as text. feature : an entry of the manifest's `features`."""
    text = value_as_text(value, feature)
    return feature_value(value, feature["unit"], []) if text is None else text
