"""The parts of the report that only hot_sellers has: headline, products with reasons, scores by week, timeline of splits."""

import datetime
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.data.inputs import FORECAST
from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipes.hot_sellers.features import FEATURES
from ensemble.recipes.hot_sellers.outputs import PRODUCT_COLUMNS
from ensemble.recipes.hot_sellers.settings import RECORDED_SETTINGS
from ensemble.recipes.hot_sellers.weekly import monday
from ensemble.report.commands import settings_words
from ensemble.report.forecast import explained_by
from ensemble.report.run import Run
from ensemble.report.svg import Picture, colour
from ensemble.report.words import feature_value, number

NEEDED = ("features", "census", "categories", "last_week")
"""Entries of the manifest that the page requires."""
FORECAST_COLUMNS = (*PRODUCT_COLUMNS, "reasons")
NUM_PRODUCTS = 50
"""The largest number of products on the page."""
METRIC_DESCRIPTIONS = {
    "average_precision": "The area under the precision-recall curve: 1 is perfect, the base rate is random.",
    "roc_auc": "The probability that a hot product is ranked above one that is not hot: 1 is perfect, 0.5 is random.",
    "log_loss": "Mean negative log likelihood of the outcomes; confident errors cost most.",
    "brier": "Mean squared difference between the probability and the outcome.",
    "calibration_error": "Difference between the probability and the share that became hot; 0 for a constant base rate.",
    "precision_at_5pct": "Of the products in each week's top 5 %, the share that became hot.",
    "lift_at_5pct": "Precision in each week's top 5 % as a multiple of the base rate.",
}
"""Descriptions of the columns of the score table."""


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    return {"headline": _headline(run), "forecast": _products(run), "timeline": _timeline(run.manifest)}


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """Average precision week by week."""
    by_week = run.diversity["by_week"]

    def draw(axes: Any) -> None:
        weeks = [int(week) for week in by_week]
        for name in run.candidates:
            scores = [week["average_precision"][name] for week in by_week.values()]
            axes.plot(weeks, np.array(scores, float), marker="o", markersize=3, **series[name])
        share_of_hot = [week["positives"] / week["rows"] for week in by_week.values()]
        axes.plot(weeks, share_of_hot, color=colour("muted"), linewidth=1)
        ticks = weeks[:: max(1, -(-len(weeks) // 5))]
        axes.set_xticks(ticks, [f"{monday(week).day} {monday(week):%b}" for week in ticks])
        years = "–".join(dict.fromkeys(f"{monday(week):%Y}" for week in (weeks[0], weeks[-1])))
        axes.set(ylim=(0, None), xlabel=f"test week, {years}", ylabel="average precision")

    caption = "Shows whether the score depends on a single week. The grey line is the week’s share of hot products."
    return [("Average precision by test week", caption, "Average precision in each test week.", draw)]


def prepare_words(manifest: dict[str, Any]) -> list[str]:
    """The arguments of the scripts/prepare_data.py command that prepared the data, without `out`."""
    files = {
        key: [file["file"] for file in manifest.get(census, {}).get("files", ())]
        for key, census in (("source", "census"), ("metadata", "product_census"))
    }
    raw = {key: names for key, names in files.items() if names}
    recorded = {name: manifest[name] for name in RECORDED_SETTINGS if name in manifest}
    return [*settings_words({**raw, **recorded}), *settings_words(manifest["config"], "panel.")]


def feature_label(feature: dict[str, Any]) -> str:
    """A short description of a feature of the manifest: its label in `FEATURES`, or its `meaning` if it is not there."""
    labels = {known.name: known.label for known in FEATURES}
    return labels.get(feature["name"], feature["meaning"])


def _products(run: Run) -> dict[str, Any]:
    """The first products of the forecast: probabilities of the ensemble and of the members, and reasons in words."""
    assert run.forecast is not None
    table = run.forecast.slice(0, NUM_PRODUCTS)
    member_names = run.combiner.member_names
    highest = max(table[name].to_numpy().max() for name in ("probability", *member_names))
    features, labels = {feature["name"]: feature for feature in run.manifest["features"]}, run.feature_labels
    rows = []
    for row in table.to_pylist():
        reasons = [
            {
                **features[reason["feature"]],
                "words": labels[reason["feature"]],
                "value": feature_value(reason["value"], features[reason["feature"]]["unit"], run.manifest["categories"]),
                "odds": number(float(np.exp(abs(reason["contribution"]))), 1),
                "is_lower": reason["contribution"] < 0,
            }
            for reason in row["reasons"] or ()
        ]
        members = {name: row[name] for name in member_names}
        rows.append({**row, "title": row["title"] or row["product_id"], "reasons": reasons, "members": members})
    most = int(run.manifest["config"]["top_fraction"] * run.forecast.num_rows + 1e-9)  # as in splits.growth_thresholds
    return {
        "rows": rows,
        "scale": min(1.0, float(np.ceil(10 * highest) / 10)),
        "most": most,
        "expected": min(float(table["probability"].to_numpy().sum()), most),
        "expected_at_random": min(len(rows) * run.scores["base_rate"], most),
        "explained_by": explained_by(run),
    }


def _headline(run: Run) -> dict[str, Any]:
    """The forecast week, the end of its horizon, the number of products, and the precision of the ensemble on test."""
    assert run.forecast is not None
    scores = run.scores["scores"][ENSEMBLE]
    week = datetime.date.fromisoformat(run.manifest["last_week"])
    horizon_weeks = run.manifest["config"]["horizon_weeks"]
    return {
        "week": week,
        "until": week + datetime.timedelta(weeks=1 + horizon_weeks, days=-1),
        "horizon_weeks": horizon_weeks,
        "products": run.forecast.num_rows,
        "precision": scores["precision_at_5pct"]["value"],
        "lift": scores["lift_at_5pct"]["value"],
        "base_rate": run.scores["base_rate"],
        "top_fraction": metrics.binary.TOP_FRACTION,
    }


def _timeline(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Position and width of each split, in percent of the time from the first week to the end of the forecast's horizon.

    The span of the split forecast is its horizon, not the week of its rows.
    """
    first = datetime.date.fromisoformat(manifest["first_week"])
    horizon = datetime.timedelta(weeks=manifest["config"]["horizon_weeks"])
    week = datetime.timedelta(weeks=1)
    total = datetime.date.fromisoformat(manifest["last_week"]) + week + horizon - first
    spans = {
        name: (datetime.date.fromisoformat(split["first_week"]), datetime.date.fromisoformat(split["last_week"]) + week)
        for name, split in manifest["splits"].items()
    }
    if FORECAST in spans:
        spans[FORECAST] = (spans[FORECAST][1], spans[FORECAST][1] + horizon)
    return [
        {"name": name, "left": 100 * ((begin - first) / total), "width": 100 * ((end - begin) / total)}
        for name, (begin, end) in spans.items()
    ]
