"""What only the report of hot sellers has: its first sentence, and the splits as weeks on a line."""

import datetime
from typing import TYPE_CHECKING, Any

from ensemble import metrics
from ensemble.predictor import ENSEMBLE, FORECAST

if TYPE_CHECKING:
    from ensemble.report import Run


def headline(run: "Run") -> dict[str, Any]:
    assert run.forecast is not None
    scores = run.scores["scores"][ENSEMBLE]
    week = datetime.date.fromisoformat(run.about["last_week"])
    horizon_weeks = run.about["config"]["horizon_weeks"]
    return {
        "week": week,
        "until": week + datetime.timedelta(weeks=1 + horizon_weeks, days=-1),
        "horizon_weeks": horizon_weeks,
        "products": run.forecast.num_rows,
        "precision": scores["precision_at_5pct"]["value"],
        "lift": scores["lift_at_5pct"]["value"],
        "base_rate": run.scores["base_rate"],
        "top_fraction": metrics.TOP_FRACTION,
    }


def timeline(about: dict[str, Any]) -> list[dict[str, Any]]:
    """Where each split lies between the first week and the end of the forecast's horizon, in percent."""
    first = datetime.date.fromisoformat(about["first_week"])
    horizon = datetime.timedelta(weeks=about["config"]["horizon_weeks"])
    week = datetime.timedelta(weeks=1)
    whole = datetime.date.fromisoformat(about["last_week"]) + week + horizon - first
    spans = {
        split: (datetime.date.fromisoformat(of["first_week"]), datetime.date.fromisoformat(of["last_week"]) + week)
        for split, of in about["splits"].items()
    }
    if FORECAST in spans:
        spans[FORECAST] = (spans[FORECAST][1], spans[FORECAST][1] + horizon)
    return [
        {"name": split, "left": 100 * ((begin - first) / whole), "width": 100 * ((end - begin) / whole)}
        for split, (begin, end) in spans.items()
    ]
