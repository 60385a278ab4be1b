"""Forecast models for the tests of assimilation: a linear one, and a network whose weights are written by hand."""

from typing import Any

import numpy as np
import torch

from ensemble.recipes.emulator import lorenz96
from ensemble.recipes.emulator.networks import BilinearConvolution


class Linear:
    """x -> A x, for which the Kalman filter and 4D-Var are exact."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix

    def step(self, states: np.ndarray) -> np.ndarray:
        return states @ self.matrix.T

    def adjoint(self, states: np.ndarray, directions: np.ndarray) -> np.ndarray:
        return directions @ self.matrix

    def jacobian(self, states: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.matrix, (len(states), *self.matrix.shape))


def euler() -> BilinearConvolution:
    """A bilinear convolution that is an explicit Euler step of Lorenz-96, up to rounding, in physical units."""
    network = BilinearConvolution(lorenz96.NUM_POINTS, (1,)).double()
    first: Any = network.layers[0]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        # Offsets -2 … 2; the rows are u = 8 - x_i, v = x_{i+1} - x_{i-2} and w = x_{i-1}
        first.weight[0, 2], first.bias[0] = -1, lorenz96.FORCING
        first.weight[1, 3], first.weight[1, 0] = 1, -1
        first.weight[2, 1] = 1
        network.last.weight[0, 2] = lorenz96.STEP
    return network


def euler_step(states: np.ndarray) -> np.ndarray:
    return states + lorenz96.STEP * lorenz96.tendency(states)
