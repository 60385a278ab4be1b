"""The ensemble's model card: README.md with the head that the Hugging Face Hub reads, and what a user must know below it.

It is made from what the folder holds, so that it cannot say anything else than the report: data and their dates, scores on
test with intervals, members with their weights, and the limits of it all.
"""

from pathlib import Path
from typing import Any

NAME = "README.md"
SHOWN = ("average_precision", "roc_auc", "log_loss", "brier", "precision_at_5pct", "lift_at_5pct")


def write(folder: Path, about: dict[str, Any], scores: dict[str, Any]) -> None:
    """Write the card; `about` is the manifest of the data, `scores` what scores.json holds."""
    (folder / NAME).write_text(f"{_head(about, scores)}\n{_text(about, scores)}", encoding="utf-8")


def _head(about: dict[str, Any], scores: dict[str, Any]) -> str:
    """The YAML between two lines of dashes, made and checked by the Hub's own library."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="tabular-classification",
            dataset_type=about["recipe"],
            dataset_name=f"{about['recipe']} {about['fingerprint']}",
            dataset_split="test",
            metric_type=name,
            metric_name=_label(name),
            metric_value=round(interval["value"], 6),
            metric_args={"low": interval["low"], "high": interval["high"], "confidence": 0.95},
        )
        for name in SHOWN
        if (interval := scores["scores"]["ensemble"][name])["value"] is not None
    ]
    head = ModelCardData(
        library_name="accelerate-ensemble",
        pipeline_tag="tabular-classification",
        tags=["ensemble", "tabular", "time-series", about["recipe"]],
        model_name=f"{about['recipe']} ensemble" if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---"


def _text(about: dict[str, Any], scores: dict[str, Any]) -> str:
    panel, splits = about["config"], about["splits"]
    horizon_weeks, base_weeks = panel["horizon_weeks"], panel["base_weeks"]
    used = [
        f"| {split} | {facts['first_week']} | {facts['last_week']} | {facts['rows']:,} | {facts['hot']:,} |"
        for split, facts in splits.items()
    ]
    rows = [
        f"| {name} | {_weight(scores, name)} | {' | '.join(_cell(of[metric]) for metric in SHOWN)} |"
        for name, of in scores["scores"].items()
    ]
    sources = ", ".join(f"{source['name']} ({source['sha256'][:12]}…)" for source in about["sources"])
    crawl = "price and helpful votes as of the crawl are among them" if panel["as_of_crawl"] else "none is as of the crawl"
    gain = _cell(scores["gain_over_best_member"]["average_precision"])
    lines = [
        f"# {about['recipe']} ensemble",
        "",
        f"For each product with a review in the last {base_weeks} weeks: the probability that its reviews in the next "
        f"{horizon_weeks} weeks ÷ (those in the last {base_weeks} weeks + 1) will be among the highest "
        f"{panel['top_fraction']:.3g} of its week.",
        "",
        "## Data",
        "",
        f"Fingerprint `{about['fingerprint']}`; {about['products']:,} products in {len(about['categories']) - 1} "
        f"categories, weeks from {about['first_week']} to {about['last_week']}. Sources: {sources}. "
        f"{len(about['features'])} features; {crawl}. Between two splits {horizon_weeks} weeks are left out.",
        "",
        "| split | first week | last week | rows | hot |",
        "|---|---|---|---|---|",
        *used,
        "",
        "## Scores on test",
        "",
        f"{scores['rows']:,} rows of {scores['products']:,} products in {scores['weeks']:,} weeks, "
        f"{scores['base_rate']:.2%} of them hot, with 95 % intervals by {scores['num_draws']:,} draws of products.",
        "",
        f"| | weight | {' | '.join(map(_label, SHOWN))} |",
        f"|---|---|{'---|' * len(SHOWN)}",
        *rows,
        "",
        f"Average precision less that of {scores['best_member']}, the member that is best on test: {gain}.",
        "",
        "## Limits",
        "",
        "- It learned from these categories and weeks; other markets and later years are not measured here.",
        "- Give all reviews of the products and of their categories, old and new: totals, ages and last year are features.",
        "- Members stopped early on validation, weights and calibration were fitted on blend, and test was only scored; the "
        "intervals hold for these weeks, not for the change from one season to another.",
        "- This folder holds the combiner. The members' models are beside it where it was fitted, and are not part of it.",
        "- Whether this may be shared follows from the terms of the data; the card names no licence.",
    ]
    return "\n".join([*lines, ""])


def _label(metric: str) -> str:
    from ensemble.metrics import METRICS

    return METRICS[metric].label


def _weight(scores: dict[str, Any], name: str) -> str:
    return f"{scores['weights'][name]:.3f}" if name in scores["weights"] else ""


def _cell(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.4f}" if low is None or high is None else f"{value:.4f} [{low:.4f}, {high:.4f}]"
