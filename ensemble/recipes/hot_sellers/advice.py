"""Which settings would work, for data that are too short or too small for those that were given."""

import dataclasses
import datetime
from collections.abc import Callable, Iterable

import numpy as np

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import folds, weekly
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.recipes.hot_sellers.splits import borders, split_weeks

HORIZONS = (26, 12, 8, 6, 4, 3, 2, 1)
FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
MOST_ROWS = 2_000_000
"""Larger data are not tried: they fail for another reason than their size."""
Parts = Callable[[], Iterable[weekly.WeeklySeries]]


def settings_that_work(parts: Parts, panel: PanelConfig, first_week: int, last_week: int) -> str:
    """The end of a sentence that names a horizon and a fraction with which every split has hot rows.

    The smallest fraction that works is taken, and for it the longest horizon; neither is easier than need be.
    """
    horizons = sorted({panel.horizon_weeks, *(one for one in HORIZONS if one < panel.horizon_weeks)}, reverse=True)
    rows = {horizon: _growth(parts, panel, last_week, horizon) for horizon in horizons}
    if max(len(week) for week, _ in rows.values()) > MOST_ROWS:
        return ""
    for fraction in sorted({panel.top_fraction, *(one for one in FRACTIONS if one > panel.top_fraction)}):
        for horizon, (week, growth) in rows.items():
            tried = dataclasses.replace(panel, horizon_weeks=horizon, top_fraction=fraction)
            if len(week) and _works(week, growth, tried, first_week, last_week):
                return f"; panel.horizon_weeks={horizon} panel.top_fraction={fraction:g} would work"
    return "; no other horizon or fraction would do, only more data"


def earlier_end(parts: Parts, panel: PanelConfig, last_week: int) -> str:
    """What to do where nothing can be forecast: the last day by which the data could end."""
    week, _ = _growth(parts, panel, last_week, 0)
    if not len(week):
        return "give more data, or lower panel.min_reviews"
    return f"give later data, or end them with until={weekly.monday(int(week.max())) + datetime.timedelta(days=6)}"


def _growth(parts: Parts, panel: PanelConfig, last_week: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Week and growth of the rows whose horizon lies inside the data, (num_rows,) each."""
    weeks, growths = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for series in parts():
        product, week = weekly.rows_with_recent_reviews(series, panel.base_weeks, last_week - horizon)
        rows = weekly.Windows(series, product, week)
        base = rows.sum("reviews", panel.base_weeks)
        kept = base >= panel.min_reviews
        weeks.append(week[kept])
        growths.append((rows.next("reviews", horizon) / (base + 1)).astype(np.float32)[kept])
    return np.concatenate(weeks), np.concatenate(growths)


def _works(week: np.ndarray, growth: np.ndarray, panel: PanelConfig, first_week: int, last_week: int) -> bool:
    num_labelled = max(0, last_week - panel.horizon_weeks - first_week + 1)
    rows_per_week = np.bincount(week - first_week, minlength=num_labelled)
    try:
        weeks_of = split_weeks(first_week, last_week, rows_per_week, panel)
        all_of = [weeks_of, *folds.fold_weeks(weeks_of, rows_per_week, panel)]
    except UserError:
        return False
    border = borders(week, growth, panel.top_fraction)
    is_hot = growth > np.array([border[number] for number in week.tolist()], np.float32)
    hot_per_week = np.bincount(week - first_week, is_hot, minlength=num_labelled)
    splits = {weeks for of in all_of for weeks in of.values()}
    return all(hot_per_week[begin - first_week : end - first_week + 1].any() for begin, end in splits)
