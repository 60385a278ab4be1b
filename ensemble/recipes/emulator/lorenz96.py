"""The Lorenz-96 model with its tangent-linear and adjoint models, in NumPy float64.

    dx_i/dt = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + F,    i = 1 … N on a ring, N = 40, F = 8

One step, written M(x), is a Runge–Kutta step of fourth order over STEP = 0.05 (6 hours in the usual scaling).
Source: E. N. Lorenz, Predictability: a problem partly solved, ECMWF Seminar on Predictability, 1996.

The last axis of every array is the ring; the axes before it are batch axes and are broadcast.
"""

from collections.abc import Sequence

import numpy as np

NAME = "lorenz96"
"""The value of `system` in manifests of data of this model."""
NUM_POINTS = 40
SHAPE = (NUM_POINTS,)
FORCING = 8.0
STEP = 0.05
IMAGINARY_STEP = 1e-30
"""The step h of `tangent`."""
NUM_SPIN_UP_STEPS = 1000
SPIN_UP_SPREAD = 0.01
"""Standard deviation of the perturbation of the constant state F from which a trajectory starts."""


def tendency(states: np.ndarray) -> np.ndarray:
    """dx/dt, (..., N)."""
    before_2, before_1, after_1 = _neighbours(states)
    return (after_1 - before_2) * before_1 - states + FORCING


def step(states: np.ndarray) -> np.ndarray:
    """States one time step later, (B, N)."""
    slope_1, slope_2, slope_3 = _slopes(states)
    slope_4 = tendency(states + STEP * slope_3)
    return states + STEP / 6 * (slope_1 + 2 * (slope_2 + slope_3) + slope_4)


def tangent(states: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """M'(x) v, the tangent-linear model of one step, for states x and directions v, (B, N) each.

    It is exact to rounding, since it is no difference of two values of M: the imaginary part of M(x + ihv) is
    h M'(x) v + O(h³) (Squire and Trapp 1998, https://doi.org/10.1137/S003614459631241X).
    """
    return step(states + 1j * IMAGINARY_STEP * directions).imag / IMAGINARY_STEP


def adjoint(states: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """M'(x)ᵀ w, the adjoint model of one step; the arguments are those of `tangent`."""
    slope_1, slope_2, slope_3 = _slopes(states)
    change_4 = _adjoint_tendency(states + STEP * slope_3, STEP / 6 * directions)
    change_3 = _adjoint_tendency(states + STEP / 2 * slope_2, STEP / 3 * directions + STEP * change_4)
    change_2 = _adjoint_tendency(states + STEP / 2 * slope_1, STEP / 3 * directions + STEP / 2 * change_3)
    change_1 = _adjoint_tendency(states, STEP / 6 * directions + STEP / 2 * change_2)
    return directions + change_1 + change_2 + change_3 + change_4


def jacobian(states: np.ndarray) -> np.ndarray:
    """M'(x), (B, N, N): row i, column j is the derivative of the new value i with respect to the old value j."""
    columns = tangent(states[..., None, :], np.eye(states.shape[-1]))
    return np.swapaxes(columns, -1, -2)


def diagonal(jacobians: np.ndarray, offset: int) -> np.ndarray:
    """The derivative of each output with respect to the input `offset` points farther on the ring, (B, N).

    jacobians : (B, N, N)
    """
    point = np.arange(jacobians.shape[1])
    return jacobians[:, point, (point + offset) % len(point)]


def trajectory(num_states: int, seed: int | Sequence[int], every: int = 1, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """States on the attractor, (num_states, *shape), `every` steps apart, after a spin-up of NUM_SPIN_UP_STEPS steps.

    shape : the shape of a state, (..., N); the axes before the last are several trajectories
    """
    state = FORCING + SPIN_UP_SPREAD * np.random.default_rng(seed).normal(size=shape)
    for _ in range(NUM_SPIN_UP_STEPS):
        state = step(state)
    states = np.empty((num_states, *shape))
    for number in range(num_states):
        states[number] = state
        for _ in range(every):
            state = step(state)
    return states


def _neighbours(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views of x_{i-2}, x_{i-1} and x_{i+1} in one padded copy."""
    padded = np.concatenate((states[..., -2:], states, states[..., :1]), axis=-1)
    num_points = states.shape[-1]
    return padded[..., :num_points], padded[..., 1 : num_points + 1], padded[..., 3:]


def _slopes(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first three of the four tendencies of a Runge–Kutta step."""
    slope_1 = tendency(states)
    slope_2 = tendency(states + STEP / 2 * slope_1)
    return slope_1, slope_2, tendency(states + STEP / 2 * slope_2)


def _adjoint_tendency(states: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """The transpose of the derivative of `tendency`, applied to `directions`."""
    before_2, before_1, after_1 = _neighbours(states)
    by_after_1 = directions * before_1
    by_before_1 = directions * (after_1 - before_2)
    return (
        np.roll(by_after_1, 1, axis=-1) - np.roll(by_after_1, -2, axis=-1) + np.roll(by_before_1, -1, axis=-1) - directions
    )
