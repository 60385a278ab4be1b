"""Sample weights in the ensemble: a row of weight 2 is two rows, and one of weight 0 is none, in every fit and score."""

import itertools

import numpy as np
import pytest
from blends import GROUP_SIZE, KINDS, NAMES, Blend, blend_of

from ensemble import combine
from ensemble.combine import diversity
from ensemble.combine.combination import Rows, fit_combinations
from ensemble.combine.fitting import OUTPUTS_OF, member_inputs
from ensemble.combine.losses import task_loss
from ensemble.combine.scales import CALIBRATORS
from ensemble.combine.weights import COMBINERS

NUM_ROWS = 1200
every_kind = pytest.mark.parametrize("kind", KINDS)


def weighted(kind: str) -> tuple[Blend, np.ndarray]:
    """A blend and weights of 1 and 2; of a ranking, those of whole groups."""
    blend = blend_of(kind, NUM_ROWS)
    times = np.random.default_rng(1).integers(1, 3, NUM_ROWS)
    return blend, times[blend.group] if kind == "ranking" else times


def copies(kind: str, blend: Blend, times: np.ndarray) -> Blend:
    rows = np.repeat(np.arange(NUM_ROWS), times)
    group = blend.group[rows]
    if kind == "ranking":  # a group that counts twice is two groups
        second = np.concatenate([np.arange(number) for number in times])
        group = group + second * (NUM_ROWS // GROUP_SIZE)
    return Blend(blend.target[rows], blend.predictions[rows], group)


@every_kind
def test_a_row_of_weight_2_is_two_rows(kind: str) -> None:
    """A combiner or calibrator would be fitted to other rows than the scores are of."""
    blend, times = weighted(kind)
    twice, outputs = copies(kind, blend, times), OUTPUTS_OF[kind][:1] * 3
    ways = list(COMBINERS[kind]), list(CALIBRATORS[kind]) or [""]
    is_score = np.array([kind == "binary", False, False])  # by its rank
    inputs, inputs_of_copies = (member_inputs(each.predictions, NAMES, outputs) for each in (blend, twice))
    weight = times.astype(float)
    result = fit_combinations(Rows(kind, kind, blend.target, inputs, is_score, blend.group, weight), *ways)
    expected = fit_combinations(Rows(kind, kind, twice.target, inputs_of_copies, is_score, twice.group), *ways)
    for way in itertools.product(*ways):
        ours, theirs = (combinations[way](inputs_of_copies, twice.group) for combinations in (result, expected))
        # Ridge chooses its penalty by leave-one-out cross-validation, which leaves out only one of two copies of a row
        close = {"ridge": 1e-2, "logistic": 1e-3, "simplex": 1e-4}.get(way[0], 1e-6)
        assert np.abs(ours - theirs).max() < close * np.ptp(theirs), way
    loss, loss_of_copies = task_loss(kind, blend.target, blend.group, weight), task_loss(kind, twice.target, twice.group)
    first = next(iter(result))
    ours, theirs = result[first](inputs, blend.group), expected[first](inputs_of_copies, twice.group)
    assert loss.mean(blend.target, ours) == pytest.approx(loss_of_copies.mean(twice.target, theirs))


@every_kind
def test_rows_of_weight_0_change_nothing(kind: str) -> None:
    """The targets of rows of weight 0 would have an effect on the choice of the combiner, the weights and the scores."""
    blend = blend_of(kind, NUM_ROWS)
    counts = np.arange(NUM_ROWS) % 3 > 0
    target = np.where(counts, blend.target, blend.target.max() - blend.target)
    weight = np.where(counts, 0.25, 0.0)
    kept = Blend(*(column[counts] for column in (blend.target, blend.predictions, blend.group)))
    ours = combine.fit(target, blend.predictions, blend.group, NAMES, kind=kind, weight=weight)
    theirs = combine.fit(kept.target, kept.predictions, kept.group, NAMES, kind=kind, weight=np.full(counts.sum(), 0.25))
    assert ours == theirs
    plain = combine.fit(kept.target, kept.predictions, kept.group, NAMES, kind=kind)
    assert (ours.method, ours.calibrator) == (plain.method, plain.calibrator)
    for name, scores in plain.cross_fitted.items():
        assert ours.cross_fitted[name] == pytest.approx(scores, rel=1e-4)
    cluster = np.arange(NUM_ROWS) // 7 if kind != "ranking" else blend.group
    rows = (target, blend.predictions, blend.group, cluster)
    of_all = diversity.measure(ours, *rows, np.random.default_rng(0), weight)
    of_kept = diversity.measure(ours, *(column[counts] for column in rows), np.random.default_rng(0), weight[counts])
    assert of_all == of_kept
    of_plain = diversity.measure(plain, *(column[counts] for column in rows), np.random.default_rng(0))
    correlation, expected = (each["error_correlation"]["trees"]["net"] for each in (of_all, of_plain))
    assert correlation == pytest.approx(expected, abs=1e-3)


def test_the_baselines_know_the_weights() -> None:
    """The base rate would be that of rows without weights."""
    target, weight = np.array([0.0, 1, 1, 1]), np.array([3.0, 1, 0.5, 0.5])
    assert combine.base_rate_prediction(target, 2, blend_weight=weight) == pytest.approx([0.4, 0.4])
    shares = combine.base_rate_prediction(target, 1, "multiclass", 2, weight)
    assert shares[0] == pytest.approx([4 / 7, 3 / 7])
    blend, score = blend_of("binary"), blend_of("binary").predictions[:, 0]
    rare = np.where(blend.target == 1, 0.1, 1.0)
    result = combine.ranked_prediction(blend.target, score, blend.group, score, blend.group, rare / rare.mean())
    assert result.mean() == pytest.approx(np.average(blend.target, weights=rare), rel=0.3)
