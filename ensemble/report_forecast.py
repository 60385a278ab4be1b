"""The report's forecast: products with their probabilities and why, or a table's rows as forecast.csv has them."""

import datetime
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.report_words import feature_value, number

if TYPE_CHECKING:
    from ensemble.report import Run

NUM_ROWS = 50
DAYS_SINCE = "days since "
PRODUCT_COLUMNS = ("rank", "product_id", "title", "category", "probability", "reasons")


def products(run: "Run") -> dict[str, Any]:
    """The first products, each with its probability, its members' and the reasons in words."""
    assert run.forecast is not None
    table = run.forecast.slice(0, NUM_ROWS)
    probability = table["probability"].to_numpy()
    of_members = np.stack([table[name].to_numpy() for name in run.combiner.member_names], axis=1)
    features = {feature["name"]: feature for feature in run.about["features"]}
    scale = min(1.0, np.ceil(10 * max(probability.max(), of_members.max())) / 10)
    rows = []
    for number_of_row, row in enumerate(table.to_pylist()):
        reasons = []
        for reason in row["reasons"] or ():
            feature = features.get(reason["feature"], {"name": reason["feature"], "meaning": reason["feature"], "unit": ""})
            value = feature_value(reason["value"], feature["unit"], run.about["categories"])
            odds = np.exp(reason["contribution"])
            reasons.append(
                {
                    **feature,
                    "words": run.feature_words.get(feature["name"], feature["meaning"]),
                    "value": value,
                    "odds": number(float(odds), 1),
                }
            )
        members = dict(zip(run.combiner.member_names, of_members[number_of_row].tolist(), strict=True))
        rows.append({**row, "title": row["title"] or row["product_id"], "reasons": reasons, "members": members})
    return {
        "rows": rows,
        "scale": float(scale),
        "expected": float(probability.sum()),
        "expected_blindly": len(rows) * run.scores["base_rate"],
        "explained_by": run.explained_by,
    }


def rows(run: "Run") -> dict[str, Any]:
    """The first rows of a table's forecast: the columns, the cells of each row in words, and the reasons where there are."""
    assert run.forecast is not None
    names = [name for name in run.forecast.column_names if name not in ("reasons", "why")]
    features = {feature["name"]: feature for feature in run.about["features"]}
    found = []
    for row in run.forecast.slice(0, NUM_ROWS).to_pylist():
        reasons = [
            f"{run.feature_words[reason['feature']]}: {_value(reason['value'], features[reason['feature']])}"
            for reason in row.get("reasons") or ()
            if reason["feature"] in features
        ]
        found.append({"cells": [_cell(name, row[name]) for name in names], "reasons": reasons})
    return {
        "columns": [name.replace("_", " ") for name in names],
        "rows": found,
        "num_rows": run.forecast.num_rows,
        "explained_by": run.explained_by,
    }


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
    if "values" in feature:
        return str(feature["values"][int(value)])
    if feature["unit"].startswith(DAYS_SINCE):
        begin = datetime.datetime.fromisoformat(feature["unit"].removeprefix(DAYS_SINCE))
        return (begin + datetime.timedelta(days=value)).isoformat(" ", "minutes").removesuffix(" 00:00")
    return feature_value(value, feature["unit"], [])
