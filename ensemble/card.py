"""The ensemble's model card: README.md with the head that the Hugging Face Hub reads, and what a user must know below it.

It is made from what the folder holds, so that it cannot say anything else than the report: data and their dates, scores on
test with intervals, members with their weights, and the limits of it all. Products and weeks are told of as such; of any
other data, what their manifest says.
"""

from pathlib import Path
from typing import Any

from ensemble.data.task import task_of

NAME = "README.md"
SHOWN = {
    "binary": ("average_precision", "roc_auc", "log_loss", "brier", "precision_at_5pct", "lift_at_5pct"),
    "multiclass": ("multiclass_log_loss", "accuracy", "balanced_accuracy", "macro_f1"),
    "regression": ("root_mean_squared_error", "mean_absolute_error", "r_squared"),
    "ranking": ("ndcg_at_5", "ndcg_at_10", "mean_reciprocal_rank", "recall_at_10"),
}
"""By kind of task, the metrics of the table."""
HUB_TASK = {
    "binary": "tabular-classification",
    "multiclass": "tabular-classification",
    "regression": "tabular-regression",
    "ranking": "other",
}
"""By kind of task, the Hub's word for it; it has none for a ranking."""
PRODUCTS = "hot_sellers"


def write(folder: Path, about: dict[str, Any], scores: dict[str, Any]) -> None:
    """Write the card; `about` is the manifest of the data, `scores` what scores.json holds."""
    (folder / NAME).write_text(f"{_head(about, scores)}\n{_text(about, scores)}", encoding="utf-8")


