"""The ranked forecast, as Parquet and as CSV.

forecast.parquet   rank (not with several classes), columns that identify the row, the ensemble's prediction, for a
                   regression the ends of its interval, and `reasons`: see reasons.py
forecast.csv       the same, with the reasons as one column of text, `why`

A recipe may provide other columns, as `outputs.forecast_table`. For a ranking it may limit the forecast to the best rows of
each group, by the entry `most_per_group` of the manifest.
"""

import dataclasses
import datetime
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ensemble import combine, folders, predictions, recipe
from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.data.reasons import order_of_forecast
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import reasons
from ensemble.predictor.intervals import Intervals
from ensemble.predictor.scoring import BASE_RATE, ENSEMBLE

MINUTES_OF_A_DAY = 24 * 60
DAYS_SINCE = "days since "
"""The unit of a feature that is a date consists of this and the date from which days are counted."""
ENDS = ("lower_90", "upper_90")
"""Columns with the ends of the prediction interval; see intervals.py."""
RESERVED = ("rank", "row_id", "id", "group", "prediction", *ENDS, "reasons", "why")
"""Columns of forecast.parquet and forecast.csv, which no member may be named after."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """The ensemble's forecast of n rows, in the order of their row ids."""

    data: Path
    manifest: dict[str, Any]
    """The manifest of `data`."""
    template: Predictions
    """A prediction file of these rows, for the columns that all members have in common."""
    columns: np.ndarray
    """The members' predictions, (n, num_members), or (n, num_members, num_classes)."""
    ensemble: combine.Ensemble
    prediction: np.ndarray
    """The ensemble's predictions, (n,), or (n, num_classes)."""
    order: np.ndarray
    """Numbers of the rows that are written, in this order: see `order_of_forecast`; with `most_per_group` not all n."""
    ends: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper ends of the prediction intervals of a regression, each (n,); None for other tasks."""


def check_name(name: str, manifest: dict[str, Any]) -> None:
    """Raise `UserError` for a name that no member of an ensemble on data with this manifest may have."""
    if name in (ENSEMBLE, BASE_RATE, *RESERVED, *(recipe.of(manifest).get("outputs", "RESERVED") or ())):
        raise UserError(f"name={name} is a name that the ensemble uses itself: give another name=…")


def write_forecast(
    out: Path, data: str | Path, files: list[Predictions], ensemble: combine.Ensemble, intervals: Intervals | None = None
) -> pa.Array:
    """Write forecast.parquet and forecast.csv, the row with the highest prediction first; return the column `why`.

    files : the members' prediction files, in the order of the ensemble's members; their reasons are combined. intervals :
    the prediction intervals of a regression. Rows of a ranking task are ranked within their group. Rows of a multiclass task
    are in the order of their ids, with a column for each class.
    """
    manifest = folders.read_manifest(data)
    template, columns = predictions.align(files)
    prediction = ensemble.predict(columns, ensemble.member_names, template.group)
    group = template.group if ensemble.kind == "ranking" else None
    order = order_of_forecast(template.row_id, prediction, group, manifest.get("most_per_group"))
    forecast = Forecast(
        data=Path(data),
        manifest=manifest,
        template=template,
        columns=columns,
        ensemble=ensemble,
        prediction=prediction,
        order=order,
        ends=None if intervals is None else intervals(prediction),
    )
    table = (recipe.of(manifest).get("outputs", "forecast_table") or _forecast_table)(forecast)
    reasons_of_rows = reasons.of_ensemble(files, ensemble, prediction) or [[] for _ in prediction]
    ordered = [reasons_of_rows[row] for row in order]
    parquet = table.append_column("reasons", pa.array(ordered, predictions.REASONS))
    pq.write_table(parquet, out / "forecast.parquet", compression="zstd")
    features = {feature["name"]: feature for feature in manifest["features"]}
    why = pa.array([_sentence(reasons_of_row, features) for reasons_of_row in ordered], pa.string())
    pyarrow.csv.write_csv(table.append_column("why", why), out / "forecast.csv")
    return why


def _sentence(reasons_of_row: reasons.Reasons, features: dict[str, dict[str, Any]]) -> str:
    """The text in the column `why` of a row. features : entries of the manifest's `features`, by name."""
    parts = []
    for reason in reasons_of_row:
        feature = features.get(reason["feature"], {})
        value = value_as_text(reason["value"], feature)
        # The meaning contains the name of the column as it is in the file; the name of a feature has no blanks
        name = feature["meaning"] if "column" in feature else reason["feature"]
        parts.append(f"{name} = {_number(reason['value']) if value is None else value}")
    lowers = "lowers the prediction: " if reasons_of_row and reasons_of_row[0]["contribution"] < 0 else ""
    return lowers + "; ".join(parts)


