"""Properties of an ensemble that hold for any members and targets, tested on random ones."""

from typing import Any

import numpy as np
import pytest
from blends import NAMES, Blend, market
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.combine import fit, selection
from ensemble.combine.combination import Rows, fit_combinations
from ensemble.combine.weights import COMBINERS, SAFE

blends = st.builds(market, num_rows=st.integers(120, 400), seed=st.integers(0, 10_000))
few = settings(max_examples=8)


@few
@given(blends, st.randoms(use_true_random=False))
def test_rows_and_members_in_any_order(blend: Blend, random: Any) -> None:
    """How rows are sorted, or files are named on the command line, would change a weight."""
    target, predictions, group = blend
    rows, members = list(range(len(target))), [0, 1, 2]
    random.shuffle(rows)
    random.shuffle(members)
    one = fit(target, predictions, group, NAMES)
    other = fit(target[rows], predictions[rows][:, members], group[rows], [NAMES[member] for member in members])
    assert one.method == other.method
    assert dict(zip(one.member_names, one.weights, strict=True)) == dict(zip(other.member_names, other.weights, strict=True))
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions, NAMES), rtol=1e-9)


@few
@given(blends, st.sampled_from(sorted(COMBINERS["binary"])), st.sampled_from(["platt", "temperature"]), st.integers(0, 2))
def test_equal_and_constant_members_change_nothing(blend: Blend, combiner: str, calibration: str, member: int) -> None:
    """A member that is given twice would count twice, and a constant one would change the weights of others."""
    target, predictions, group = blend
    chosen = {"combiner": combiner, "calibration": calibration}
    alone = fit(target, predictions, group, NAMES, **chosen).predict(predictions, NAMES)
    more = np.column_stack([predictions, predictions[:, member], np.full(len(target), 0.3)])
    names = [*NAMES, "twin", "constant"]
    ensemble = fit(target, more, group, names, **chosen)
    np.testing.assert_allclose(ensemble.predict(more, names), alone, rtol=1e-6)
    assert ensemble.weights[-1] == 0
    assert ensemble.weights[3] == ensemble.weights[member]


@few
@given(blends)
def test_weights_of_a_fit_are_shares(blend: Blend) -> None:
    """Weights that are negative or do not sum to 1 would be read as shares on the page."""
    target, predictions, _ = blend
    inputs = np.log(predictions / (1 - predictions))
    names = [*SAFE, "nnls"]
    rows = Rows("binary", "binary", target, inputs, np.zeros(3, bool), np.zeros(len(target)))
    for (name, _), result in fit_combinations(rows, names, ["platt"]).items():
        assert min(result.weights) >= 0
        assert sum(result.weights) == pytest.approx(1) or name == "nnls"


@few
@given(blends, st.integers(1, 3))
def test_a_week_is_predicted_from_earlier_ones_only(blend: Blend, last: int) -> None:
    """A method would be fitted to the weeks on which it is scored, or to later ones."""
    target, predictions, group = blend
    inputs = np.log(predictions / (1 - predictions))
    later = group > last

    def forecasts(target: np.ndarray, inputs: np.ndarray) -> dict[str, np.ndarray]:
        rows, folds = Rows("binary", "binary", target, inputs, np.zeros(3, bool), group), selection.folds_of(group, 4, True)
        result = selection.cross_fitted_predictions(rows, list(COMBINERS["binary"]), ["platt"], folds)
        return {name: forecast for (name, _), forecast in result.items()}

    before = forecasts(target, inputs)
    after = forecasts(np.where(later, 1 - target, target), np.where(later[:, None], -inputs, inputs))
    for name, forecast in before.items():
        np.testing.assert_array_equal(forecast[~later], after[name][~later], err_msg=name)
        assert np.isnan(forecast[group == 0]).all()
