"""Lorenz-96: the model, its tangent-linear and adjoint models."""

import numpy as np
import pytest

from ensemble.recipes.emulator import lorenz96


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    return lorenz96.trajectory(4, seed=1, every=20)


def test_the_step_is_of_fourth_order(states: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong stage would make it a method of lower order: the error of half the step would not fall 16-fold."""

    def after(step_length: float, num_steps: int) -> np.ndarray:
        monkeypatch.setattr(lorenz96, "STEP", step_length)
        result = states
        for _ in range(num_steps):
            result = lorenz96.step(result)
        return result

    exact = after(0.05 / 64, 64)
    errors = [np.abs(after(0.05 / parts, parts) - exact).max() for parts in (1, 2, 4)]
    assert 12 < errors[0] / errors[1] < 21
    assert 12 < errors[1] / errors[2] < 21


def test_the_tendency_follows_the_equation(states: np.ndarray) -> None:
    """With a neighbour on the wrong side, the equations would be those of another model."""
    x = states[0]
    expected = [(x[(i + 1) % 40] - x[i - 2]) * x[i - 1] - x[i] + 8 for i in range(40)]
    np.testing.assert_allclose(lorenz96.tendency(x), expected, rtol=1e-13)


def test_the_climate_is_that_of_lorenz96() -> None:
    """States that are not on the attractor would have another mean and spread (2.34 and 3.64 in the literature)."""
    states = lorenz96.trajectory(2000, seed=0, every=4)
    assert states.mean() == pytest.approx(2.34, abs=0.1)
    assert states.std() == pytest.approx(3.64, abs=0.1)


def test_the_tangent_is_the_derivative(states: np.ndarray) -> None:
    """A wrong tangent would fit no finite difference."""
    directions = np.random.default_rng(0).normal(size=states.shape)
    difference = (lorenz96.step(states + 1e-5 * directions) - lorenz96.step(states - 1e-5 * directions)) / 2e-5
    np.testing.assert_allclose(lorenz96.tangent(states, directions), difference, rtol=0, atol=1e-8)


def test_the_adjoint_is_the_transpose(states: np.ndarray) -> None:
    """Gradients of a cost function would be wrong."""
    v, w = np.random.default_rng(0).normal(size=(2, *states.shape))
    forward, backward = (lorenz96.tangent(states, v) * w).sum(axis=1), (v * lorenz96.adjoint(states, w)).sum(axis=1)
    np.testing.assert_allclose(forward, backward, rtol=1e-12)


def test_the_jacobian_has_outputs_as_rows(states: np.ndarray) -> None:
    """The Jacobian would be transposed, which tests of JᵀJ do not find."""
    v = np.random.default_rng(0).normal(size=states.shape)
    product = np.einsum("boi,bi->bo", lorenz96.jacobian(states), v)
    np.testing.assert_allclose(product, lorenz96.tangent(states, v), rtol=1e-12, atol=1e-13)


def test_a_trajectory_is_made_of_steps() -> None:
    """Pairs of states would not be x and M(x); another seed would give the same states."""
    states = lorenz96.trajectory(5, seed=3, every=2)
    np.testing.assert_array_equal(states[1:], lorenz96.step(lorenz96.step(states[:-1])))
    assert not np.allclose(states, lorenz96.trajectory(5, seed=4, every=2))
