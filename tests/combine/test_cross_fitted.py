"""Forecasts of the rows on which an ensemble is fitted: each by an ensemble that was fitted on other rows."""

from typing import Any

import numpy as np
import pytest
from blends import NAMES, Blend, blend_of

from ensemble.combine import selection
from ensemble.combine.fitting import OUTPUTS_OF, Ensemble, fit_cross_fitted

NUM_ROWS = 360
FIXED = {
    "binary": ("simplex", "platt"),
    "multiclass": ("equal", "temperature"),
    "regression": ("simplex", "auto"),
    "ranking": ("equal", "auto"),
}


def fitted(kind: str, blend: Blend, is_forward: bool, **settings: Any) -> tuple[Ensemble, np.ndarray]:
    combiner, calibration = FIXED[kind]
    settings = {"combiner": combiner, "calibration": calibration, "weight": None, **settings}
    return fit_cross_fitted(
        blend.target, blend.predictions, blend.group, NAMES, kind=kind, outputs=OUTPUTS_OF[kind][:1] * 3,
        is_forward=is_forward, **settings,
    )  # fmt: skip


def changed(kind: str, blend: Blend, rows: np.ndarray) -> Blend:
    """Other targets in some rows."""
    target = blend.target.copy()
    target[rows] = {"binary": 1 - target[rows], "multiclass": (target[rows] + 1) % 4}.get(kind, target[rows][::-1] + 1)
    return blend._replace(target=target)


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("is_forward", [False, True])
def test_a_blocks_targets_do_not_reach_its_forecasts(kind: str, is_forward: bool) -> None:
    """The reported score would be that of rows on which weights and calibration were fitted."""
    blend = blend_of(kind, NUM_ROWS)
    _, before = fitted(kind, blend, is_forward)
    folds = selection.folds_of(blend.group, 5, is_forward)
    assert len(folds) == 5
    reached = []
    for number in (1, 4):
        held = folds[number][1]
        _, after = fitted(kind, changed(kind, blend, held), is_forward)
        # Sums of a ranked group are over rows in the order of their targets
        assert after[held] == pytest.approx(before[held], rel=1e-9 if kind == "ranking" else 0, abs=0)
        later = np.isin(np.arange(NUM_ROWS), np.concatenate([np.flatnonzero(of) for _, of in folds[number + 1 :]] or [[]]))
        if is_forward:
            assert after[~later] == pytest.approx(before[~later], rel=1e-9 if kind == "ranking" else 0, abs=0, nan_ok=True)
        reached.append((after[~held] != before[~held]).any())
    assert reached[0] or kind == "ranking", "the test could not fail"  # equal weights of a ranking learn nothing


@pytest.mark.parametrize("is_forward", [False, True])
def test_which_rows_have_a_forecast(is_forward: bool) -> None:
    """Forward in time, the first block would be predicted after a fit on later rows; otherwise, rows would be missing."""
    blend = blend_of("binary", NUM_ROWS)
    order = np.random.default_rng(3).permutation(NUM_ROWS)
    _, sorted_ = fitted("binary", blend, is_forward)
    ensemble, result = fitted("binary", Blend(*(part[order] for part in blend)), is_forward)
    assert np.array_equal(result, sorted_[order], equal_nan=True)
    assert ((result >= 0) & (result <= 1) | np.isnan(result)).all()
    first = blend.group[order] <= np.array_split(np.unique(blend.group), 6)[0].max()
    assert np.array_equal(np.isnan(result), first if is_forward else np.zeros(NUM_ROWS, bool))
    whole = ensemble.predict(blend.predictions[order], NAMES)
    # Near the forecast of an ensemble that is fitted on all rows, but not the same
    assert 0 < np.nanmax(np.abs(whole - result)) < 0.3


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_rows_without_weight_change_no_forecast(kind: str) -> None:
    """Rows of weight 0 would change the weights of members, or a row would have the forecast of another one."""
    blend = blend_of(kind, NUM_ROWS)
    weight = np.where(np.arange(NUM_ROWS) % 3 == 0, 0.0, 2.0)
    _, result = fitted(kind, blend, False, weight=weight)
    counted = weight > 0
    assert np.isnan(result[~counted]).all()
    _, expected = fitted(kind, Blend(*(part[counted] for part in blend)), False)
    assert result[counted] == pytest.approx(expected, rel=1e-9)
    heavy = np.where(np.arange(NUM_ROWS) % 3 == 0, 5.0, 1.0)
    assert not np.allclose(fitted(kind, blend, False, weight=heavy)[1], fitted(kind, blend, False)[1])


