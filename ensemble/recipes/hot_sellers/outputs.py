"""The table of forecasts for products, and the scores of the test split by week and by category."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.combine import diversity
from ensemble.metrics import REPORTED_METRICS
from ensemble.predictions import Predictions
from ensemble.predictor.forecast import Forecast

PRODUCT_COLUMNS = ("rank", "product_id", "title", "category", "probability")
RESERVED = (*PRODUCT_COLUMNS, "reasons", "why")
"""Columns of the forecast. Each member has a column with its name, which may not be one of these."""


def forecast_table(forecast: Forecast) -> pa.Table:
    """A row for each product of the split forecast, most probable first, with its probability by ensemble and members.

    The metadata of the table has the entries `week`, `horizon_weeks` and `lacking`.
    """
    manifest, order = forecast.manifest, forecast.order
    products = open_table(forecast.data / "products").take(forecast.template.cluster[order])
    categories = np.array(manifest["categories"])
    table = pa.table(
        {
            "rank": np.arange(1, len(order) + 1),
            "product_id": products["product_id"],
            "title": products["title"],
            "category": categories[products["category"].to_numpy()],
            "probability": forecast.prediction[order],
            **{
                name: forecast.ensemble.probabilities(name, column[order])
                for name, column in zip(forecast.ensemble.member_names, forecast.columns.T, strict=True)
            },
        }
    )
    return table.replace_schema_metadata(
        {
            "week": manifest["last_week"],
            "horizon_weeks": str(manifest["config"]["horizon_weeks"]),
            "lacking": json.dumps(manifest.get("lacking", {})),
        }
    )


def scores_by_part(kind: str, test: Predictions, predictions: dict[str, np.ndarray], data: str | Path) -> dict[str, Any]:
    """Scores by week and by category, and the trend of the weekly scores.

    predictions : for the ensemble and each member, the probabilities of the rows of `test`, (num_rows,).
    """
    weeks, week = np.unique(test.group, return_inverse=True)
    by_week = diversity.scores_by_part(kind, test.target, predictions, test.group, week, [str(number) for number in weeks])
    category = open_table(Path(data) / "products")["category"].to_numpy()[test.cluster]
    names = [name or "without category" for name in folders.read_manifest(data)["categories"]]
    return {
        "by_week": by_week,
        "by_category": diversity.scores_by_part(kind, test.target, predictions, test.group, category, names),
        "drift": {metric: diversity.drift(by_week, metric) for metric in REPORTED_METRICS[kind]},
    }
