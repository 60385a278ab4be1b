"""The report's tables: scores with intervals, ways to combine, members, importance, confusion."""

import math
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.predictor.fit import BASE_RATE, ENSEMBLE
from ensemble.predictor.members import KINDS
from ensemble.report.run import Member, Run
from ensemble.report.words import METRIC_WORDS, method_words, number

NUM_FEATURES = 15  # in the picture of the trees' feature importance
NUM_CLASSES = 12  # of the confusion table; more do not fit on a page
ACCURACY = ("accuracy", "accuracy_always_no")  # of a yes or no: apart, because they say nothing where yes is rare


def ways(cross_fitted: dict[str, dict[str, float]], taken: str, out_of_fold: bool) -> list[dict[str, Any]]:
    """What each way to combine, or to calibrate, would have given on later rows, and which was taken; [] for no choice."""
    if set(cross_fitted) <= {"", "auto"}:  # values and orders are not calibrated
        return []
    return [
        {"name": name.replace("_", " "), "words": method_words(name, out_of_fold), "taken": name == taken, **of}
        for name, of in cross_fitted.items()
    ]


def score_table(run: Run) -> dict[str, Any]:
    """Columns, rows and the gain over the best member, written out."""
    scores, kind = run.scores["scores"], run.task.kind
    of_kind = metrics.METRICS[kind]
    names = [name for name in of_kind if not (kind == "binary" and name in ACCURACY)]
    rows = []
    for candidate, of in scores.items():
        role = "" if candidate == ENSEMBLE else "member" if candidate in run.scores["members"] else "baseline"
        if role == "baseline" and kind == "binary" and candidate != BASE_RATE:
            role += f", ranked within its {run.task.group}"  # its scores only order the rows of a group
        cells = [_interval(kind, name, of[name]) for name in names]
        rows.append({"name": candidate, "kind": role, "cells": cells, "accuracy": of.get("accuracy", {}).get("value")})
    for column, name in enumerate(names):
        higher, known = of_kind[name].higher_is_better, [of[name]["value"] for of in scores.values()]
        known = [value for value in known if value is not None and higher is not None]
        best = _written(kind, name, max(known) if higher else min(known)) if known else None
        for row in rows:
            row["cells"][column]["best"] = row["cells"][column]["value"] == best  # as written: equal to the eye is equal
    gain = run.scores["gain_over_best_member"]
    main = run.task.metric
    words = run.recipe.get("page", "METRIC_WORDS") or {
        name: text.replace("was yes", run.words.became_yes).replace("is yes", f"is {run.words.yes}")
        for name, text in METRIC_WORDS[kind].items()
    }
    return {
        "columns": [{**of_kind[name]._asdict(), "label": _label(run, name), "words": words[name]} for name in names],
        "rows": rows,
        "gain": [
            {**_interval(kind, name, gain[name], signed=True), "verdict": _verdict(kind, name, gain[name])} for name in names
        ],
        "main": {
            "words": metric_words(run)[main],
            "higher_is_better": of_kind[main].higher_is_better,
            "ensemble": _interval(kind, main, scores[ENSEMBLE][main]),
            "others": [
                {"name": name, **_interval(kind, main, of[main])}
                for name, of in scores.items()
                if name not in run.candidates
            ],
            "gain": gain[main],
            **_ends_of_gain(kind, main, gain[main]),
            "size": _written(kind, main, abs(gain[main]["value"] or 0)),
            "verdict": _verdict(kind, main, gain[main]),
        },
        "always_no": scores[ENSEMBLE].get("accuracy_always_no", {}).get("value"),
    }


def _ends_of_gain(kind: str, name: str, gain: dict[str, float | None]) -> dict[str, str]:
    """The interval of a gain, in which more is better also where a lower score is."""
    low, high = gain["low"], gain["high"]
    if not metrics.METRICS[kind][name].higher_is_better and low is not None and high is not None:
        low, high = -high, -low
    return {"low": _written(kind, name, low), "high": _written(kind, name, high)}


def metric_words(run: Run) -> dict[str, str]:
    """What each metric of the task is called within a sentence."""
    labels = {name: metric.label for name, metric in metrics.METRICS[run.task.kind].items()}
    return {name: label if label[1:2].isupper() else label[0].lower() + label[1:] for name, label in labels.items()}


def _label(run: Run, name: str) -> str:
    label = metrics.METRICS[run.task.kind][name].label
    return label.replace("each group", f"each {run.words.block}")