def test_the_combiner_for_a_block_is_chosen_by_the_blocks_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block would be predicted by the combiner that is best on this block."""
    blend = blend_of("binary", NUM_ROWS)
    folds = selection.folds_of(blend.group, 5, True)
    choose = selection.choose

    def fickle(losses: dict[str, np.ndarray], default: str) -> str:
        """Another combiner for each number of blocks."""
        return list(losses)[len(losses[default]) % len(losses)] if losses else choose(losses, default)

    monkeypatch.setattr(selection, "choose", fickle)
    auto = {"combiner": "auto", "calibration": "platt"}
    _, before = fitted("binary", blend, True, **auto)
    _, after = fitted("binary", changed("binary", blend, folds[-1][1]), True, **auto)
    assert np.array_equal(before, after, equal_nan=True)
    first = fitted("binary", blend, True, combiner="equal", calibration="platt")[1]
    assert not np.array_equal(before, first, equal_nan=True)


def test_losses_choose_per_block() -> None:
    """A block would be predicted by the combiner that is best on this block."""
    losses = {"a": np.array([1.0, 1.0, 1.0, 1.0]), "b": np.array([0.5, 0.51, 0.49, 9.0])}
    assert selection.chosen_by_fold(losses, "a", True) == ["a", "a", "b", "b"]
    assert selection.chosen_by_fold(losses, "a", False) == ["a", "a", "a", "b"]


@pytest.mark.parametrize("combiner", ["simplex", "ridge"])
def test_only_a_mean_error_of_all_groups_is_corrected(combiner: str) -> None:
    """The score would be worse than that of each member, since out-of-fold errors of groups and of all others are opposite;
    or members that are too high in all groups would stay so."""
    generator, group = np.random.default_rng(0), np.repeat(np.arange(10), 30)
    known = generator.normal(100, 1, (300, 2))
    rest = generator.normal(0, 2, 10)[group] + generator.normal(size=300)
    mean_of_others = (rest.sum() - np.bincount(group, rest)[group]) / 270
    columns = np.stack([known.sum(1), 2 * known[:, 0]], axis=1) + mean_of_others[:, None]
    target = known.sum(1) + rest
    for bias in (0.0, 50.0):
        options: Any = {"kind": "regression", "combiner": combiner, "is_forward": False}
        _, result = fit_cross_fitted(target, columns + bias, group, ["sum", "twice"], **options)
        assert np.mean(result - target) == pytest.approx(0, abs=0.5)
        if not bias:
            assert np.std(result - target) < 1.02 * np.std(columns[:, 0] - target)


def test_the_mean_error_of_one_group_is_not_corrected() -> None:
    """The rows of the second time would be shifted by the error of the first, although times have errors of their own."""
    generator, group = np.random.default_rng(0), np.repeat(np.arange(5), 60)
    error = generator.normal(0, 3, 5)[group] + generator.normal(size=300)
    columns = generator.normal(100, 10, (300, 1)) + np.zeros(2)
    options: Any = {"kind": "regression", "combiner": "equal", "is_forward": True}
    _, result = fit_cross_fitted(columns[:, 0] + error, columns, group, ["one", "same"], **options)
    second = group == 1
    assert np.abs(result[second] - columns[second, 0]).max() < 1e-9


@pytest.mark.parametrize("loss", ["regression", "absolute_error"])
def test_weights_that_cancel_keep_the_level_of_the_target(loss: str) -> None:
    """Beside the negative of a member, its level would be divided by the rounding error of a sum of weights that is 0, so
    all predictions would be off by more than the level; and new rows could not be predicted."""
    generator, group = np.random.default_rng(0), np.arange(400) % 6
    truth = generator.normal(64, 1, 400)
    columns = np.round(truth + 0.5 * generator.normal(size=400), 3)[:, None] * [1.0, -1.0]
    names, options = ["plus", "minus"], {"kind": "regression", "loss": loss, "combiner": "ridge", "is_forward": True}
    ensemble, result = fit_cross_fitted(truth, columns, group, names, **options)
    assert sum(ensemble.weights) == pytest.approx(0, abs=1e-9)
    for predicted in (ensemble.predict(columns, names), ensemble.members_with_weight().predict(columns, names), result):
        known = np.isfinite(predicted)
        assert np.mean(predicted[known]) == pytest.approx(64, abs=0.5)
        assert np.std((predicted - truth)[known]) < 0.6
