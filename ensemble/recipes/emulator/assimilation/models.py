"""The forecast models of an assimilation: the true model, and a trained emulator."""

from typing import Protocol

import numpy as np
import torch

from ensemble.recipes.emulator import lorenz96
from ensemble.recipes.emulator.networks import Emulator


class Model(Protocol):
    """One time step of a model with its derivatives, in float64. States and directions are (B, N)."""

    def step(self, states: np.ndarray) -> np.ndarray: ...

    def tangent(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray: ...

    def adjoint(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray: ...

    def jacobian(self, states: np.ndarray) -> np.ndarray:
        """(B, N, N)."""
        ...


class Truth:
    """Lorenz-96 itself."""

    step = staticmethod(lorenz96.step)
    tangent = staticmethod(lorenz96.tangent)
    adjoint = staticmethod(lorenz96.adjoint)
    jacobian = staticmethod(lorenz96.jacobian)


class Emulated:
    """A network that maps a state to the next one, evaluated in float64."""

    def __init__(self, network: Emulator):
        self._network = network.double().eval().requires_grad_(False)

    def step(self, states: np.ndarray) -> np.ndarray:
        return _array(self._network(_tensor(states)))

    def tangent(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray:
        return _array(self._network.tangent(_tensor(states), _tensor(directions)))

    def adjoint(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray:
        return _array(self._network.adjoint(_tensor(states), _tensor(directions)))

    def jacobian(self, states: np.ndarray) -> np.ndarray:
        return _array(self._network.jacobian(_tensor(states)))


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


def _array(values: torch.Tensor) -> np.ndarray:
    return values.numpy()