def _number(value: float) -> str:
    """A number as text: if its size is from 9,999.5 to a billion, rounded to a whole number; otherwise with four significant
    digits; `unknown` for NaN."""
    if math.isnan(value):
        return "unknown"
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def value_as_text(value: float, feature: dict[str, Any]) -> str | None:
    """The value of a category, a date or a number with an offset, as in the raw column; None for any other `feature`."""
    begin = None
    with suppress(ValueError):  # of another unit, such as "days since the last order" in a recipe of the user
        begin = datetime.datetime.fromisoformat(feature.get("unit", "").partition(DAYS_SINCE)[2])
    if not ("values" in feature or begin or "offset" in feature):
        return None
    if math.isnan(value):
        return "unknown"
    if "values" in feature:
        return str(feature["values"][int(value)]) if 0 <= value < len(feature["values"]) else "unknown"
    if begin:
        # Days since 1970 are 3 minutes apart as 32-bit floats: 10:00 is stored as 9:59
        step = 5 if np.spacing(np.float32(abs(value))) * MINUTES_OF_A_DAY > 0.5 else 1
        minutes = step * round(value * MINUTES_OF_A_DAY / step)
        try:
            time = begin + datetime.timedelta(minutes=minutes)
        except OverflowError:  # the 32-bit float of the last hours of the year 9999 is the next day
            time = datetime.datetime.max if minutes > 0 else datetime.datetime.min
        return time.isoformat(" ", "minutes").removesuffix(" 00:00")
    return f"{value + feature['offset']:.15g}"


def _forecast_table(forecast: Forecast) -> pa.Table:
    """The row id, the `id` if the data have one, and the prediction. With several classes the prediction is one column for
    each class. Otherwise there are also the rank, for a ranking the group, and for a regression the ends of the interval."""
    template, prediction, order = forecast.template, forecast.prediction, forecast.order
    names = {"row_id": template.row_id[order]}
    rows = open_table(forecast.data / "rows" / FORECAST)
    if "id" in rows.column_names:
        names["id"] = rows["id"].take(pc.index_in(pa.array(names["row_id"]), rows["row_id"]))
    if forecast.ensemble.kind == "multiclass":
        classes = {f"probability of {name}": prediction[order, number] for number, name in enumerate(template.classes)}
        return pa.table({**names, **classes})
    rank = np.arange(1, len(order) + 1)
    if forecast.ensemble.kind == "ranking":
        group = template.group[order]
        names = {"group": _names_of(forecast.data / "names" / "group", group), **names}
        _, first, size = np.unique(group, return_index=True, return_counts=True)
        rank -= np.repeat(first, size)
    ends = {name: end[order] for name, end in zip(ENDS, forecast.ends or (), strict=bool(forecast.ends))}
    return pa.table({"rank": rank, **names, "prediction": prediction[order], **ends})


def _names_of(folder: Path, codes: np.ndarray) -> Any:
    """The texts of integer codes, from a table with the columns `code` (ascending) and `name`; the codes without a table."""
    if not folder.is_dir():
        return codes
    table = open_table(folder)
    return table["name"].take(np.searchsorted(table["code"].to_numpy(), codes))
