"""The ranked forecast, as Parquet and as CSV: products with what is known of them, or the rows of a table.

forecast.parquet   rank, what names the row, the ensemble's forecast, and `reasons`: why, the strongest first
forecast.csv       the same, with the reasons in one column of words, `why`
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ensemble import combine, predictions
from ensemble.data import manifest
from ensemble.data.arrow import open_table
from ensemble.predictions import Predictions

SPLIT = "forecast"
PRODUCTS = "products"
RESERVED = ("rank", "product_id", "title", "category", "probability", "reasons", "why")


def strongest_reasons(files: list[Predictions], ensemble: combine.Ensemble) -> list[list[dict[str, Any]]] | None:
    """Why, as the member with the largest weight says that can say it; None if such members have no weight."""
    weight = dict(zip(ensemble.member_names, ensemble.weights, strict=True))
    able = [file for file in files if file.reasons and weight.get(file.member, 0) > 0]
    return max(able, key=lambda file: (weight[file.member], file.member)).reasons if able else None


def write_forecast(
    out: Path,
    data: str | Path,
    template: Predictions,
    columns: np.ndarray,
    ensemble: combine.Ensemble,
    reasons: list[list[dict[str, Any]]] | None,
) -> None:
    """forecast.parquet and forecast.csv: one row per product or row of the table, the highest first.

    template, columns : as `predictions.align` gives them. reasons : of each row, in the template's order. Rows of a ranking
    are ranked within their group, and those of a multiclass task stand in the order of their ids, with a column per class.
    """
    data = Path(data)
    about = manifest.read_manifest(data)
    found = ensemble.predict(columns, ensemble.member_names, template.group)
    order = _order(ensemble.kind, template, found)
    if (data / PRODUCTS).exists():
        table = _of_products(data, about, template, columns, ensemble, found, order)
    else:
        table = _of_rows(data, template, ensemble.kind, found, order)
    why = reasons or [[] for _ in order]
    table = table.append_column("reasons", pa.array([why[row] for row in order], predictions.REASONS))
    pq.write_table(table, out / "forecast.parquet", compression="zstd")
    sentences = ["; ".join(f"{reason['feature']} = {reason['value']:.4g}" for reason in why[row]) for row in order]
    csv = table.drop_columns(["reasons"]).append_column("why", pa.array(sentences, pa.string()))
    pyarrow.csv.write_csv(csv, out / "forecast.csv")


def _order(kind: str, template: Predictions, found: np.ndarray) -> np.ndarray:
    if kind == "multiclass":
        return np.argsort(template.row_id, kind="stable")
    falling = (template.row_id, -found)
    return np.lexsort((*falling, template.group)) if kind == "ranking" else np.lexsort(falling)


def _of_products(
    data: Path,
    about: dict[str, Any],
    template: Predictions,
    columns: np.ndarray,
    ensemble: combine.Ensemble,
    found: np.ndarray,
    order: np.ndarray,
) -> pa.Table:
    """With the product's words and each member's own probability; the week and the horizon are in the metadata."""
    products = open_table(data / PRODUCTS).take(template.cluster[order])
    categories = np.array(about["categories"])
    table = pa.table(
        {
            "rank": np.arange(1, len(order) + 1),
            "product_id": products["product_id"],
            "title": products["title"],
            "category": categories[products["category"].to_numpy()],
            "probability": found[order],
            **{
                name: ensemble.probabilities(name, column[order])
                for name, column in zip(ensemble.member_names, columns.T, strict=True)
            },
        }
    )
    return table.replace_schema_metadata(
        {"week": about["last_week"], "horizon_weeks": str(about["config"]["horizon_weeks"])}
    )


def _of_rows(data: Path, template: Predictions, kind: str, found: np.ndarray, order: np.ndarray) -> pa.Table:
    """With the row's number, its `id` where the table has one, and the forecast: one column, or one for each class."""
    names = {"row_id": template.row_id[order]}
    rows = open_table(data / "rows" / SPLIT)
    if "id" in rows.column_names:
        by_row_id = np.argsort(rows["row_id"].to_numpy(), kind="stable")  # the template's order
        names["id"] = rows["id"].take(by_row_id[order])
    if kind == "multiclass":
        shares = {f"probability of {name}": found[order, number] for number, name in enumerate(template.classes)}
        return pa.table({**names, **shares})
    rank = np.arange(1, len(order) + 1)
    if kind == "ranking":
        names = {"group": template.group[order], **names}
        _, first, size = np.unique(names["group"], return_index=True, return_counts=True)
        rank -= np.repeat(first, size)
    return pa.table({"rank": rank, **names, "prediction": found[order]})
