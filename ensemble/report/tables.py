"""The tables of the report: scores with intervals, combiners, members, importance of features, confusion of classes."""

from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.predictor.fit import BASE_RATE, ENSEMBLE
from ensemble.predictor.members import KINDS
from ensemble.report.run import Member, Run
from ensemble.report.words import METRIC_DESCRIPTIONS, method_description, number
from ensemble.task import ABSOLUTE_ERROR

NUM_FEATURES = 15
"""The number of features in the tables of importance."""
NUM_CLASSES = 12
"""The number of classes in the confusion table; more do not fit on a page."""
LEAST = 1e-9
"""Smaller scores are due to rounding, and are shown as 0."""
CONSTANT = {
    "binary": "the base rate",
    "multiclass": "the shares of the classes",
    "regression": "the mean of the target",
    ABSOLUTE_ERROR: "the median of the target",
    "ranking": "a random order",
}
"""By name of the task's loss, the prediction `BASE_RATE`, which is the same for every row."""
ENDS = ("value", "low", "high")
"""The numbers of a score with its interval."""
ACCURACY = ("accuracy", "accuracy_always_no")
"""Metrics of a binary task that are not in the table of scores, unless one is the metric of the task, since they mean little
where positives are rare."""


def methods(cross_fitted: dict[str, dict[str, float]], chosen: str, on_other_blocks: bool) -> list[dict[str, Any]]:
    """The cross-fitted scores of each combiner or calibrator, and which one was chosen; [] if there is no calibrator.

    on_other_blocks : see `words.method_description`.
    """
    if set(cross_fitted) <= {"", "none", "auto"}:  # values, ranking scores, and classes forward in time are not calibrated
        return []
    return [
        {
            "name": name.replace("_", " "),
            "description": method_description(name, on_other_blocks),
            "is_chosen": name == chosen,
            **scores,
        }
        for name, scores in cross_fitted.items()
    ]


def score_table(run: Run) -> dict[str, Any]:
    """Columns, rows, and the scores of the ensemble minus those of the best member, with numbers as text; `main` is the
    score of the ensemble by the metric of the task; `always_no` is the accuracy if no row is predicted positive, or None."""
    scores, kind = run.scores["scores"], run.task.kind
    hidden = set(ACCURACY) - {run.task.metric} if kind == "binary" else set()
    names = [name for name in metrics.METRICS[kind] if name not in hidden]
    descriptions = run.recipe.get("page", "METRIC_DESCRIPTIONS") or METRIC_DESCRIPTIONS[kind]
    labels = {name: metrics.METRICS[kind][name].label.replace("each group", f"each {run.words.block}") for name in names}
    differences = run.scores["gain_over_best_member"]
    return {
        "columns": [
            {**metrics.METRICS[kind][name]._asdict(), "label": labels[name], "description": descriptions[name]}
            for name in names
        ],
        "rows": _score_rows(run, names),
        "differences": [
            {**_difference(run, name, differences[name]), "verdict": _verdict(run, name, differences[name])}
            for name in names
        ],
        "main": _main_score(run),
        "always_no": scores[ENSEMBLE].get("accuracy_always_no", {}).get("value"),
    }


def _score_rows(run: Run, names: list[str]) -> list[dict[str, Any]]:
    """A row for each candidate, with a cell for each metric of `names`; the best cells of a column are marked."""
    scores, kind = run.scores["scores"], run.task.kind
    rows = []
    for candidate, intervals in scores.items():
        role = "" if candidate == ENSEMBLE else "member" if candidate in run.scores["members"] else "baseline"
        if role == "baseline" and kind == "binary" and candidate != BASE_RATE:
            role += f", ranked within its {run.task.group}"  # its scores only order the rows of a group
        if candidate == BASE_RATE and kind != "binary":
            role += f": {CONSTANT[run.combiner.loss]}"
        cells = [_interval(kind, name, intervals[name]) for name in names]
        accuracy = intervals.get("accuracy", {}).get("value")
        rows.append({"name": candidate, "kind": role, "cells": cells, "accuracy": accuracy})
    for column, name in enumerate(names):
        higher_is_better = metrics.METRICS[kind][name].higher_is_better
        values = [intervals[name]["value"] for intervals in scores.values()]
        values = [value for value in values if value is not None and higher_is_better is not None]
        best = _as_text(kind, name, max(values) if higher_is_better else min(values)) if values else None
        for row in rows:
            row["cells"][column]["best"] = row["cells"][column]["value"] == best  # equal when rounded is equal
    return rows


