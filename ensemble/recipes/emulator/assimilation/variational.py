"""Strong-constraint 4D-Var: J is minimised by the Gauss–Newton method.

    J(x₀) = ½ (x₀ - x_b)ᵀ B⁻¹ (x₀ - x_b) + ½ Σ_k (y_k - x_k)ᵀ R⁻¹ (y_k - x_k),    x_k = M(x_{k-1}),  B = b I, R = r I

The gradient comes from the adjoint model. With the few points of Lorenz-96, the Hessian of the linearised problem is
computed from the Jacobians, and its linear system is solved directly; large models need an inner iteration. Source:
P. Courtier, J.-N. Thépaut and A. Hollingsworth, Quarterly Journal of the Royal Meteorological Society 120, 1994.
"""

import numpy as np

from ensemble.recipes.emulator.assimilation.models import Model
from ensemble.recipes.emulator.assimilation.twin import OBSERVATION_VARIANCE, Twin


def four_d_var(model: Model, twin: Twin, window: int, background_variance: float, num_outer: int) -> np.ndarray:
    """The trajectory in each window with the best fit to its observations and the background.

    The result has shape (T, S, N) for T cycles, S experiments and N points. Windows do not overlap. The background of a
    window is the forecast from the analysis of the previous one.

    window : number of cycles in a window
    background_variance : b
    num_outer : how often the model is linearised in each window
    """
    background = twin.start
    analyses = np.empty_like(twin.observations)
    for begin in range(0, len(twin.observations), window):
        observed = twin.observations[begin : begin + window]
        start = background
        for _ in range(num_outer):
            states = trajectory(model, start, len(observed))
            start = start + increment(model, states, observed, background, background_variance)
        states = trajectory(model, start, len(observed))
        analyses[begin : begin + window] = states[1:]
        background = states[-1]
    return analyses


def trajectory(model: Model, start: np.ndarray, num_steps: int) -> np.ndarray:
    """The state `start` and those of the next steps, (num_steps + 1, S, N)."""
    states = [start]
    for _ in range(num_steps):
        states.append(model.step(states[-1]))
    return np.stack(states)


def gradient(
    model: Model, states: np.ndarray, observed: np.ndarray, background: np.ndarray, background_variance: float
) -> np.ndarray:
    """The gradient of J with respect to the first state, (S, N), by the adjoint model.

    states : a trajectory, (K + 1, S, N)
    observed : observations of all states but the first, (K, S, N)
    """
    result = np.zeros_like(states[0])
    for state, misfit in zip(states[-2::-1], ((states[1:] - observed) / OBSERVATION_VARIANCE)[::-1], strict=True):
        result = model.adjoint(state, result + misfit)
    return (states[0] - background) / background_variance + result


def increment(
    model: Model, states: np.ndarray, observed: np.ndarray, background: np.ndarray, background_variance: float
) -> np.ndarray:
    """The change of the first state, (S, N), that minimises J for the model linearised around `states`."""
    num_steps, num_seeds, num_points = observed.shape
    jacobians = model.jacobian(states[:-1].reshape(-1, num_points)).reshape(num_steps, num_seeds, num_points, num_points)
    unit = np.eye(num_points)
    hessian, product = unit / background_variance, unit
    for jacobian in jacobians:
        product = jacobian @ product
        hessian = hessian + product.swapaxes(-1, -2) @ product / OBSERVATION_VARIANCE
    slope = gradient(model, states, observed, background, background_variance)
    return -np.linalg.solve(hessian, slope[..., None])[..., 0]
