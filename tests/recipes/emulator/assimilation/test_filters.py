"""EKF, 4D-Var and LETKF: exact where theory is, and the errors that the literature gives for Lorenz-96."""

import numpy as np
import pytest
from small_rings import Linear

from ensemble.recipes.emulator import lorenz96
from ensemble.recipes.emulator.assimilation import twin as twins
from ensemble.recipes.emulator.assimilation import variational
from ensemble.recipes.emulator.assimilation.kalman import extended_kalman_filter
from ensemble.recipes.emulator.assimilation.letkf import TAPER_PER_RADIUS, letkf, localisation, rotation, taper, transformed
from ensemble.recipes.emulator.assimilation.twin import OBSERVATION_VARIANCE, Twin

NUM_SEEDS, NUM_POINTS, NUM_TIMES = 2, 4, 6


@pytest.fixture(scope="module")
def linear() -> tuple[Linear, Twin]:
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(NUM_POINTS, NUM_POINTS)) / 2
    truth, observations = draw.normal(size=(2, NUM_TIMES, NUM_SEEDS, NUM_POINTS))
    return Linear(matrix), Twin(truth, observations, draw.normal(size=(NUM_SEEDS, NUM_POINTS)))


@pytest.fixture(scope="module")
def twin() -> Twin:
    return twins.draw(120, range(2), spin_up=60)


def best_first_state(matrix: np.ndarray, observations: np.ndarray, background: np.ndarray, variance: float) -> np.ndarray:
    """The analysis of one experiment: weighted least squares over all observations at once, without recursion or adjoint."""
    powers = [np.linalg.matrix_power(matrix, time) for time in range(1, len(observations) + 1)]
    rows = np.concatenate([np.eye(len(matrix)) / variance**0.5, *powers])
    values = np.concatenate([background / variance**0.5, *observations])
    return np.linalg.lstsq(rows, values, rcond=None)[0]


def test_the_extended_kalman_filter_is_exact_for_a_linear_model(linear: tuple[Linear, Twin]) -> None:
    """With a wrong gain or covariance, the mean would differ from that of least squares over all observations."""
    model, twin = linear
    analyses = extended_kalman_filter(model, twin, inflation=1.0)
    for seed in range(NUM_SEEDS):
        first = best_first_state(model.matrix, twin.observations[:, seed], twin.start[seed], 1.0)
        last = np.linalg.matrix_power(model.matrix, NUM_TIMES) @ first
        np.testing.assert_allclose(analyses[-1, seed], last, rtol=1e-10, atol=1e-12)


def test_inflation_is_per_unit_of_time(linear: tuple[Linear, Twin]) -> None:
    """`inflation=10` would not mean the same as in DAPPER: 10 times the variance over 20 steps without observations."""
    twin = linear[1]
    inflation = 2.0**20
    result = extended_kalman_filter(Linear(np.eye(NUM_POINTS)), Twin(twin.truth, twin.observations, twin.start), inflation)
    gain = 2 / 3  # forecast variance 2 after one step of variance 1, observation variance 1
    expected = twin.start + gain * (twin.observations[0] - twin.start)
    np.testing.assert_allclose(result[0], expected, rtol=1e-12)


@pytest.mark.parametrize("num_outer", [1, 2])
def test_4d_var_is_exact_for_a_linear_model(linear: tuple[Linear, Twin], num_outer: int) -> None:
    """The increment would not be the minimum, or a second linearisation would move away from it."""
    model, twin = linear
    analyses = variational.four_d_var(model, twin, NUM_TIMES, 0.3, num_outer)
    for seed in range(NUM_SEEDS):
        state = best_first_state(model.matrix, twin.observations[:, seed], twin.start[seed], 0.3)
        for analysis in analyses[:, seed]:
            state = model.matrix @ state
            np.testing.assert_allclose(analysis, state, rtol=1e-9, atol=1e-12)


def test_windows_follow_each_other(linear: tuple[Linear, Twin]) -> None:
    """The background of a window would not be the forecast from the one before; a last short window would be left out."""
    model, twin = linear
    analyses = variational.four_d_var(model, twin, 4, 0.3, 1)
    later = Twin(twin.truth[4:], twin.observations[4:], analyses[3])
    np.testing.assert_allclose(analyses[4:], variational.four_d_var(model, later, 4, 0.3, 1), rtol=1e-12)


def test_the_gradient_of_4d_var_is_that_of_the_cost(twin: Twin) -> None:
    """The adjoint sweep would leave out a misfit or the background: every direction is tried by finite differences."""
    model, observed, background = lorenz96, twin.observations[:5], twin.start
    start = background + 0.3

    def cost(first: np.ndarray) -> np.ndarray:
        states = variational.trajectory(model, first, 5)
        from_background = ((states[0] - background) ** 2).sum(axis=-1) / 0.1
        return (from_background + ((observed - states[1:]) ** 2).sum(axis=(0, -1)) / OBSERVATION_VARIANCE) / 2

    states = variational.trajectory(model, start, 5)
    result = variational.gradient(model, states, observed, background, 0.1)
    for point in (0, 7, 39):
        shift = np.zeros_like(start)
        shift[:, point] = 1e-5
        difference = (cost(start + shift) - cost(start - shift)) / 2e-5
        np.testing.assert_allclose(result[:, point], difference, rtol=1e-6, atol=1e-6)


