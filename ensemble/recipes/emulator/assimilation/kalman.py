"""The extended Kalman filter. Source: A. H. Jazwinski, Stochastic Processes and Filtering Theory, 1970, chapter 8."""

import numpy as np

from ensemble.recipes.emulator.assimilation.models import Model
from ensemble.recipes.emulator.assimilation.twin import OBSERVATION_VARIANCE, Twin
from ensemble.recipes.emulator.lorenz96 import STEP


def extended_kalman_filter(model: Model, twin: Twin, inflation: float) -> np.ndarray:
    """The analysed states of T cycles, S experiments and N points, (T, S, N).

    inflation : factor of the forecast covariance in each unit of time (20 steps), as `infl` in the package DAPPER
    """
    state = twin.start
    noise_covariance = OBSERVATION_VARIANCE * np.eye(state.shape[-1])
    covariance = np.broadcast_to(noise_covariance, (*state.shape, state.shape[-1]))
    analyses = np.empty_like(twin.observations)
    for time, observed in enumerate(twin.observations):
        jacobian = model.jacobian(state)
        state = model.step(state)
        covariance = inflation**STEP * jacobian @ covariance @ jacobian.swapaxes(-1, -2)
        # The covariances P (forecast) and R (noise) are symmetric: the transpose of (P + R)^-1 P is the gain P (P + R)^-1
        gain = np.linalg.solve(covariance + noise_covariance, covariance).swapaxes(-1, -2)
        state = state + (gain @ (observed - state)[..., None])[..., 0]
        covariance = covariance - gain @ covariance
        covariance = (covariance + covariance.swapaxes(-1, -2)) / 2
        analyses[time] = state
    return analyses
