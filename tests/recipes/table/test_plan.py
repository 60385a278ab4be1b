"""The plan of a fit of a table."""

from typing import Any

import pytest

from ensemble.data import cross_validation
from ensemble.data.cross_validation import CrossValidation
from ensemble.recipes.table.plan import combining

FORWARD = CrossValidation(scheme="forward", num_folds=2, embargo=0.0, begins=(0.0, 1.0, 2.0))
RANDOM = CrossValidation(scheme="random", num_folds=5)


@pytest.mark.parametrize(
    ("kind", "scheme", "expected"),
    [
        ("regression", FORWARD, {"combiner": "auto"}),
        ("binary", FORWARD, {"combiner": "simplex", "calibration": "none"}),
        ("ranking", FORWARD, {"combiner": "simplex"}),
        ("regression", RANDOM, {"combiner": "simplex"}),
        ("binary", RANDOM, {"combiner": "simplex", "calibration": "platt"}),
    ],
)
def test_numbers_in_time_are_combined_as_is_best_for_the_next_blocks(
    kind: str, scheme: CrossValidation, expected: Any
) -> None:
    """Weights that fit past blocks only would be used, or probabilities be calibrated to a past frequency."""
    assert combining({"task": {"kind": kind}, cross_validation.KEY: scheme.to_dict()}) == expected
