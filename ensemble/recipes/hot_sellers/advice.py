"""Settings that would work, for error messages about data that are too short or too small for the given settings.

A row is hot if its growth is in the top fraction of its week (splits.py).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from ensemble.data.inputs import BLEND
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import folds, weekly
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.recipes.hot_sellers.splits import growth_by_week, growth_thresholds, is_hot

HORIZONS = (26, 12, 8, 6, 4, 3, 2, 1)
FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
MOST_ROWS = 2_000_000
"""With more rows no settings are searched, since data of this size are not too small."""
NOTHING_WORKS = "would not help"
LEAST_WEEKS_OF_BLEND = 2
"""The weights of an ensemble are chosen on other weeks than those that they are fitted on."""
Parts = Callable[[], Iterable[weekly.WeeklySeries]]
"""Returns the weekly series of all products, one part of the products at a time."""


def settings_that_work(parts: Parts, panel: PanelConfig, first_week: int, last_week: int) -> str:
    """The end of an error message: the first horizon and top fraction with which every split has hot rows.

    Smaller fractions are tried first, and for each fraction longer horizons first; then the same with one week in blend, so
    that members can be trained, but no ensemble be fitted; then all of it without folds. If nothing works, the returned text
    states this, and ends with `NOTHING_WORKS`. If the last week has no rows to forecast, no settings work, and the
    text ends with that of `earlier_end`. Returns '' beyond `MOST_ROWS` rows.
    """
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for horizon in sorted({0, panel.horizon_weeks, *(weeks for weeks in HORIZONS if weeks < panel.horizon_weeks)}):
        rows[horizon] = growth_by_week(parts(), dataclasses.replace(panel, horizon_weeks=horizon), last_week)
        if len(rows[horizon][0]) > MOST_ROWS:  # the first, shortest horizon has the most rows
            return ""
    if last_week not in rows.pop(0)[0]:
        return f"; and the last week has no rows to forecast: {earlier_end(parts, panel, last_week)}"
    fractions = sorted({panel.top_fraction, *(larger for larger in FRACTIONS if larger > panel.top_fraction)})
    for least_weeks, fraction in itertools.product((LEAST_WEEKS_OF_BLEND, 1), fractions):
        for horizon, (week, growth) in reversed(rows.items()):
            candidate = dataclasses.replace(panel, horizon_weeks=horizon, top_fraction=fraction)
            if len(week) and _works(week, growth, candidate, first_week, last_week, least_weeks):
                return f"; panel.horizon_weeks={horizon} panel.top_fraction={fraction:g} would work"
    if panel.folds:
        advice = settings_that_work(parts, dataclasses.replace(panel, folds=0), first_week, last_week)
        return advice.replace(" would work", " panel.folds=0 would work")
    return f"; shorter horizons and fractions up to {max(panel.top_fraction, *FRACTIONS):g} {NOTHING_WORKS}"


def earlier_end(parts: Parts, panel: PanelConfig, last_week: int) -> str:
    """The end of an error message for data whose last week has no rows: leave out all reviews after an earlier Sunday.

    This Sunday ends the latest week that has both reviews and rows, and whose preceding week has rows too. If there is none,
    the message advises more data or a lower `min_reviews`.
    """
    week, _ = growth_by_week(parts(), dataclasses.replace(panel, horizon_weeks=0), last_week)
    active = np.concatenate([np.unique(series.week) for series in parts()])
    ends = np.intersect1d(active, np.intersect1d(week, week + 1))
    if not len(ends):
        return "give more data, or prepare all data with a lower panel.min_reviews"
    day = weekly.sunday(int(ends[-1]))
    return f"give later data, or leave out all after {day} (until={day} of prepare_data.py)"


def _works(
    week: np.ndarray, growth: np.ndarray, panel: PanelConfig, first_week: int, last_week: int, least_weeks: int
) -> bool:
    """Whether all splits, including those of the folds, have hot rows, and blend has rows of at least `least_weeks` weeks;
    False if the weeks are too few for the splits."""
    try:
        weeks_of, weeks_of_folds = folds.all_weeks(first_week, last_week, week, panel)
    except UserError:
        return False
    begin, end = weeks_of[BLEND]
    if len(np.unique(week[(begin <= week) & (week <= end)])) < least_weeks:
        return False
    hot_weeks = np.unique(week[is_hot(week, growth, growth_thresholds(week, growth, panel.top_fraction))])
    ranges = {weeks for splits in (weeks_of, *weeks_of_folds) for weeks in splits.values()}
    return all(((begin <= hot_weeks) & (hot_weeks <= end)).any() for begin, end in ranges)
