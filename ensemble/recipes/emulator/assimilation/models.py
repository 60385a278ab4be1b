"""Forecast models for data assimilation: the true model, which is the module lorenz96 itself, or a trained emulator."""

from typing import Protocol

import numpy as np
import torch

from ensemble.recipes.emulator.networks import Emulator


class Model(Protocol):
    """One time step of a model and its derivatives, in float64. States and directions are (B, N)."""

    def step(self, states: np.ndarray) -> np.ndarray:
        """The next states, (B, N)."""

    def adjoint(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """The products of the transposed Jacobians with the directions, (B, N)."""

    def jacobian(self, states: np.ndarray) -> np.ndarray:
        """The derivatives of the next states with respect to the states, (B, N, N)."""


class Emulated:
    """A network that maps a state to the next one, evaluated in float64."""

    def __init__(self, network: Emulator):
        self._network = network.double().eval().requires_grad_(False)

    def step(self, states: np.ndarray) -> np.ndarray:
        return self._network(_tensor(states)).numpy()

    def adjoint(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray:
        return self._network.adjoint(_tensor(states), _tensor(directions)).numpy()

    def jacobian(self, states: np.ndarray) -> np.ndarray:
        return self._network.jacobian(_tensor(states)).numpy()


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