def _interval(kind: str, name: str, interval: dict[str, float | None], signed: bool = False) -> dict[str, Any]:
    value, low, high = (_written(kind, name, interval[end], signed) for end in ("value", "low", "high"))
    return {"value": value, "interval": f"{low} to {high}" if interval["low"] is not None else ""}


def _written(kind: str, name: str, value: float | None, signed: bool = False) -> str:
    digits = {"lift_at_5pct": 2, "log_loss": 4, "multiclass_log_loss": 4, "brier": 4, "calibration_error": 4}.get(name, 3)
    if kind == "regression" and name != "r_squared" and value:  # in the target's own unit, however large that is
        digits = max(0, min(6, 3 - math.floor(math.log10(abs(value)))))
    return f"{'+' if signed and value is not None and value > 0 else ''}{number(value, digits)}"


def score(kind: str, value: float | None, name: str, digits: int = 3) -> str:
    """A score with so many digits; of a number's errors four that count."""
    return _written(kind, name, value) if kind == "regression" else number(value, digits)


def _verdict(kind: str, name: str, gain: dict[str, float | None]) -> str:
    higher_is_better = metrics.METRICS[kind][name].higher_is_better
    if gain["low"] is None or gain["high"] is None or higher_is_better is None:
        return ""
    if gain["low"] <= 0 <= gain["high"]:
        return "may be chance"
    return "better" if (gain["low"] > 0) == higher_is_better else "worse"


def member_row(member: Member) -> dict[str, Any]:
    summary = member.summary
    size = f"{summary['trees']:,} trees" if "trees" in summary else ""
    size = f"{summary['parameters']:,} weights" if "parameters" in summary else size
    return {
        "name": member.name,
        "weight": member.weight,
        "kind": _kind_words(summary.get("kind")),
        "size": size or "–",
        "seconds": summary.get("seconds"),
        "validation": summary.get(f"validation_{member.metric}"),
        "metric": member.metric,
    }


def _kind_words(kind: str | None) -> str:
    return KINDS[kind].words if kind in KINDS else kind or "–"


def importance(run: Run) -> dict[str, Any]:
    """Each tree member's gain by feature, as a part of its whole gain; the features that gained most first."""
    trees = {member.name: member.importance for member in run.members if sum(member.importance.values())}
    shares = {
        name: {feature: gain / sum(importance.values()) for feature, gain in importance.items()}
        for name, importance in trees.items()
    }
    features = run.feature_words
    rows: list[dict[str, Any]] = [
        {"name": name, "words": words, "shares": {member: of.get(name, 0.0) for member, of in shares.items()}}
        for name, words in features.items()
    ]
    rows = sorted(rows, key=lambda row: -sum(row["shares"].values()))[:NUM_FEATURES] if shares else []
    return {"members": list(shares), "rows": rows, "scale": max((max(row["shares"].values()) for row in rows), default=1.0)}


def permutation(run: Run) -> dict[str, Any] | None:
    """By feature, how much worse the score of each member is with it permuted; by the members' weights, the most first."""
    found = {member.name: member.permutation for member in run.members if member.permutation}
    if not found:
        return None
    weight = {member.name: max(member.weight, 0) for member in run.members}
    rows: list[dict[str, Any]] = [
        {"words": words, "worse": {member: of["worse"].get(name, 0.0) for member, of in found.items()}}
        for name, words in run.feature_words.items()
    ]
    rows.sort(key=lambda row: -sum(weight[member] * value for member, value in row["worse"].items()))
    first = next(iter(found.values()))
    return {
        "members": list(found),
        "metric": first["metric"],
        "num_rows": first["rows"],
        "rows": rows[:NUM_FEATURES],
        "scale": max((value for row in rows for value in row["worse"].values()), default=0) or 1.0,
    }


def confusion(run: Run) -> dict[str, Any]:
    """Of the rows of each class, the part that the ensemble gave to each: the likeliest, of the classes with most rows."""
    classes, target = run.task.classes, run.test.target.astype(int)
    named = run.candidates[ENSEMBLE].argmax(axis=1)
    counts = np.zeros((len(classes), len(classes)), int)
    np.add.at(counts, (target, named), 1)
    shown = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:NUM_CLASSES])
    return {
        "classes": [classes[number] for number in shown],
        "rows": [
            {
                "name": classes[number],
                "rows": int(counts[number].sum()),
                "cells": [
                    {
                        "share": counts[number, other] / counts[number].sum() if counts[number].sum() else None,
                        "right": other == number,
                    }
                    for other in shown
                ],
            }
            for number in shown
        ],
        "num_others": len(classes) - len(shown),
    }
