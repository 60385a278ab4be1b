"""The report's words: what features, metrics and splits are called, and how numbers are written for people."""

import datetime
import math
import re
from typing import Any

THIN = "\u202f"  # a narrow space that does not break, between a number and its unit

HOT_SELLERS = "hot_sellers"
KINDS = {"neural": "neural network", "xgboost": "XGBoost", "lightgbm": "LightGBM"}
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
METRIC_WORDS = {
    "hot_sellers": {
        "average_precision": "The area under the precision-recall curve: 1 is perfect, the base rate is blind.",
        "roc_auc": "How often a hot product is ranked above one that is not: 1 is perfect, 0.5 is blind.",
        "log_loss": "The mean surprise at what happened: confident mistakes cost most.",
        "brier": "The mean squared distance between the probability and what happened.",
        "calibration_error": "How far the probability lies from the share that became hot; saying the base rate has none.",
        "precision_at_5pct": "Of the products in each week's top 5 %, the part that became hot.",
        "lift_at_5pct": "That precision as a multiple of the base rate.",
    },
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
"""Of hot sellers, and of tables by the kind of their task."""
PLANNED_SPEED_UP = {1: 1.0, 2: 1.85, 4: 3.43, 8: 6.0}
"""By GPUs, from the planning table that the project was given: nobody measured it here, and the page says so."""
FEATURE_WORDS = (
    (r"reviews_total", "reviews ever"),
    (r"reviews_per_week", "reviews a week since its first"),
    (r"reviews_same_(\d+)w_last_year", "reviews in the same {} weeks a year ago"),
    (r"reviews_(\d+)w", "reviews in {} weeks"),
    (r"growth_last_year", "growth in reviews a year ago, in the weeks that now lie ahead"),
    (r"growth_(\d+)w_a_month_ago", "growth in reviews over {} weeks, a month ago"),
    (r"growth_(\d+)w", "growth in reviews over {} weeks"),
    (r"acceleration_(\d+)w", "change in a month of the growth over {} weeks"),
    (r"share_1w_of_(\d+)w", "share of {} weeks’ reviews in the last week"),
    (r"share_(\d+)w_of_(\d+)w", "share of {1} weeks’ reviews in the last {0}"),
    (r"share_(\d+)w_of_total", "share of all its reviews in the last {} weeks"),
    (r"active_weeks_(\d+)w", "weeks with a review, of the last {}"),
    (r"weekly_deviation_(\d+)w", "spread of weekly reviews in {} weeks"),
    (r"age", "weeks since its first review"),
    (r"weeks_since_review", "weeks since a week with a review"),
    (r"weeks_since_second", "weeks since the second last week with a review"),
    (r"expected_by_last_year", "last year’s reviews in the weeks ahead, by those of the last 4 weeks"),
    (r"year_(sine|cosine)", "time of the year ({})"),
    (r"weeks_to_thanksgiving", "weeks to Thanksgiving"),
    (r"weeks_to_christmas", "weeks to Christmas"),
    (r"holidays_next_(\d+)w", "public holidays in the next {} weeks"),
    (r"rating_total", "mean rating ever"),
    (r"rating_change_4w", "rating in 4 weeks, less that in 52"),
    (r"rating_change_12w", "rating in 12 weeks, less the 12 before"),
    (r"rating_deviation_(\d+)w", "spread of ratings in {} weeks"),
    (r"rating_(\d+)w", "mean rating in {} weeks"),
    (r"fives_(\d+)w", "share of five-star ratings in {} weeks"),
    (r"ones_(\d+)w", "share of one-star ratings in {} weeks"),
    (r"verified_(\d+)w", "share of verified purchases in {} weeks"),
    (r"images_(\d+)w", "pictures a review in {} weeks"),
    (r"words_(\d+)w", "words a review in {} weeks"),
    (r"sentiment_(\d+)w", "good less bad words a review in {} weeks"),
    (r"helpful_(\d+)w", "helpful votes a review in {} weeks"),
    (r"category", "category"),
    (r"category_reviews_(\d+)w", "its category’s reviews in {} weeks"),
    (r"category_growth_last_year", "its category’s growth a year ago, in the weeks that now lie ahead"),
    (r"category_growth_(\d+)w", "its category’s growth over {} weeks"),
    (r"share_of_category_(\d+)w", "share of its category’s reviews in {} weeks"),
    (r"market_growth_(\d+)w", "the whole market’s growth over {} weeks"),
    (r"price", "price"),
    (r"price_missing", "price unknown"),
)
"""What a feature is, for people, with `{}` for the numbers in its name; the formulas are in the page's table of features."""


def feature_words(feature: dict[str, Any]) -> str:
    """What a feature of the manifest's table is, for people; its documented meaning where we have no better words."""
    for pattern, words in FEATURE_WORDS:
        if found := re.fullmatch(pattern, feature["name"]):
            return words.format(*found.groups()).replace(" 1 weeks", " 1 week")
    return feature["meaning"]


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
