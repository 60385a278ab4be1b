"""What the combiner refuses, in one sentence that names what is wrong."""

from typing import Any

import numpy as np
import pytest
from blends import NAMES, market

from ensemble.combine import Ensemble, fit
from ensemble.errors import UserError


def test_damaged_ensemble_is_refused() -> None:
    """An ensemble file of another version would end in a KeyError, or silently in defaults."""
    target, predictions, group = market()
    content = fit(target, predictions, group, NAMES).to_dict()
    del content["calibrator"]
    with pytest.raises(UserError, match="differs in: calibrator, extra"):
        Ensemble.from_dict({**content, "extra": 1})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": np.zeros(3000)}, "none of the 3000 rows that weights are fitted on is positive"),
        ({"target": np.ones(3000)}, "none of the 3000 rows that weights are fitted on is negative"),
        ({"target": np.full(3000, 3.5)}, "targets of 0 and 1, but one is 3.5"),
        ({"group": np.full(3000, 140)}, "all rows that weights are fitted on are of one group \\(140\\)"),
    ],
)
def test_unusable_blend_is_refused(change: dict[str, np.ndarray], sentence: str) -> None:
    """A blend without information would give meaningless weights."""
    target, predictions, group = market()
    with pytest.raises(UserError, match=sentence):
        fit(**{"target": target, "predictions": predictions, "group": group, "member_names": NAMES, **change})


@pytest.mark.parametrize("value", [np.nan, 1.5, -2.0])
def test_no_probability_is_refused(value: float) -> None:
    """NaN, or a member that writes logits, would spread into every forecast."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    predictions[17, 1] = value
    with pytest.raises(UserError, match=f"member 'net' predicts {value:g} in row 17"):
        ensemble.predict(predictions, NAMES)
    with pytest.raises(UserError, match=f"member 'net' predicts {value:g} in row 17"):
        fit(target, predictions, group, NAMES)


def test_foreign_members_are_named() -> None:
    """A member that the ensemble does not know would be taken for another one."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    with pytest.raises(UserError, match="member 'new' was not part of the ensemble"):
        ensemble.predict(np.column_stack([predictions, predictions[:, 0]]), [*NAMES, "new"])
    with pytest.raises(UserError, match="without trees, net, text no member"):
        ensemble.predict(np.empty((5, 0)), [])


def test_negative_weights_need_every_member() -> None:
    """The weights of the other members would be multiplied by any number, and the predictions would be worthless."""
    generator = np.random.default_rng(0)
    target, shared = generator.normal(size=(2, 3000))
    predictions = np.stack([target + shared, shared + 0.3 * generator.normal(size=3000), np.zeros(3000)], axis=1)
    ensemble = fit(target, predictions, np.arange(3000) % 10, NAMES, kind="regression", combiner="ridge", is_forward=False)
    assert ensemble.weights[1] < 0 == ensemble.weights[2]
    for position in (0, 1):
        others = [0, 1, 2]
        others.remove(position)
        sentence = f"with negative weights no member can be left out: put {NAMES[position]} back, or fit again without it"
        with pytest.raises(UserError, match=sentence):
            ensemble.predict(predictions[:, others], [NAMES[other] for other in others])
    without = ensemble.predict(predictions[:, :2], NAMES[:2])  # the third has no weight
    np.testing.assert_array_equal(without, ensemble.predict(predictions, NAMES))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outputs": ["value", "value", "probability"]}, "member 'trees' has output value, but a binary task needs prob"),
        (
            {"kind": "regression", "outputs": ["value", "value", "probability"]},
            "member 'text' has output probability, but a regr",
        ),
        ({"outputs": ["odds"] * 3}, "member 'trees' has output odds, but a binary task needs probability or score: leave"),
        ({"combiner": "median"}, "there is no combiner 'median' for binary targets: choose one of auto, equal,"),
        ({"combiner": "simplex,median"}, "there is no combiner 'median' for binary targets: choose one of auto, equal,"),
        (
            {"combiner": "simplex,auto"},
            "combiner=simplex,auto combines auto, which compares all, with other names: write auto alone",
        ),
        ({"calibration": "auto,platt"}, "calibration=auto,platt combines auto, .*: write auto alone, or leave it out"),
        ({"combiner": "logistic", "kind": "regression"}, "there is no combiner 'logistic' for regression targets"),
        (
            {"calibration": "platt,beta"},
            "there is no calibration 'beta': choose one of auto, none, platt, temperature, isotonic",
        ),
        ({"calibration": "beta"}, "there is no calibration 'beta': choose one of auto, none, platt, temperature, isotonic"),
        ({"calibration": "platt", "kind": "regression"}, "is for probabilities, and these members give values"),
        (
            {"target": np.full(3000, np.nan), "kind": "regression"},
            "the target of row 0 .* is not a number",
        ),
        (
            {"predictions": np.full((3000, 3), np.inf), "outputs": ["score"] * 3},
            "predicts inf in row 0, which is not a number",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(change: dict[str, Any], sentence: str) -> None:
    """A wrong word would be a traceback, or silently something else."""
    target, predictions, group = market()
    arguments = {"target": target, "predictions": predictions, "group": group, "member_names": NAMES}
    with pytest.raises(UserError, match=sentence):
        fit(**{**arguments, **change})