def test_without_localisation_the_letkf_is_the_kalman_filter() -> None:
    """The transform would not give the mean and the covariance of the analysis that belong to the ensemble's covariance."""
    draw = np.random.default_rng(1)
    perturbations = draw.normal(size=(1, 30, NUM_POINTS))
    perturbations -= perturbations.mean(axis=1, keepdims=True)
    mean, innovation = draw.normal(size=(2, 1, NUM_POINTS))
    covariance = np.cov(perturbations[0].T)
    gain = covariance @ np.linalg.inv(covariance + np.eye(NUM_POINTS))
    new_mean, result = transformed(mean, perturbations, innovation, np.ones((NUM_POINTS, NUM_POINTS)))
    np.testing.assert_allclose(new_mean[0], mean[0] + gain @ innovation[0], rtol=1e-10)
    np.testing.assert_allclose(np.cov(result[0].T), (np.eye(NUM_POINTS) - gain) @ covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.mean(axis=1), 0, atol=1e-12)


def test_the_taper_is_that_of_gaspari_and_cohn() -> None:
    """The radius would not mean the same as in DAPPER, with which results are compared."""
    np.testing.assert_allclose(taper(np.array([0.0, 1.0, 2.0, 3.0])), [1, 5 / 24, 0, 0], atol=1e-12)
    distances = np.array([0.02, 0.05])
    np.testing.assert_allclose(1 - taper(distances / TAPER_PER_RADIUS), distances**2 / 2, rtol=0.02)
    weights = localisation(40, 4.0)
    assert np.all(np.diag(weights) == 1)
    np.testing.assert_array_equal(weights, weights.T)
    assert weights[0, 39] == weights[0, 1]  # over the seam of the ring
    assert weights[0, 20] == 0


def test_a_rotation_keeps_mean_and_covariance() -> None:
    """The rotation would shift the analysis or change its spread."""
    result = rotation(7, np.random.default_rng(0))
    np.testing.assert_allclose(result @ result.T, np.eye(7), atol=1e-12)
    np.testing.assert_allclose(result @ np.ones(7), np.ones(7), atol=1e-12)
    assert np.abs(result - np.eye(7)).max() > 0.1


def test_errors_of_the_true_model(twin: Twin) -> None:
    """A filter would run without reducing errors: published errors are .24 (EKF), .22 (LETKF); observations alone have 1."""
    analyses = {
        "ekf": extended_kalman_filter(lorenz96, twin, 10.0),
        "4dvar": variational.four_d_var(lorenz96, twin, 8, 0.1, 2),
        "letkf": letkf(lorenz96, twin, 7, 1.04, 4.0, range(2)),
    }
    for name, result in analyses.items():
        assert 0.15 < twin.scored(result).mean() < 0.27, name


class Distorted:
    """The true model, with derivatives that are wrong by a tenth."""

    step, adjoint = staticmethod(lorenz96.step), staticmethod(lorenz96.adjoint)

    @staticmethod
    def jacobian(states: np.ndarray) -> np.ndarray:
        return lorenz96.jacobian(states) + 0.1 * np.roll(np.eye(states.shape[-1]), 1, axis=1)


def test_a_wrong_jacobian_is_noticed(twin: Twin) -> None:
    """The filter would ignore derivatives: it would have the same errors with wrong ones."""
    right, wrong = (twin.scored(extended_kalman_filter(model, twin, 10.0)).mean() for model in (lorenz96, Distorted()))
    assert wrong > 1.2 * right


def test_experiments_are_independent_and_repeatable(twin: Twin) -> None:
    """A seed's error would depend on the seeds beside it, or noise would enter the truth."""
    alone = twins.draw(120, [1], spin_up=60)
    np.testing.assert_array_equal(alone.observations[:, 0], twin.observations[:, 1])
    result = (extended_kalman_filter(lorenz96, one, 10.0) for one in (alone, twin))
    np.testing.assert_allclose(next(result)[:, 0], next(result)[:, 1], rtol=1e-6)
    np.testing.assert_array_equal(twin.truth[1:], lorenz96.step(twin.truth[:-1]))
    assert (twin.observations - twin.truth).std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("method", ["ekf", "4dvar", "letkf"])
def test_a_diverging_experiment_does_not_change_the_others(twin: Twin, method: str) -> None:
    """One experiment in which an emulator diverges would make the errors of all experiments infinite."""

    def analyses(start: np.ndarray) -> np.ndarray:
        short = Twin(twin.truth[:12], twin.observations[:12], start)
        if method == "ekf":
            return extended_kalman_filter(lorenz96, short, 10.0)
        if method == "4dvar":
            return variational.four_d_var(lorenz96, short, 4, 0.1, 2)
        return letkf(lorenz96, short, 7, 1.04, 4.0, range(2))

    with np.errstate(over="ignore", invalid="ignore"):
        result = analyses(twin.start * [[1.0], [1e160]])
    np.testing.assert_array_equal(result[:, 0], analyses(twin.start)[:, 0])
    assert not np.isfinite(result[-1, 1]).any()
