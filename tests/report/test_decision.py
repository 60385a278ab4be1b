"""The decision threshold by costs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ensemble.report import decision


def run(weight: np.ndarray | None = None) -> Any:
    """Ten rows, of which three are yes."""
    target = np.array([1, 1, 0, 1, 0, 0, 0, 0, 0, 0.0])
    probability = np.array([0.9, 0.8, 0.6, 0.4, 0.3, 0.2, 0.11, 0.1, 0.05, 0.05])
    return SimpleNamespace(test=SimpleNamespace(target=target, weight=weight), candidates={"ensemble": probability})


def test_the_threshold_follows_from_the_costs() -> None:
    """The threshold would not be the one with the lowest cost."""
    result = decision.at_cost(run(), 1.0)
    assert result["threshold"] == 0.5
    assert (result["precision"], result["recall"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (result["yes"], result["false_alarms"], result["missed"]) == (300, 100, 100)
    assert (result["total"], result["blind"]) == (200, 300)
    dear = decision.at_cost(run(), 9.0)
    assert dear["threshold"] == pytest.approx(0.1)
    assert (dear["recall"], dear["false_alarms"], dear["total"], dear["blind"]) == (1, 500, 500, 700)
    assert decision.at_cost(run(), 0.01)["yes"] == 0


def test_weights_count() -> None:
    """Rows that stand for several would count as one."""
    result = decision.at_cost(run(np.array([1, 1, 3, 1, 1, 1, 1, 1, 0, 0.0])), 1.0)
    assert result["precision"] == pytest.approx(2 / 5)
    assert result["false_alarms"] == 300


def test_the_slider_begins_at_equal_costs() -> None:
    """The slider and the table would disagree on the first numbers that a reader sees."""
    result = decision.costs(run())
    first, row = result["steps"][result["start"]], next(row for row in result["table"] if row["cost"] == 1)
    assert first == pytest.approx(list(row.values()), rel=1e-6)  # 113.4546 is 113 in the table, and 113.5 would be 114
    assert (result["steps"][0][0], result["steps"][-1][0]) == (pytest.approx(0.05, rel=0.01), 100)