def _main_score(run: Run) -> dict[str, Any]:
    """The score by the metric of the task, and how much better or worse than the best member it is, with an interval."""
    scores, kind, metric = run.scores["scores"], run.task.kind, run.task.metric
    gain = run.scores["gain_over_best_member"][metric]
    higher_is_better = metrics.METRICS[kind][metric].higher_is_better
    digits = _difference_digits(run, metric)
    size = _rounded(abs(gain["value"] or 0), digits)
    is_zero = not size.strip("0.")  # when rounded, such as with one member
    is_gain = is_zero or (gain["value"] > 0) == higher_is_better
    # The interval has the sign of `size`: it is that of the gain or the loss
    sign = 1 if is_gain == higher_is_better else -1
    low, high = (None if gain[end] is None else sign * gain[end] for end in ("low", "high")[::sign])
    return {
        "label": metric_labels(run)[metric],
        "higher_is_better": higher_is_better,
        "ensemble": _interval(kind, metric, scores[ENSEMBLE][metric]),
        "others": [
            {
                "name": CONSTANT[run.combiner.loss] if name == BASE_RATE else f"the baseline {name}",
                **_interval(kind, metric, intervals[metric]),
            }
            for name, intervals in scores.items()
            if name not in run.candidates
        ],
        "gain": gain,
        "low": _rounded(low, digits),
        "high": _rounded(high, digits),
        "is_gain": is_gain,
        "size": size,
        "verdict": _verdict(run, metric, gain),
    }


def metric_labels(run: Run) -> dict[str, str]:
    """The label of each metric, as within a sentence."""
    kinds = (*metrics.METRICS, run.task.kind)  # of all kinds: a linear member of a ranking stops by a squared error
    labels = {name: metric.label for kind in kinds for name, metric in metrics.METRICS[kind].items()}
    return {name: label if label[1:2].isupper() else label[0].lower() + label[1:] for name, label in labels.items()}


def _interval(kind: str, name: str, interval: dict[str, float | None]) -> dict[str, Any]:
    """A score by the metric `name` and its interval, as text."""
    # Rounding errors, such as in the mean error of the mean of the target, which is 0
    noise = LEAST * ((interval["high"] or 0) - (interval["low"] or 0))
    ends = [0.0 if end is not None and abs(end) < noise else end for end in map(interval.get, ENDS)]
    value, low, high = (_as_text(kind, name, end) for end in ends)
    return {"value": value, "interval": f"{low} to {high}" if interval["low"] is not None else ""}


def _difference(run: Run, name: str, interval: dict[str, float | None]) -> dict[str, Any]:
    """A difference between two scores by a metric and its interval, with signs."""
    digits = _difference_digits(run, name)
    value, low, high = (_signed(interval[end], digits) for end in ENDS)
    return {"value": value, "interval": f"{low} to {high}" if interval["low"] is not None else ""}


def _difference_digits(run: Run, name: str) -> int:
    """Digits after the decimal point of a difference between two scores: one more than the score of the ensemble has."""
    name = "root_mean_squared_error" if name == "mean_error" else name  # a mean error may be near 0
    return 1 + _score_digits(run.task.kind, name, run.scores["scores"][ENSEMBLE][name]["value"])


def _rounded(value: float | None, digits: int) -> str:
    """A difference with `digits` digits after the decimal point; with an exponent, if these are more than 7."""
    if value is None or digits <= 7:
        return number(value, digits)
    return f"{round(value, digits) or 0.0:.4g}".replace("-", "−")  # without the sign of -0.0


def _signed(value: float | None, digits: int) -> str:
    text = _rounded(value, digits)
    return f"+{text}" if value is not None and value > 0 and text.strip("0.") else text


def _as_text(kind: str, name: str, value: float | None) -> str:
    """A score by the metric `name` as text, with as many digits as are usual for the metric."""
    digits = _score_digits(kind, name, value)
    return number(value, digits) if value is None or digits <= 6 else f"{round(value, digits):.4g}".replace("-", "−")


def _score_digits(kind: str, name: str, value: float | None) -> int:
    """The number of digits after the decimal point of a score by the metric `name`."""
    digits = {"lift_at_5pct": 2, "log_loss": 4, "multiclass_log_loss": 4, "brier": 4, "calibration_error": 4}.get(name, 3)
    in_unit = kind == "regression" and name != "r_squared"  # of the target: four significant digits
    if value and (in_unit or LEAST < abs(value) < 10.0 ** (1 - digits)):  # of a small score, three
        significant = 4 if in_unit else 3
        exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])  # of the rounded value
        return max(0, significant - 1 - exponent)
    return digits


