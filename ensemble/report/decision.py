"""Decision thresholds of a binary task, by the cost of a missed positive as a multiple of the cost of a false alarm.

If a missed positive costs m and a false alarm 1, and probabilities are calibrated, the expected cost is lowest if rows
with a probability of at least 1 / (1 + m) are predicted positive. So no threshold is fitted to data. Precision, recall and
cost are measured on the scored rows.
"""

from typing import Any

import numpy as np

from ensemble.predictor.fit import ENSEMBLE
from ensemble.report.run import Run

SHOWN = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Costs of a missed positive in the table."""
PER_DECADE = 20
"""Steps of the slider for a factor of 10 in cost."""
EXPONENTS = (-26, 40)
"""First and last step of the slider: costs from 10^(-26 / 20) = 0.05 to 10^(40 / 20) = 100."""


def costs(run: Run) -> dict[str, Any]:
    """The entries `table`, with a row for each of `SHOWN`; `steps`, the rows of the slider, as lists for JavaScript; and
    `start`, the slider's first position, at a cost of 1."""
    steps = 10 ** (np.arange(EXPONENTS[0], EXPONENTS[1] + 1) / PER_DECADE)
    return {
        "table": [at_cost(run, cost) for cost in SHOWN],
        "steps": [[float(f"{value:.7g}") for value in at_cost(run, float(cost)).values()] for cost in steps],
        "start": -EXPONENTS[0],
    }


def at_cost(run: Run, cost: float) -> dict[str, float]:
    """The threshold for a cost of a missed positive, with precision, recall, and counts and costs per 1,000 rows.

    The keys are those of the page's JavaScript, in its order. `yes` is the number of rows that are predicted positive, and
    `total` the cost. `blind` is the cost without a model: if all rows, or none, are predicted positive, whichever is less.
    Costs are in units of the cost of a false alarm.
    """
    target, weight = run.test.target, run.test.weight
    weight = np.ones(len(target)) if weight is None else weight
    per_thousand = 1000 / weight.sum()
    threshold = 1 / (1 + cost)
    is_predicted = run.candidates[ENSEMBLE] >= threshold
    predicted, positives = weight[is_predicted].sum(), weight @ target
    hits = weight[is_predicted] @ target[is_predicted]
    false_alarms, missed = predicted - hits, positives - hits
    return {
        "cost": cost,
        "threshold": threshold,
        "precision": float(hits / predicted) if predicted else 0.0,
        "recall": float(hits / positives) if positives else 0.0,
        "yes": float(predicted * per_thousand),
        "false_alarms": float(false_alarms * per_thousand),
        "missed": float(missed * per_thousand),
        "total": float((false_alarms + cost * missed) * per_thousand),
        "blind": float(min(weight.sum() - positives, cost * positives) * per_thousand),
    }
