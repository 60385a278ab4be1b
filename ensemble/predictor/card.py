"""The ensemble's model card: README.md with YAML metadata for the Hugging Face Hub, and the facts that a user needs.

It is made from the same files as the report: data and their dates, scores with intervals, members with their weights, and
limits. A recipe may describe its data with its own sentences, as `parts` in its card.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

from ensemble import recipe
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.predictor import used_rows
from ensemble.predictor.scoring import BASE_RATE, ENSEMBLE
from ensemble.task import task_of

NAME = "README.md"
SHOWN = {
    "binary": ("average_precision", "roc_auc", "log_loss", "brier", "precision_at_5pct", "lift_at_5pct"),
    "multiclass": ("multiclass_log_loss", "accuracy", "balanced_accuracy", "macro_f1"),
    "regression": ("root_mean_squared_error", "mean_absolute_error", "r_squared"),
    "ranking": ("ndcg_at_5", "ndcg_at_10", "mean_reciprocal_rank", "recall_at_10"),
}
"""By kind of task, the metrics in the table of scores."""
HUB_TASK = {
    "binary": "tabular-classification",
    "multiclass": "tabular-classification",
    "regression": "tabular-regression",
    "ranking": "other",
}
"""By kind of task, its name on the Hub, which has none for a ranking."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The sentences of a recipe in the card; each sentence or line is Markdown."""

    purpose: str
    """What is predicted."""
    data: list[str]
    """The lines of the section "Data"."""
    counts: str
    """The rows that are scored, and how the intervals are computed."""
    limits: list[str]
    """The first lines of the section "Limits"."""
    tags: tuple[str, ...] = ()
    """Tags on the Hub beside those of every ensemble."""


def write(folder: Path, manifest: dict[str, Any], scores: dict[str, Any]) -> None:
    """Write the card. manifest : that of the prepared data. scores : the content of scores.json."""
    parts = (recipe.of(manifest).get("card", "parts") or default_parts)(manifest, scores)
    text = f"{_metadata(manifest, scores, parts)}\n{_text(manifest, scores, parts)}"
    (folder / NAME).write_text(text, encoding="utf-8")


def _metadata(manifest: dict[str, Any], scores: dict[str, Any], parts: Parts) -> str:
    """The YAML block that the Hub reads, made and checked by huggingface_hub."""
    from huggingface_hub import EvalResult, ModelCardData

    kind = scores["kind"]
    results = [
        EvalResult(
            task_type=HUB_TASK[kind],
            dataset_type=manifest["recipe"],
            dataset_name=f"{manifest['recipe']} {manifest['fingerprint']}",
            dataset_split="out-of-fold" if scores["split"] == OUT_OF_FOLD else scores["split"],
            metric_type=name,
            metric_name=_label(manifest, scores, name),
            metric_value=float(f"{interval['value']:.8g}"),
            metric_args={"low": interval["low"], "high": interval["high"], "confidence": 0.95},
        )
        for name in SHOWN[kind]
        if (interval := scores["scores"]["ensemble"][name])["value"] is not None
    ]
    metadata = ModelCardData(
        library_name="accelerate-ensemble",
        pipeline_tag=HUB_TASK[kind],
        tags=["ensemble", "tabular", *parts.tags, manifest["recipe"]],
        model_name=f"{manifest['recipe']} ensemble" if results else None,
        eval_results=results or None,
    )
    return f"---\n{metadata.to_yaml()}\n---"


def _text(manifest: dict[str, Any], scores: dict[str, Any], parts: Parts) -> str:
    shown, metric, used = SHOWN[scores["kind"]], scores["metric"], used_rows.sentences(manifest, scores)
    weights = {name: f"{weight:.3f}" for name, weight in scores["weights"].items()}
    place = used_rows.place(scores).removeprefix("the ").removesuffix(" split")
    rows = [
        f"| {name} | {weights.get(name, '')} | {' | '.join(_cell(intervals[each]) for each in shown)} |"
        for name, intervals in scores["scores"].items()
    ]
    lines = [
        f"# {manifest['recipe']} ensemble",
        "",
        parts.purpose,
        "",
        "## Data",
        "",
        *parts.data,
        "",
        *(["## How rows were used", "", *(f"- {step}: {sentence}" for step, sentence in used.items()), ""] if used else []),
        f"## Scores on {place}",
        "",
        parts.counts,
        "",
        f"| | weight | {' | '.join(_label(manifest, scores, name) for name in shown)} |",
        f"|---|---|{'---|' * len(shown)}",
        *rows,
        "",
        f"{_label(manifest, scores, metric)} minus that of {scores['best_member']}, the best member on {place}: "
        f"{_cell(scores['gain_over_best_member'][metric])}.",
        "",
        "## Limits",
        "",
        *(f"- Warning: {sentence}." for sentence in scores.get("warnings", ())),
        *parts.limits,
        "- This folder contains the combiner. The models of the members are other folders and are not part of it.",
        "- Whether this may be shared depends on the terms of the data; this card states no licence.",
    ]
    return "\n".join([*lines, ""])