def _head(about: dict[str, Any], scores: dict[str, Any]) -> str:
    """The YAML between two lines of dashes, made and checked by the Hub's own library."""
    from huggingface_hub import EvalResult, ModelCardData

    kind = scores["kind"]
    results = [
        EvalResult(
            task_type=HUB_TASK[kind],
            dataset_type=about["recipe"],
            dataset_name=f"{about['recipe']} {about['fingerprint']}",
            dataset_split="test",
            metric_type=name,
            metric_name=_label(about, scores, name),
            metric_value=round(interval["value"], 6),
            metric_args={"low": interval["low"], "high": interval["high"], "confidence": 0.95},
        )
        for name in SHOWN[kind]
        if (interval := scores["scores"]["ensemble"][name])["value"] is not None
    ]
    head = ModelCardData(
        library_name="accelerate-ensemble",
        pipeline_tag=HUB_TASK[kind],
        tags=["ensemble", "tabular", *(["time-series"] if about["recipe"] == PRODUCTS else []), about["recipe"]],
        model_name=f"{about['recipe']} ensemble" if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---"


def _text(about: dict[str, Any], scores: dict[str, Any]) -> str:
    shown, metric = SHOWN[scores["kind"]], scores["metric"]
    describe = _of_products if about["recipe"] == PRODUCTS else _of_rows
    purpose, data, counts, limits = describe(about, scores)
    rows = [
        f"| {name} | {_weight(scores, name)} | {' | '.join(_cell(of[metric]) for metric in shown)} |"
        for name, of in scores["scores"].items()
    ]
    lines = [
        f"# {about['recipe']} ensemble",
        "",
        purpose,
        "",
        "## Data",
        "",
        *data,
        "",
        "## Scores on test",
        "",
        counts,
        "",
        f"| | weight | {' | '.join(_label(about, scores, name) for name in shown)} |",
        f"|---|---|{'---|' * len(shown)}",
        *rows,
        "",
        f"{_label(about, scores, metric)} less that of {scores['best_member']}, the member that is best on test: "
        f"{_cell(scores['gain_over_best_member'][metric])}.",
        "",
        "## Limits",
        "",
        *limits,
        "- This folder holds the combiner. The members' models are beside it where it was fitted, and are not part of it.",
        "- Whether this may be shared follows from the terms of the data; the card names no licence.",
    ]
    return "\n".join([*lines, ""])


Parts = tuple[str, list[str], str, list[str]]


def _of_products(about: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """What is forecast, of which data, scored on what, and the limits."""
    panel, splits = about["config"], about["splits"]
    horizon_weeks, base_weeks = panel["horizon_weeks"], panel["base_weeks"]
    used = [
        f"| {split} | {facts['first_week']} | {facts['last_week']} | {facts['rows']:,} | {facts['hot']:,} |"
        for split, facts in splits.items()
    ]
    crawl = "price and helpful votes as of the crawl are among them" if panel["as_of_crawl"] else "none is as of the crawl"
    return (
        f"For each product with a review in the last {base_weeks} weeks: the probability that its reviews in the next "
        f"{horizon_weeks} weeks ÷ (those in the last {base_weeks} weeks + 1) will be among the highest "
        f"{panel['top_fraction']:.3g} of its week.",
        [
            f"Fingerprint `{about['fingerprint']}`; {about['products']:,} products in {len(about['categories']) - 1} "
            f"categories, weeks from {about['first_week']} to {about['last_week']}. Sources: {_sources(about)}. "
            f"{len(about['features'])} features; {crawl}. Between two splits {horizon_weeks} weeks are left out.",
            "",
            "| split | first week | last week | rows | hot |",
            "|---|---|---|---|---|",
            *used,
        ],
        f"{scores['rows']:,} rows of {scores['products']:,} products in {scores['weeks']:,} weeks, "
        f"{scores['base_rate']:.2%} of them hot, with 95 % intervals by {scores['num_draws']:,} draws of products.",
        [
            "- It learned from these categories and weeks; other markets and later years are not measured here.",
            "- Give all reviews of the products and their categories, old and new: totals, ages and last year are features.",
            f"- Members stopped early on validation, weights and calibration were fitted on {_fitted_on(scores)}, and test "
            "was only scored; the intervals hold for these weeks, not for the change from one season to another.",
        ],
    )


def _of_rows(about: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """The same of data that are rows of some kind."""
    task = task_of(about)
    target = about.get("target", {}).get("column", task.target)
    facts = list(dict.fromkeys(name for of in about["splits"].values() for name in of))
    used = [
        f"| {split} | {' | '.join(_fact(of.get(name, '')) for name in facts)} |" for split, of in about["splits"].items()
    ]
    answer = {
        "binary": f"For each row: the probability of `{target}`.",
        "multiclass": f"For each row: the probability of each of {len(task.classes)} classes of `{target}`.",
        "regression": f"For each row: the value of `{target}`.",
        "ranking": f"For the rows of each group: a score by which they are ordered, highest `{target}` first.",
    }[task.kind]
    return (
        answer,
        [
            f"Fingerprint `{about['fingerprint']}`. Sources: {_sources(about)}. {len(about['features'])} features.",
            "",
            f"| split | {' | '.join(facts)} |",
            f"|---|{'---|' * len(facts)}",
            *used,
        ],
        f"{scores['rows']:,} rows, with 95 % intervals by {scores['num_draws']:,} draws of whole clusters; there are "
        f"{scores['products']:,}.",
        [
            "- It learned from these rows; others that come about in another way are not measured here.",
            f"- Members stopped early on validation, weights and calibration were fitted on {_fitted_on(scores)}, and test "
            "was only scored.",
        ],
    )


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sources(about: dict[str, Any]) -> str:
    return ", ".join(f"{source['name']} ({source['sha256'][:12]}…)" for source in about["sources"])


def _fitted_on(scores: dict[str, Any]) -> str:
    return "blend" if scores["fitted_on"] == "blend" else "rows predicted out of fold"


def _label(about: dict[str, Any], scores: dict[str, Any], metric: str) -> str:
    label = scores["metrics"][metric]["label"]
    return label if about["recipe"] == PRODUCTS else label.removesuffix(" of each week")


def _weight(scores: dict[str, Any], name: str) -> str:
    return f"{scores['weights'][name]:.3f}" if name in scores["weights"] else ""


def _cell(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.4f}" if low is None or high is None else f"{value:.4f} [{low:.4f}, {high:.4f}]"