def score(kind: str, value: float | None, name: str, digits: int = 3) -> str:
    """A score with `digits` digits after the decimal point; small scores, and those of a regression, as in `_as_text`."""
    is_small = value is not None and LEAST < abs(value) < 10.0 ** (1 - digits)
    return _as_text(kind, name, value) if kind == "regression" or is_small else number(value, digits)


def _verdict(run: Run, name: str, gain: dict[str, float | None]) -> str:
    """Whether a difference between ensemble and best member is `better`, `worse` or `not significant`; empty if unknown."""
    higher_is_better, digits = metrics.METRICS[run.task.kind][name].higher_is_better, _difference_digits(run, name)
    if gain["low"] is None or gain["high"] is None or higher_is_better is None:
        return ""
    if gain["low"] <= 0 <= gain["high"] or not (round(gain["low"], digits) or round(gain["high"], digits)):
        return "not significant"
    return "better" if (gain["low"] > 0) == higher_is_better else "worse"


def member_row(member: Member) -> dict[str, Any]:
    """The row of a member in the table of members."""
    summary, kind = member.summary, member.summary.get("kind", "")
    size = f"{summary['trees']:,} trees" if "trees" in summary else ""
    size = f"{summary['parameters']:,} weights" if "parameters" in summary else size
    return {
        "name": member.name,
        "weight": member.weight,
        "kind": KINDS.get(kind, kind or "–"),
        "size": size or "–",
        "seconds": summary.get("seconds"),
        "validation": summary.get(f"validation_{member.metric}"),
        "metric": member.metric,
    }


def by_weight(run: Run) -> list[Member]:
    """The members with a weight other than 0, the largest weight first."""
    return sorted((member for member in run.members if member.weight), key=lambda member: -abs(member.weight))


def importance(run: Run) -> dict[str, Any]:
    """Each feature's share of a tree member's total gain, or of a linear model's weights; the largest sums first. Members of
    weight 0 are left out."""
    trees = {member.name: member.importance for member in by_weight(run) if sum(member.importance.values())}
    shares = {
        name: {feature: gain / sum(importance.values()) for feature, gain in importance.items()}
        for name, importance in trees.items()
    }
    rows: list[dict[str, Any]] = [
        {"label": label, "shares": {member: of_features.get(name, 0.0) for member, of_features in shares.items()}}
        for name, label in run.feature_labels.items()
    ]
    rows = sorted(rows, key=lambda row: -sum(row["shares"].values()))[:NUM_FEATURES] if shares else []
    return {"members": list(shares), "rows": rows, "scale": max((max(row["shares"].values()) for row in rows), default=1.0)}


def permutation(run: Run) -> dict[str, Any] | None:
    """How much worse each member's score is if a feature is permuted; the largest weighted sums over members first. Members
    of weight 0 are left out."""
    permutations = {member.name: member.permutation for member in by_weight(run) if member.permutation}
    if not permutations:
        return None
    weight = {member.name: max(member.weight, 0) for member in run.members}
    rows: list[dict[str, Any]] = [
        {"label": label, "worse": {member: each["worse"].get(name, 0.0) for member, each in permutations.items()}}
        for name, label in run.feature_labels.items()
    ]
    rows.sort(key=lambda row: -sum(weight[member] * value for member, value in row["worse"].items()))
    num_rows = [each["rows"] for each in permutations.values()]
    return {
        "members": list(permutations),
        "metric": next(iter(permutations.values()))["metric"],
        "num_rows": " to ".join(number(end) for end in sorted({min(num_rows), max(num_rows)})),
        "rows": rows[:NUM_FEATURES],
        "scale": max((value for row in rows for value in row["worse"].values()), default=0) or 1.0,
    }


def confusion(run: Run) -> dict[str, Any]:
    """For the classes with most rows: the shares of the rows of a class for which the ensemble predicts each class, weighted
    as the scores are."""
    classes, target = run.task.classes, run.test.target.astype(int)
    predicted = run.candidates[ENSEMBLE].argmax(axis=1)
    sums = np.zeros((len(classes), len(classes)))
    np.add.at(sums, (target, predicted), 1 if run.test.weight is None else run.test.weight)
    total, num_rows = sums.sum(axis=1), np.bincount(target, minlength=len(classes))
    shown = np.sort(np.argsort(-num_rows, kind="stable")[:NUM_CLASSES])
    return {
        "classes": [classes[number] for number in shown],
        "rows": [
            {
                "name": classes[number],
                "rows": int(num_rows[number]),
                "cells": [
                    {"share": sums[number, other] / total[number] if total[number] else None, "is_right": other == number}
                    for other in shown
                ],
            }
            for number in shown
        ],
        "num_others": len(classes) - len(shown),
    }
