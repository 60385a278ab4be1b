"""The report's words: what features, metrics and splits are called, and how numbers are written for people."""

import datetime
import math

THIN = "\u202f"  # a narrow space that does not break, between a number and its unit

SPLIT_USE = {
    "train": "members learn",
    "validation": "members stop learning in time",
    "blend": "weights and calibration are fitted",
    "test": "the scores above",
    "forecast": "the forecast above",
}
METHOD_WORDS = {
    "equal": "the same weight for each",
    "best_member": "all weight on the member of lowest loss",
    "greedy": "members added one by one, with replacement, while that helps",
    "shrunk": "halfway from greedy's weights to equal ones",
    "simplex": "the weights of lowest loss, none negative, 1 together",
    "logistic": "logistic regression; weights may be negative",
    "nnls": "least squared error, no weight negative",
    "ridge": "the same with a penalty; weights may be negative",
    "rank_average": "the same weight for each member's rank among the rows of blend",
    "auto": "each block by the way that the blocks before it would have chosen",
    "platt": "slope and intercept of the average's log odds",
    "temperature": "its slope alone",
    "isotonic": "a rising curve, for blends of many rows",
}
METHOD_WORDS_OUT_OF_FOLD = {
    "rank_average": "the same weight for each member's rank among the rows that weights are fitted on",
    "isotonic": "a rising curve, for many rows",
    "auto": "each block by the way that was chosen on other blocks",
}
"""Where weights are fitted on out-of-fold predictions."""
METRIC_WORDS = {
    "binary": {
        "average_precision": "The area under the precision-recall curve: 1 is perfect, the base rate is blind.",
        "roc_auc": "How often a row that is yes is ranked above one that is no: 1 is perfect, 0.5 is blind.",
        "log_loss": "The mean surprise at what happened: confident mistakes cost most.",
        "brier": "The mean squared distance between the probability and what happened.",
        "calibration_error": "How far the probability lies from the share that was yes; saying the base rate has none.",
        "precision_at_5pct": "Of the rows in each block’s top 5 %, the part that was yes.",
        "lift_at_5pct": "That precision as a multiple of the base rate.",
    },
    "multiclass": {
        "multiclass_log_loss": "The mean surprise at the class that came true: confident mistakes cost most.",
        "accuracy": "The part of the rows whose likeliest class came true.",
        "balanced_accuracy": "The mean over classes of the part of their rows that was named: rare ones count like others.",
        "macro_f1": "The mean over classes of F1, which is high where a class is both found and rarely named in vain.",
        "brier": "The squared distance between the probabilities and what happened, summed over classes: from 0 to 2.",
    },
    "regression": {
        "root_mean_squared_error": "The root of the mean squared error, in the target’s unit: large errors count most.",
        "mean_absolute_error": "The mean distance from the truth, in the target’s unit.",
        "r_squared": "The part of the target’s variance that is explained: 1 is perfect, 0 is saying the mean.",
        "mean_error": "Prediction less truth, in the target’s unit: 0 where it errs to both sides alike.",
    },
    "ranking": {
        "ndcg_at_5": "How near the first 5 places of a group are to the best order: 1 is perfect.",
        "ndcg_at_10": "How near the first 10 places of a group are to the best order: 1 is perfect.",
        "mean_reciprocal_rank": "The mean of 1 ÷ the place of the first relevant row.",
        "recall_at_10": "The part of a group’s relevant rows that stands in its first 10 places.",
    },
}
"""By kind of task; a recipe may have its own, as `METRIC_WORDS` in page.py."""
PLANNED_SPEED_UP = {1: 1.0, 2: 1.85, 4: 3.43, 8: 6.0}
"""By GPUs, from the planning table that the project was given: nobody measured it here, and the page says so."""


def method_words(method: str, out_of_fold: bool) -> str:
    """What a combiner or calibrator does."""
    own = METHOD_WORDS_OUT_OF_FOLD.get(method) if out_of_fold else None
    return own or METHOD_WORDS.get(method, "")


def feature_value(value: float, unit: str, categories: list[str]) -> str:
    """A feature's value with as many digits as a person wants, and its unit where the words do not say it."""
    if math.isnan(value):
        return "unknown"
    if unit == "share":
        return percent(value)
    if unit == "ratio":
        return f"{number(value)}{THIN}×"
    if unit == "dollars":
        return f"${value:,.2f}"
    if unit == "stars":
        return f"{number(value)}{THIN}★"
    if unit == "0 or 1":
        return "yes" if value else "no"
    if unit == "code" and 0 <= value < len(categories):
        return categories[int(value)] or "unknown"
    return number(value)


def percent(value: float | None, digits: int | None = None) -> str:
    """0.0489 as "4.9 %": one digit below 10 %, none above, unless `digits` says."""
    if value is None:
        return "–"
    digits = (1 if abs(value) < 0.0995 else 0) if digits is None else digits
    return f"{100 * value:,.{digits}f}{THIN}%".replace("-", "−")


def number(value: float | None, digits: int | None = None) -> str:
    """A number with thousands separators; about three significant digits and no idle zeros, unless `digits` says."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:,.{(0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2) if digits is None else digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.removeprefix("-")
    if digits is None and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def significant(value: float | None) -> str:
    """A positive number with three significant digits or, where it is large, all before the point."""
    return number(value, max(0, 2 - math.floor(math.log10(value))) if value else None)


def day(date: str | datetime.date) -> str:
    """2023-09-25 as "25 September 2023"."""
    date = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    return f"{date.day} {date:%B %Y}"


def duration(seconds: float) -> str:
    """109.4 s as "1 min 49 s"."""
    if seconds < 60:
        return f"{seconds:.1f}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{THIN}h {minutes}{THIN}min" if hours else f"{minutes}{THIN}min {rest}{THIN}s"


def megabytes(size: int) -> str:
    return f"{number(size / 1e6, 1)}{THIN}MB"
