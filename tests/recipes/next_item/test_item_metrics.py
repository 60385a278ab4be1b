"""Scores of rankings of items, against loops over rows."""

import numpy as np
import pytest

from ensemble.recipes.next_item import item_metrics

RANK = np.array([1, 2.5, 10, 11, 30, np.inf])
ITEMS = np.array([[1, 2, 3], [1, 2, 0], [1, 3, 0], [2, 0, 0], [1, 2, 3], [0, 0, 0]])
TARGET = np.array([1, 2, 3, 4, 5, 6])
COUNT = np.array([50, 40, 30, 5, 5, 0, 0, 0])


def scores() -> dict[str, float]:
    return item_metrics.item_scores(RANK, ITEMS, TARGET, COUNT, rank_of_101=np.array([1, 1, 2, 3, 10.5, 101]))


def test_ranks_are_scored_as_by_a_loop() -> None:
    """A metric would have another definition than its name, or a target that is no candidate would have a score above 0."""
    metrics = scores()
    for cut_off in (1, 5, 10, 20):
        within = [rank for rank in RANK if rank <= cut_off]
        assert metrics[f"hr_at_{cut_off}"] == pytest.approx(len(within) / 6)
        assert metrics[f"ndcg_at_{cut_off}"] == pytest.approx(sum(1 / np.log2(rank + 1) for rank in within) / 6)
        assert metrics[f"mrr_at_{cut_off}"] == pytest.approx(sum(1 / rank for rank in within) / 6)
    assert metrics["hr_at_10_of_101"] == pytest.approx(4 / 6)
    assert metrics["ndcg_at_10_of_101"] == pytest.approx((1 + 1 + 1 / np.log2(3) + 1 / 2) / 6)
    assert len(metrics) == 3 * 4 + 2 + 2


def test_what_is_shown_is_scored_as_by_a_loop() -> None:
    """Padding would count as an item, or lists of the most popular items would not have a high popularity."""
    metrics = scores()
    assert metrics["coverage_at_10"] == pytest.approx(3 / 8)
    shown = [COUNT[item - 1] for row in ITEMS for item in row if item]
    taken = [COUNT[item - 1] for item in TARGET]
    more_often = [(count > other) + (count == other) / 2 for count in shown for other in taken]
    assert metrics["popularity_at_10"] == pytest.approx(np.mean(more_often))


def test_popularity_is_a_half_for_what_is_taken() -> None:
    """Ties between rare items would change the popularity."""
    metrics = item_metrics.item_scores(np.ones(6), TARGET[:, None], TARGET, COUNT)
    assert metrics["popularity_at_10"] == pytest.approx(0.5)
    assert "hr_at_10_of_101" not in metrics


def test_lengths_fall_into_their_parts() -> None:
    """A part would have the rows of the next one, or a part without rows would be NaN."""
    metrics = item_metrics.scores_by_length(RANK, np.array([1, 4, 5, 20, 49, 1000]))
    assert {name: part["rows"] for name, part in metrics.items()} == {"1–4": 2, "5–9": 1, "20–49": 2, "50+": 1}
    assert metrics["1–4"]["ndcg_at_10"] == pytest.approx((1 + 1 / np.log2(3.5)) / 2)
    assert metrics["5–9"]["hr_at_10"] == 1
    assert metrics["50+"]["ndcg_at_10"] == 0
