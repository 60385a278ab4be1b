"""The scores of an ensemble, its members and the baselines, with intervals, as scores.json has them."""

import dataclasses
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.combine.fitting import counted_rows
from ensemble.combine.losses import weighted_mean
from ensemble.predictions import Predictions
from ensemble.predictor import intervals
from ensemble.task import Task

ENSEMBLE = "ensemble"


def intervals_of(
    task: Task,
    blend: Predictions,
    cross_fitted: np.ndarray,
    test: Predictions | None,
    candidates: dict[str, np.ndarray],
    is_forward: bool,
) -> tuple[dict[str, Any] | None, intervals.Intervals | None]:
    """The prediction intervals of a regression, fitted on cross-fitted predictions, and their coverage.

    test : a split that took no part in the fit, if there is one; else the coverage is cross-fitted too.
    """
    there = np.isfinite(cross_fitted) if task.kind == "regression" else np.zeros(0, bool)
    if not there.any():
        return None, None
    target, prediction, group = blend.target[there], cross_fitted[there], blend.group[there]
    found = intervals.fit(target, prediction)
    if test is None:
        return intervals.cross_fitted(target, prediction, group, is_forward), found
    return intervals.coverage(*found(candidates[ENSEMBLE]), test.target), found


def score(
    task: Task, test: Predictions, candidates: dict[str, np.ndarray], member_names: list[str], num_draws: int, seed: int
) -> dict[str, Any]:
    weight, counted = counted_rows(test.weight)
    candidates = {name: candidate[counted] for name, candidate in candidates.items()}
    test = dataclasses.replace(test, **{name: getattr(test, name)[counted] for name in ("target", "group", "cluster")})
    scores = {
        name: metrics.bootstrap_scores(
            test.target,
            candidate,
            test.group,
            test.cluster,
            weight=weight,
            kind=task.kind,
            num_draws=num_draws,
            generator=np.random.default_rng(seed),
        )
        for name, candidate in candidates.items()
    }
    sign = 1 if metrics.METRIC_FUNCTIONS[task.metric].higher_is_better else -1
    best = max(member_names, key=lambda name: sign * scores[name][task.metric].value)
    gain = metrics.bootstrap_difference(
        test.target,
        candidates[ENSEMBLE],
        candidates[best],
        test.group,
        test.cluster,
        weight=weight,
        kind=task.kind,
        num_draws=num_draws,
        generator=np.random.default_rng(seed),
    )
    return {
        "kind": task.kind,
        "metric": task.metric,
        "metrics": {name: metric._asdict() for name, metric in metrics.METRICS[task.kind].items()},
        "rows": len(test.target),
        "weighted": weight is not None,
        "clusters": len(np.unique(test.cluster)),
        "groups": len(np.unique(test.group)),
        "base_rate": float(weighted_mean(test.target, weight)) if task.kind == "binary" else None,
        "undefined": metrics.why_undefined(test.target, task.kind),
        "left_out": metrics.groups_left_out(test.target, test.group, task.kind),
        "num_draws": num_draws,
        "members": member_names,
        "scores": {name: {metric: _finite(interval) for metric, interval in of.items()} for name, of in scores.items()},
        "best_member": best,
        "gain_over_best_member": {metric: _finite(interval) for metric, interval in gain.items()},
    }


def _finite(interval: metrics.Interval) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in interval._asdict().items()}
