"""Descriptions of metrics, combiners and splits in the report, and the formats of its numbers."""

import datetime
import math
from typing import Any

THIN = "\u202f"  # a narrow space that does not break, between a number and its unit
VERY_LARGE = 1e15
"""From here on a float has not all digits before the decimal point."""

SPLIT_USE = {
    "train": "members are trained",
    "validation": "early stopping",
    "blend": "weights and calibration are fitted; refitted members are then trained on it too",
    "test": "the scores above",
    "forecast": "the forecast above",
}
METHOD_DESCRIPTIONS = {
    "equal": "the same weight for each member",
    "best_member": "all weight on the member with the lowest loss",
    "greedy": "members added one by one, with replacement, while the loss decreases",
    "shrunk": "the mean of greedy's weights and equal weights",
    "simplex": "the weights of lowest loss that are not negative and sum to 1",
    "logistic": "logistic regression; weights may be negative",
    "nnls": "least squares without negative weights",
    "ridge": "least squares with a penalty; weights may be negative",
    "rank_average": "the mean of the members' ranks among the rows that weights are fitted on",
    "auto": "each block with the method that was chosen on the blocks before it",
    "platt": "slope and intercept for the log odds of the average",
    "temperature": "a slope for the log odds of the average",
    "isotonic": "isotonic regression, for many rows",
    "none": "the average as it is",
}
METRIC_DESCRIPTIONS = {
    "binary": {
        "average_precision": "The area under the precision-recall curve: 1 is perfect, the base rate is a random order.",
        "roc_auc": "The probability that a positive row is ranked above a negative one: 1 is perfect, 0.5 is random.",
        "log_loss": "The mean of −log of the probability of the true outcome: confident errors cost most.",
        "brier": "The mean squared difference between the probability and the outcome (0 or 1).",
        "calibration_error": "The mean absolute difference between predicted probability and observed frequency, over bins.",
        "precision_at_5pct": "The share of positive rows among each block’s top 5 %, rounded down, but at least one row.",
        "lift_at_5pct": "That precision as a multiple of the base rate.",
        "accuracy": "The share of the rows whose likelier outcome is the true one.",
    },
    "multiclass": {
        "multiclass_log_loss": "The mean of −log of the probability of the true class: confident errors cost most.",
        "accuracy": "The share of the rows whose likeliest class is the true one.",
        "balanced_accuracy": "The mean of the recalls of the classes: rare classes count as much as frequent ones.",
        "macro_f1": "The mean of F1 over classes; F1 is high if both precision and recall of a class are high.",
        "brier": "The squared difference between the probabilities and the outcome, summed over classes: from 0 to 2.",
    },
    "regression": {
        "root_mean_squared_error": "The root of the mean squared error, in the target’s unit: large errors count most.",
        "mean_absolute_error": "The mean absolute difference from the true value, in the target’s unit.",
        "r_squared": "The share of the target’s variance that is explained: 1 is perfect, 0 is a prediction of the mean.",
        "mean_error": "The mean of prediction minus true value, in the target’s unit: the bias.",
    },
    "ranking": {
        "ndcg_at_5": "How close the first 5 places of a group are to the best order: 1 is perfect.",
        "ndcg_at_10": "How close the first 10 places of a group are to the best order: 1 is perfect.",
        "mean_reciprocal_rank": "The mean of 1 ÷ the place of the first relevant row.",
        "recall_at_10": "The share of a group’s relevant rows that are in its first 10 places.",
    },
}
"""By kind of task; a recipe may replace them by `METRIC_DESCRIPTIONS` in its page.py."""
PLANNED_SPEED_UP = {1: 1.0, 2: 1.85, 4: 3.43, 8: 6.0}
"""By number of GPUs: the speed-up that was expected before any measurement, as the page states."""


def method_description(method: str, on_other_blocks: bool) -> str:
    """A description of a combiner or calibrator. on_other_blocks : whether methods are fitted and compared also on blocks
    after the predicted one."""
    if method == "auto" and on_other_blocks:
        return "each block with the method that was chosen on the other blocks"
    return METHOD_DESCRIPTIONS.get(method, "")


def feature_value(value: float, unit: str, categories: list[str]) -> str:
    """A feature's value, rounded as `number` does, with the sign of its unit."""
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
    """0.0489 as "4.9 %". It has `digits` digits after the decimal point, by default one below 10 % and none above."""
    if value is None:
        return "–"
    digits = (1 if abs(value) < 0.0995 else 0) if digits is None else digits
    return f"{number(100 * value, digits)}{THIN}%"


def number(value: float | None, digits: int | None = None) -> str:
    """A number with thousands separators. It has `digits` digits after the decimal point, by default two below 10, one below
    100 and none above, without trailing zeros. Below 0.01 the default is three significant digits, and from
    `VERY_LARGE` on any number has four."""
    if value is None or math.isnan(value):
        return "–"
    if abs(value) >= VERY_LARGE:
        return f"{value:.4g}".replace("-", "−")
    if digits is None and 0 < abs(value) < 0.01:
        return f"{value:.3g}".replace("-", "−")
    text = f"{value:,.{(0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2) if digits is None else digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.removeprefix("-")
    if digits is None and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def counted(count: int, noun: str) -> str:
    """1 as "1 row", and 1200 as "1,200 rows", for the `noun` row."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def significant(value: float | None) -> str:
    """A positive number with three significant digits, or with all digits before the decimal point if these are more."""
    return number(value, max(0, 2 - math.floor(math.log10(value))) if value and value >= 1e-4 else None)


def day(date: str | datetime.date) -> str:
    """2023-09-25 as "25 September 2023"."""
    date = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    return f"{date.day} {date:%B %Y}"


def duration(seconds: float) -> str:
    """109.4 s as "1 min 49 s"."""
    if seconds < 59.95:  # 59.97 would be 60.0 s
        return f"{seconds:.1f}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{THIN}h {minutes}{THIN}min" if hours else f"{minutes}{THIN}min {rest}{THIN}s"


def file_size(size: float) -> str:
    """2,345,678 bytes as "2.3 MB", and 2,345 as "2.3 kB"."""
    return f"{number(size / 1e3, 1)}{THIN}kB" if size < 1e5 else f"{number(size / 1e6, 1)}{THIN}MB"


FORMATS = (percent, number, counted, significant, day, duration, file_size)
"""The functions that the templates use as filters, by their names."""


def templates(loader: Any) -> Any:
    """The Jinja2 environment of pages, with `FORMATS` as filters. loader : of templates, such as jinja2.FileSystemLoader."""
    import jinja2

    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update({text_format.__name__: text_format for text_format in FORMATS})
    return environment
