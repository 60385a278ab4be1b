"""From which probability to decide for yes, by what a missed yes costs as a multiple of a false alarm.

With costs m of a missed yes and 1 of a false alarm, a calibrated probability p costs least if yes is decided from
p = 1 / (1 + m) on. So the threshold follows from the costs alone, and what it gives is measured on the rows that are scored.
"""

from typing import Any

import numpy as np

from ensemble.predictor.fit import ENSEMBLE
from ensemble.report.run import Run

SHOWN = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Costs of a missed yes of the rows of the table."""
PER_DECADE = 20
EXPONENTS = (-26, 40)
"""Of the first and the last step of the slider, in parts of a decade: from 0.05 to 100."""


def costs(run: Run) -> dict[str, Any]:
    """`table`, a row for each of `SHOWN`, and `steps`, rows for a slider, as lists for JavaScript."""
    steps = 10 ** (np.arange(EXPONENTS[0], EXPONENTS[1] + 1) / PER_DECADE)
    return {
        "table": [at(run, cost) for cost in SHOWN],
        "steps": [[float(f"{value:.4g}") for value in at(run, float(cost)).values()] for cost in steps],
        "start": -EXPONENTS[0],
    }


def at(run: Run, cost: float) -> dict[str, float]:
    """The threshold for a cost of a missed yes, and what it gives; numbers are per 1,000 rows, costs in false alarms."""
    target, weight = run.test.target, run.test.weight
    weight = np.ones(len(target)) if weight is None else weight
    per_thousand = 1000 / weight.sum()
    threshold = 1 / (1 + cost)
    is_yes = run.candidates[ENSEMBLE] >= threshold
    named, positives = weight[is_yes].sum(), weight @ target
    hits = weight[is_yes] @ target[is_yes]
    false_alarms, missed = named - hits, positives - hits
    return {
        "cost": cost,
        "threshold": threshold,
        "precision": float(hits / named) if named else 0.0,
        "recall": float(hits / positives) if positives else 0.0,
        "yes": float(named * per_thousand),
        "false_alarms": float(false_alarms * per_thousand),
        "missed": float(missed * per_thousand),
        "total": float((false_alarms + cost * missed) * per_thousand),
        "blind": float(min(weight.sum() - positives, cost * positives) * per_thousand),
    }