def default_parts(manifest: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """The sentences for a recipe without `parts` in its card.py."""
    task = task_of(manifest)
    described = manifest.get("target", {})
    target, classes = described.get("column", task.target), described.get("names")
    columns = list(dict.fromkeys(name for facts in manifest["splits"].values() for name in facts))
    rows = []
    for split, facts in manifest["splits"].items():
        values = [facts.get(name, "") for name in columns]
        cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
        rows.append(f"| {split} | {' | '.join(cells)} |")
    purpose = {
        "binary": f"For each row: the probability {f'that `{target}` is {classes[-1]}' if classes else f'of `{target}`'}.",
        "multiclass": f"For each row: the probability of each of {len(task.classes)} classes of `{target}`.",
        "regression": f"For each row: the value of `{target}`.",
        "ranking": f"For the rows of each group: a score that orders them, highest `{target}` first.",
    }[task.kind]
    drawn = used_rows.drawn(manifest, scores)
    of_clusters = "" if drawn == "rows" else f" of {scores['clusters']:,} {drawn}"
    weight = manifest["config"].get("weight") or task.weight
    return Parts(
        purpose=purpose,
        data=[
            f"Fingerprint `{manifest['fingerprint']}`. Sources: {sources(manifest)}. {len(manifest['features'])} features.",
            "",
            f"| split | {' | '.join(columns)} |",
            f"|---|{'---|' * len(columns)}",
            *rows,
        ],
        counts=f"{scores['rows']:,} rows{of_clusters}, with 95 % intervals by a bootstrap of {scores['num_draws']:,} draws "
        f"of {drawn}.{f' The scores are weighted by `{weight}`.' if scores['weighted'] else ''}",
        limits=[
            "- The scores hold for rows from the same source; rows from other sources were not measured.",
            *([] if CrossValidation.from_manifest(manifest) else [use_of_splits(scores)]),
        ],
    )


def sources(manifest: dict[str, Any]) -> str:
    """The names and checksums of the raw files."""
    named = ", ".join(f"{source['name']} ({source['sha256'][:12]}…)" for source in manifest.get("sources", ()))
    return named or "none named"


def fitted_on(scores: dict[str, Any]) -> str:
    """The rows that weights and calibration were fitted on, as words within a sentence."""
    return "blend" if scores["fitted_on"] == "blend" else "rows predicted out of fold"


def use_of_splits(scores: dict[str, Any]) -> str:
    """A line of the section "Limits" for data with a validation split: the rows on which members and ensemble were fitted,
    and those that were scored."""
    scored = "test was only scored"
    if scores["split"] != "test":
        scored = "each scored row was predicted by weights that were fitted on others"
    return (
        f"- Members stopped early on validation, weights and calibration were fitted on {fitted_on(scores)}, and {scored}. "
        "Trees with refit=true, and networks that a refit improved, learned all of these rows before they predicted test "
        "and the forecast."
    )


def _label(manifest: dict[str, Any], scores: dict[str, Any], metric: str) -> str:
    return scores["metrics"][metric]["label"].replace("each group", f"each {recipe.of(manifest).words.block}")


def _cell(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return decimals(value) if low is None or high is None else f"{decimals(value)} [{decimals(low)}, {decimals(high)}]"


def decimals(value: float) -> str:
    """A score with four digits after the decimal point; below 0.001 (but not 0), and from 10^15 on, with four significant
    digits."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e15 else f"{value:.4g}"


def score_lines(scores: dict[str, Any], group: str) -> list[str]:
    """A line for the ensemble, each member and each baseline: the score, its interval, and the weight of a member.

    scores : as in scores.json. group : the name of the task's group column. A baseline of a binary task is scored by its
    ranks within each group, which its line mentions. This score differs from one that is computed from its
    prediction file.
    """
    lines = []
    probabilities = (*scores["members"], ENSEMBLE, BASE_RATE)
    for name, intervals in scores["scores"].items():
        value, low, high = (
            "–" if (number := intervals[scores["metric"]][key]) is None else decimals(number)
            for key in ("value", "low", "high")
        )
        weight = f"  weight {scores['weights'][name]:.2f}" if name in scores["weights"] else ""
        ranked = f"  ranked within its {group}" if scores["kind"] == "binary" and name not in probabilities else ""
        lines.append(f"{name:>14}  {value}  [{low}, {high}]{weight}{ranked}")
    return lines
