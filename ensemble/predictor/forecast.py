"""The ranked forecast, as Parquet and as CSV.

forecast.parquet   rank, what names the row, the ensemble's forecast, and `reasons`: see reasons.py
forecast.csv       the same, with the reasons in one column of words, `why`

A recipe may name its rows in its own way, by `outputs.forecast_table`.
"""

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ensemble import combine, folders, predictions, recipe
from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.predictions import Predictions
from ensemble.predictor import reasons
from ensemble.predictor.intervals import Intervals

DAYS_SINCE = "days since "
"""The unit of a feature that is a date begins so."""
ENDS = ("lower_90", "upper_90")
"""Columns of the ends of the prediction interval; see intervals.py."""
RESERVED = ("rank", "reasons", "why")
"""Columns of forecast.parquet, after which no member may be named."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """The ensemble's forecast of n rows, in the order of their row ids."""

    data: Path
    about: dict[str, Any]
    """The manifest of `data`."""
    template: Predictions
    columns: np.ndarray
    """The members' predictions, (n, num_members), or (n, num_members, num_classes)."""
    ensemble: combine.Ensemble
    prediction: np.ndarray
    """The ensemble's own, (n,), or (n, num_classes)."""
    order: np.ndarray
    """(n,): the rows as they are written, the highest prediction first."""
    ends: tuple[np.ndarray, np.ndarray] | None = None
    """Of the prediction intervals, each (n,)."""


def write_forecast(
    out: Path,
    data: str | Path,
    template: Predictions,
    columns: np.ndarray,
    ensemble: combine.Ensemble,
    files: list[Predictions],
    intervals: Intervals | None = None,
) -> None:
    """forecast.parquet and forecast.csv: one row per row of the split, the highest first.

    template, columns : as `predictions.align` gives them for `files`, whose reasons are combined. intervals : of a
    regression, for the columns of both ends. Rows of a ranking are ranked within their group, and those of a multiclass task
    are in the order of their ids, with a column for each class.
    """
    about = folders.read_manifest(data)
    prediction = ensemble.predict(columns, ensemble.member_names, template.group)
    forecast = Forecast(
        data=Path(data),
        about=about,
        template=template,
        columns=columns,
        ensemble=ensemble,
        prediction=prediction,
        order=_order(ensemble.kind, template, prediction),
        ends=None if intervals is None else intervals(prediction),
    )
    table = (recipe.of(about).get("outputs", "forecast_table") or _of_rows)(forecast)
    why = reasons.of_ensemble(files, ensemble, prediction) or [[] for _ in forecast.order]
    table = table.append_column("reasons", pa.array([why[row] for row in forecast.order], predictions.REASONS))
    pq.write_table(table, out / "forecast.parquet", compression="zstd")
    features = {feature["name"]: feature for feature in about["features"]}
    sentences = [_sentence(why[row], features) for row in forecast.order]
    csv = table.drop_columns(["reasons"]).append_column("why", pa.array(sentences, pa.string()))
    pyarrow.csv.write_csv(csv, out / "forecast.csv")


def _sentence(reasons_of_row: reasons.Reasons, features: dict[str, dict[str, Any]]) -> str:
    words = []
    for reason in reasons_of_row:
        feature = features.get(reason["feature"], {})
        value, name = value_in_words(reason["value"], feature), reason["feature"]
        if "text" in feature:  # a number of a column of free text
            name = feature["meaning"]
        words.append(f"{name} = " + (f"{reason['value']:.4g}" if value is None else value))
    lowers = "lowers it: " if reasons_of_row and reasons_of_row[0]["contribution"] < 0 else ""
    return lowers + "; ".join(words)


def value_in_words(value: float, feature: dict[str, Any]) -> str | None:
    """The value of a category, a date or a number above an offset as the column has it; None for other features.

    feature : an entry of the manifest's `features`.
    """
    is_date = feature.get("unit", "").startswith(DAYS_SINCE)
    if not ("values" in feature or is_date or "offset" in feature):
        return None
    if math.isnan(value):
        return "unknown"
    if "values" in feature:
        return str(feature["values"][int(value)])
    if is_date:
        begin = datetime.datetime.fromisoformat(feature["unit"].removeprefix(DAYS_SINCE))
        return (begin + datetime.timedelta(days=value)).isoformat(" ", "minutes").removesuffix(" 00:00")
    return f"{value + feature['offset']:.15g}"


def _order(kind: str, template: Predictions, prediction: np.ndarray) -> np.ndarray:
    if kind == "multiclass":
        return np.argsort(template.row_id, kind="stable")
    falling = (template.row_id, -prediction)
    return np.lexsort((*falling, template.group)) if kind == "ranking" else np.lexsort(falling)


def _of_rows(forecast: Forecast) -> pa.Table:
    """The row's number, its `id` where the data have one, and the forecast: one column, or one for each class."""
    template, prediction, order = forecast.template, forecast.prediction, forecast.order
    names = {"row_id": template.row_id[order]}
    rows = open_table(forecast.data / "rows" / FORECAST)
    if "id" in rows.column_names:
        by_row_id = np.argsort(rows["row_id"].to_numpy(), kind="stable")  # the template's order
        names["id"] = rows["id"].take(by_row_id[order])
    if forecast.ensemble.kind == "multiclass":
        shares = {f"probability of {name}": prediction[order, number] for number, name in enumerate(template.classes)}
        return pa.table({**names, **shares})
    rank = np.arange(1, len(order) + 1)
    if forecast.ensemble.kind == "ranking":
        group = template.group[order]
        names = {"group": _names_of(forecast.data / "names" / "group", group), **names}
        _, first, size = np.unique(group, return_index=True, return_counts=True)
        rank -= np.repeat(first, size)
    ends = {name: end[order] for name, end in zip(ENDS, forecast.ends or (), strict=bool(forecast.ends))}
    return pa.table({"rank": rank, **names, "prediction": prediction[order], **ends})


def _names_of(folder: Path, codes: np.ndarray) -> Any:
    """The texts behind codes, if the prepared data have a table of `code`, rising, and `name` for them; else the codes."""
    if not folder.is_dir():
        return codes
    table = open_table(folder)
    return table["name"].take(np.searchsorted(table["code"].to_numpy(), codes))
