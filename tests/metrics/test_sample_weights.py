"""Sample weights in every score: the same as scikit-learn's `sample_weight`, or as that number of copies of a row."""

import numpy as np
import pytest
from blends import KINDS, WEEKS, blend_of
from intervals import bootstrap_scores
from sklearn import metrics as known

from ensemble import metrics
from ensemble.metrics import METRIC_FUNCTIONS, METRICS
from ensemble.metrics.weighting import relative_weights

NUM_ROWS = 1000
generator = np.random.default_rng(3)
times = generator.integers(0, 4, NUM_ROWS)
fractions = times * generator.uniform(0.1, 2, NUM_ROWS)


def rows_of(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    target, predictions, group = blend_of(kind, NUM_ROWS)
    prediction = predictions[:, 0]
    return target, prediction.round(2) if kind == "binary" else prediction, group


KNOWN = {
    "average_precision": known.average_precision_score,
    "roc_auc": known.roc_auc_score,
    "log_loss": known.log_loss,
    "multiclass_log_loss": known.log_loss,
    "accuracy": lambda target, prediction, sample_weight: known.accuracy_score(
        target, prediction >= 0.5 if prediction.ndim == 1 else prediction.argmax(1), sample_weight=sample_weight
    ),
    "root_mean_squared_error": known.root_mean_squared_error,
    "mean_absolute_error": known.mean_absolute_error,
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in KNOWN for kind in METRIC_FUNCTIONS[name].kinds])
def test_metrics_of_early_stopping_are_those_of_scikit_learn(name: str, kind: str) -> None:
    """Early stopping would use a score in which rows of weight 0 count."""
    target, prediction, group = rows_of(kind)
    ours = METRIC_FUNCTIONS[name].function(target, prediction, group, fractions)
    assert ours == pytest.approx(KNOWN[name](target, prediction, sample_weight=fractions), rel=1e-9)
    assert ours != pytest.approx(METRIC_FUNCTIONS[name].function(target, prediction, group), rel=1e-6)


def test_ndcg_of_weighted_groups_is_that_of_scikit_learn() -> None:
    """The groups of a ranking would count equally, whatever their weight, or rows of weight 0 would take ranks."""
    target, prediction, group = rows_of("ranking")
    groups = np.unique(group)
    of_group = np.random.default_rng(0).integers(0, 4, len(groups)) * 0.3
    table = [(2 ** target[group == one] - 1, prediction[group == one]) for one in groups]
    with_relevant = np.array([gain.any() for gain, _ in table])
    expected = known.ndcg_score(
        *map(np.array, zip(*(row for row, there in zip(table, with_relevant, strict=True) if there), strict=True)),
        k=10,
        sample_weight=of_group[with_relevant],
    )
    ndcg = METRIC_FUNCTIONS["ndcg_at_10"].function
    weight = of_group[group]
    assert ndcg(target, prediction, group, weight) == pytest.approx(expected)
    best = np.lexsort((-prediction, group))[::20]  # the first place of each group
    weight[best] = 0
    assert ndcg(target, prediction, group, weight) == pytest.approx(
        ndcg(*(np.delete(column, best) for column in (target, prediction, group, weight)))
    )
    assert metrics.task_scores("ranking", target, prediction, group, weight) == pytest.approx(
        metrics.task_scores("ranking", *(np.delete(column, best) for column in (target, prediction, group, weight)))
    )
    unlike = np.random.default_rng(0).integers(1, 3, len(group))
    twice = np.repeat(np.arange(len(group)), unlike)
    assert ndcg(target, prediction, group, unlike) == pytest.approx(ndcg(target[twice], prediction[twice], group[twice]))


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_weighted_rows_are_those_of_copies(kind: str) -> None:
    """The interval would be that of other rows than the score beside it."""
    target, prediction, group = rows_of(kind)
    cluster, weight = np.arange(NUM_ROWS) % 97, times.astype(float)
    if kind == "ranking":  # a group of weight 2 is two groups, not one group with each row twice
        cluster, weight = group, (1.0 + group % 2)
    copies = np.repeat(np.arange(NUM_ROWS), weight.astype(int))
    group_of_copy = group[copies]
    if kind == "ranking":
        again = np.concatenate([np.arange(number) for number in weight.astype(int)])
        group_of_copy = group_of_copy + again * (group.max() + 1)
    result, expected = (
        bootstrap_scores(*rows, kind=kind, num_draws=10, generator=np.random.default_rng(5), weight=row_weight)
        for rows, row_weight in (
            ((target, prediction, group, cluster), weight),
            ((target[copies], prediction[copies], group_of_copy, cluster[copies]), None),
        )
    )
    for name in METRICS[kind]:
        assert result[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-12)


def test_the_intervals_of_a_ranking_hold_its_scores() -> None:
    """A group of different weights that is drawn twice would be one group of twice as many rows, of which 10 are scored."""
    target, prediction, group = rows_of("ranking")
    unlike = 1 + np.arange(NUM_ROWS) % 3
    twice = np.repeat(np.arange(NUM_ROWS), unlike)
    result, expected = (
        bootstrap_scores(
            *(column[rows] for column in (target, prediction, group, group)),
            kind="ranking",
            num_draws=50,
            generator=np.random.default_rng(5),
            weight=weight,
        )
        for rows, weight in ((np.arange(NUM_ROWS), unlike.astype(float)), (twice, None))
    )
    for name, interval in result.items():
        assert interval == pytest.approx(expected[name])
        assert interval.low < interval.value < interval.high


def test_a_unit_of_weights_changes_nothing() -> None:
    """Weights of a thousand would widen the top 5 % from one row to all of them."""
    target, prediction, group = rows_of("binary")
    result = [metrics.task_scores("binary", target, prediction, group, relative_weights(fractions * by)) for by in (1, 1e-3)]
    assert result[0] == pytest.approx(result[1])
    alike = relative_weights(np.full(NUM_ROWS, 0.1))
    plain = metrics.task_scores("binary", target, prediction, group)
    assert metrics.task_scores("binary", target, prediction, group, alike) == pytest.approx(plain)


def test_the_interval_of_the_calibration_error_holds_it() -> None:
    """The score would be outside of its own interval, since the error of calibrated predictions is larger in each draw."""
    generator = np.random.default_rng(0)
    prediction = generator.random(400)
    target = (generator.random(400) < prediction).astype(float)
    cluster = np.arange(400)
    result = bootstrap_scores(target, prediction, cluster % WEEKS, cluster, generator=generator)["calibration_error"]
    assert 0 <= result.low < result.value < result.high
