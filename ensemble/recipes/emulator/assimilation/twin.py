"""The twin experiment: the model gives a true trajectory, and random errors are added to it to give the observations.

All points are observed at every time step, with errors of variance 1. The set-up is that of P. Sakov and P. R. Oke, Tellus
60A, 2008, section 4, as in `mods/Lorenz96/sakov2008.py` of the package DAPPER.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ensemble.recipes.emulator import lorenz96

OBSERVATION_VARIANCE = 1.0
FIRST_SEED = 1_000_000
"""Added to the seed of a true trajectory, so that it differs from the seeds of training data, which are small numbers."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """Several independent experiments, one for each seed.

    truth, observations : (T, S, N) for T = spin_up + number of scored cycles, S experiments and N points
    start : (S, N), the first background state
    spin_up : cycles before the first one that is scored
    """

    truth: np.ndarray
    observations: np.ndarray
    start: np.ndarray
    spin_up: int = 0

    def scored(self, analyses: np.ndarray) -> np.ndarray:
        """The root mean square errors over the points of analyses (T, S, N) after the spin-up, (num_cycles, S)."""
        return np.sqrt(((analyses - self.truth) ** 2).mean(axis=-1))[self.spin_up :]


def draw(num_cycles: int, seeds: Sequence[int], spin_up: int) -> Twin:
    """Twin experiments, with another trajectory and other observation errors for each seed.

    The first background state is the truth one step before the first observation, plus errors with the variance of those
    of observations.
    """
    num_times = spin_up + num_cycles
    states = np.stack([lorenz96.trajectory(num_times + 1, FIRST_SEED + seed) for seed in seeds], axis=1)
    spread = OBSERVATION_VARIANCE**0.5
    errors = np.stack([np.random.default_rng(seed).normal(0, spread, states[:, 0].shape) for seed in seeds], axis=1)
    noisy = states + errors
    return Twin(states[1:], noisy[1:], noisy[0], spin_up)
