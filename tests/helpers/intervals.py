"""Intervals of the scores of rows."""

from typing import Any

import numpy as np

from ensemble import metrics


def bootstrap_scores(*rows: np.ndarray, kind: str = "binary", **options: Any) -> dict[str, metrics.Interval]:
    """The intervals of `metrics.score_intervals`, with the arguments of `metrics.bootstrap_draws`."""
    return metrics.score_intervals(kind, metrics.bootstrap_draws(*rows, kind=kind, **options))
