"""The ensemble's model card: README.md with the head that the Hugging Face Hub reads, and what a user must know below it.

It is made from what the folder holds, so that it cannot say anything else than the report: data and their dates, scores
with intervals, members with their weights, and the limits of it all. A recipe may describe its data in its own words, by
`parts` in its card.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

from ensemble import recipe
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.predictor import used_rows
from ensemble.task import task_of

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

SPLIT = "- Members stopped early on validation, weights and calibration were fitted on {}, and test was only scored."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a recipe says in the card; each sentence or line is Markdown."""

    purpose: str
    """What is predicted."""
    data: list[str]
    """The lines below the head "Data"."""
    counts: str
    """What the scores are of."""
    limits: list[str]
    """The first lines below the head "Limits"."""
    tags: tuple[str, ...] = ()
    """For the Hub, beside those of every ensemble."""


def write(folder: Path, about: dict[str, Any], scores: dict[str, Any]) -> None:
    """Write the card; `about` is the manifest of the data, `scores` what scores.json holds."""
    parts = (recipe.of(about).get("card", "parts") or of_rows)(about, scores)
    (folder / NAME).write_text(f"{_head(about, scores, parts)}\n{_text(about, scores, parts)}", encoding="utf-8")


def _head(about: dict[str, Any], scores: dict[str, Any], parts: Parts) -> str:
    """The YAML between two lines of dashes, made and checked by the Hub's own library."""
    from huggingface_hub import EvalResult, ModelCardData

    kind = scores["kind"]
    results = [
        EvalResult(
            task_type=HUB_TASK[kind],
            dataset_type=about["recipe"],
            dataset_name=f"{about['recipe']} {about['fingerprint']}",
            dataset_split="train" if scores["split"] == OUT_OF_FOLD else scores["split"],
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
        tags=["ensemble", "tabular", *parts.tags, about["recipe"]],
        model_name=f"{about['recipe']} ensemble" if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---"


def _text(about: dict[str, Any], scores: dict[str, Any], parts: Parts) -> str:
    shown, metric, used = SHOWN[scores["kind"]], scores["metric"], used_rows.sentences(about, scores)
    place = used_rows.place(scores).removeprefix("the ").removesuffix(" split")
    rows = [
        f"| {name} | {_weight(scores, name)} | {' | '.join(_cell(of[metric]) for metric in shown)} |"
        for name, of in scores["scores"].items()
    ]
    lines = [
        f"# {about['recipe']} ensemble",
        "",
        parts.purpose,
        "",
        "## Data",
        "",
        *parts.data,
        "",
        *(["## Which rows did what", "", *(f"- {step}: {sentence}" for step, sentence in used.items()), ""] if used else []),
        f"## Scores on {place}",
        "",
        parts.counts,
        "",
        f"| | weight | {' | '.join(_label(about, scores, name) for name in shown)} |",
        f"|---|---|{'---|' * len(shown)}",
        *rows,
        "",
        f"{_label(about, scores, metric)} less that of {scores['best_member']}, the member that is best on {place}: "
        f"{_cell(scores['gain_over_best_member'][metric])}.",
        "",
        "## Limits",
        "",
        *parts.limits,
        "- This folder holds the combiner. The members' models are beside it where it was fitted, and are not part of it.",
        "- Whether this may be shared follows from the terms of the data; the card names no licence.",
    ]
    return "\n".join([*lines, ""])


def of_rows(about: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """Of data that are rows of some kind; a recipe may say it otherwise, by `parts` in its card.py."""
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
    unit = recipe.of(about).words.unit
    drawn = "whole clusters" if unit == "row" else f"{unit}s"
    return Parts(
        purpose=answer,
        data=[
            f"Fingerprint `{about['fingerprint']}`. Sources: {sources(about)}. {len(about['features'])} features.",
            "",
            f"| split | {' | '.join(facts)} |",
            f"|---|{'---|' * len(facts)}",
            *used,
        ],
        counts=f"{scores['rows']:,} rows, with 95 % intervals by {scores['num_draws']:,} draws of {drawn}; there are "
        f"{scores['clusters']:,}.",
        limits=[
            "- It learned from these rows; others that come about in another way are not measured here.",
            *([] if CrossValidation.of(about) else [SPLIT.format(fitted_on(scores))]),
        ],
    )


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def sources(about: dict[str, Any]) -> str:
    named = ", ".join(f"{source['name']} ({source['sha256'][:12]}…)" for source in about.get("sources", ()))
    return named or "none named"


def fitted_on(scores: dict[str, Any]) -> str:
    return "blend" if scores["fitted_on"] == "blend" else "rows predicted out of fold"


def _label(about: dict[str, Any], scores: dict[str, Any], metric: str) -> str:
    return scores["metrics"][metric]["label"].replace("each group", f"each {recipe.of(about).words.block}")


def _weight(scores: dict[str, Any], name: str) -> str:
    return f"{scores['weights'][name]:.3f}" if name in scores["weights"] else ""


def _cell(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.4f}" if low is None or high is None else f"{value:.4f} [{low:.4f}, {high:.4f}]"


def score_lines(scores: dict[str, Any], group: str) -> list[str]:
    """A line for each candidate: its score on test, the interval, and a member's weight; `scores` as in scores.json.

    A baseline of a binary task only orders the rows of a group, the week of a product: its file, scored as it is, gives
    another number, so the line names the group.
    """
    lines = []
    known = (*scores["members"], "ensemble", "base rate")
    for name, of in scores["scores"].items():
        value, low, high = (
            "–" if (number := of[scores["metric"]][key]) is None else f"{number:.4f}" for key in ("value", "low", "high")
        )
        weight = f"  weight {scores['weights'][name]:.2f}" if name in scores["weights"] else ""
        how = f"  ranked within its {group}" if scores["kind"] == "binary" and name not in known else ""
        lines.append(f"{name:>14}  {value}  [{low}, {high}]{weight}{how}")
    return lines
