"""Networks with hand-written Jacobians: a perceptron, a bilinear convolution on a ring, and a layer that conserves a sum.

Inputs and outputs of every network are in physical units: the means and standard deviations are buffers of the module.

    y = m_out + s_out · f((x - m_in) / s_in)          with `residual`, x is added, and m_out and s_out are those of y - x

Tangent, adjoint and Jacobian are products of the derivatives of the layers. They do not use automatic differentiation, so
that `torch.export`, ONNX and TorchScript can export them. They are differentiable with respect to the weights, which a loss
with a Jacobian term needs. Derivatives of activations are computed by the kernels that PyTorch's autograd uses.

Shape suffixes: B batch, I inputs, O outputs, N points of a ring, C channels, K size of a stencil.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
STATISTICS = ("input_mean", "input_std", "output_mean", "output_std")
OFFSETS = (-2, -1, 0, 1, 2)
"""Offsets of the points in the stencil of every layer of a bilinear convolution, relative to its centre."""
BLOCK_ROWS = 4096
"""Number of rows whose Jacobians are computed at once on a CPU, so that the values of a layer stay in the CPU's cache."""


class Emulator(nn.Module):
    """Base class of all networks: statistics, and `forward`, `tangent`, `adjoint` and `jacobian` in physical units.

    A subclass defines `network`, `network_tangent` and `network_adjoint` in normalised units.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor
    output_mean: torch.Tensor
    output_std: torch.Tensor

    def __init__(self, num_inputs: int, num_outputs: int, residual: bool = False):
        super().__init__()
        if residual and num_inputs != num_outputs:
            raise ValueError(f"residual=True needs as many outputs as inputs, not {num_outputs} and {num_inputs}")
        self.num_inputs, self.num_outputs, self.residual = num_inputs, num_outputs, residual
        for name in STATISTICS:
            size = num_inputs if name.startswith("input") else num_outputs
            self.register_buffer(name, torch.ones(size) if name.endswith("std") else torch.zeros(size))

    def set_statistics(self, statistics: Mapping[str, Any]) -> None:
        """Set means and standard deviations: `input_mean`, `input_std` (I,), `output_mean`, `output_std` (O,).

        With `residual`, the last two are those of y - x. Raises ValueError for a wrong shape and for a deviation that is
        not positive.
        """
        for name in STATISTICS:
            values, buffer = torch.as_tensor(statistics[name]), getattr(self, name)
            if values.shape != buffer.shape:
                raise ValueError(f"{name} has the shape {tuple(values.shape)}, not {tuple(buffer.shape)}")
            if name.endswith("std") and not bool((values > 0).all()):
                raise ValueError(f"{name} must be positive, not {values.tolist()}")
            buffer.copy_(values)

    def forward(self, x_BI: torch.Tensor, dx_BI: torch.Tensor | None = None) -> Any:
        """The outputs y, (B, O); with `dx_BI`, a pair of y and the product of the Jacobian with dx, (B, O) each."""
        if dx_BI is None:
            y_BO = self.output_mean + self.output_std * self.network(self.normalised(x_BI))
            return x_BI + y_BO if self.residual else y_BO
        value_BO, change_BO = self.network_tangent(self.normalised(x_BI), dx_BI / self.input_std)
        y_BO, dy_BO = self.output_mean + self.output_std * value_BO, self.output_std * change_BO
        return (x_BI + y_BO, dx_BI + dy_BO) if self.residual else (y_BO, dy_BO)

    def tangent(self, x_BI: torch.Tensor, dx_BI: torch.Tensor) -> torch.Tensor:
        """The product of the Jacobian at x with dx, (B, O)."""
        return self.forward(x_BI, dx_BI)[1]

    def adjoint(self, x_BI: torch.Tensor, dy_BO: torch.Tensor) -> torch.Tensor:
        """The product of the transposed Jacobian at x with dy, (B, I)."""
        dx_BI = self.network_adjoint(self.normalised(x_BI), self.output_std * dy_BO) / self.input_std
        return dx_BI + dy_BO if self.residual else dx_BI

    def jacobian(self, x_BI: torch.Tensor) -> torch.Tensor:
        """The derivatives of the outputs with respect to the inputs, (B, O, I)."""
        in_one_block = x_BI.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing()
        if in_one_block or len(x_BI) <= BLOCK_ROWS:
            return self._jacobian(x_BI)
        return torch.cat([self._jacobian(block_BI) for block_BI in x_BI.split(BLOCK_ROWS)])

    def _jacobian(self, x_BI: torch.Tensor) -> torch.Tensor:
        scale_OI = self.output_std[:, None] / self.input_std
        jacobian_BOI = self.network_jacobian(self.normalised(x_BI)) * scale_OI
        return jacobian_BOI + _identity(self.num_inputs, x_BI) if self.residual else jacobian_BOI

    def masked_jacobian(self, x_BI: torch.Tensor, mask_B: torch.Tensor) -> torch.Tensor:
        """`jacobian` for rows whose mask (bool) is True; exactly 0 for other rows, even if their inputs are not finite."""
        inputs_BI = torch.where(mask_B[:, None], x_BI, self.input_mean)
        jacobian_BOI = self.jacobian(inputs_BI)
        return torch.where(mask_B[:, None, None], jacobian_BOI, torch.zeros_like(jacobian_BOI))

    def normalised(self, x_BI: torch.Tensor) -> torch.Tensor:
        return (x_BI - self.input_mean) / self.input_std

    def network(self, x_BI: torch.Tensor) -> torch.Tensor:
        """The outputs, (B, O), in normalised units."""
        raise NotImplementedError

    def network_tangent(self, x_BI: torch.Tensor, dx_BI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs and the product of the Jacobian with dx, (B, O) each; further axes between B and O are broadcast."""
        raise NotImplementedError

    def network_adjoint(self, x_BI: torch.Tensor, dy_BO: torch.Tensor) -> torch.Tensor:
        """The product of the transposed Jacobian with dy, (B, I)."""
        raise NotImplementedError

    def network_jacobian(self, x_BI: torch.Tensor) -> torch.Tensor:
        """The Jacobian, (B, O, I), computed as one tangent for each input."""
        unit_1II = _identity(self.num_inputs, x_BI).unsqueeze(0)
        columns = self.network_tangent(x_BI.unsqueeze(1), unit_1II)[1]
        return columns.transpose(1, 2).expand(x_BI.shape[0], -1, -1)


class Mlp(Emulator):
    """A perceptron. The 7-16-1 network of sea ice is `Mlp(7, 1, (16,), "relu", "sigmoid")`.

    output : "linear", or "sigmoid" for outputs between 0 and 1. With "sigmoid", outputs are not normalised: the buffers
        `output_mean` and `output_std` are 0 and 1.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        widths: Sequence[int],
        activation: str = "gelu",
        output: str = "linear",
        residual: bool = False,
    ):
        super().__init__(num_inputs, num_outputs, residual)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation} is not one of {', '.join(ACTIVATIONS)}")
        if output not in ("linear", "sigmoid"):
            raise ValueError(f"output={output} is not one of linear, sigmoid")
        if output == "sigmoid" and residual:
            raise ValueError(
                "output=sigmoid bounds the outputs, and residual=True would add the inputs to them: leave one of the two out"
            )
        sizes = [num_inputs, *widths, num_outputs]
        self.layers: Any = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(sizes))
        self.activations = (*(activation for _ in widths), output)
        """The name of the activation after each layer."""

    def set_statistics(self, statistics: Mapping[str, Any]) -> None:
        if self.activations[-1] == "sigmoid":
            unscaled = {"output_mean": torch.zeros(self.num_outputs), "output_std": torch.ones(self.num_outputs)}
            statistics = {**statistics, **unscaled}
        super().set_statistics(statistics)

    def network(self, x_BI: torch.Tensor) -> torch.Tensor:
        value = x_BI
        for layer, activation in zip(self.layers, self.activations, strict=True):
            value = activated(activation, layer(value))
        return value

    def network_tangent(self, x_BI: torch.Tensor, dx_BI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, change = x_BI, dx_BI
        for layer, activation in zip(self.layers, self.activations, strict=True):
            preactivation, change = layer(value), F.linear(change, layer.weight)
            value, change = activated(activation, preactivation), scaled(activation, change, preactivation)
        return value, change

    def network_adjoint(self, x_BI: torch.Tensor, dy_BO: torch.Tensor) -> torch.Tensor:
        return self._backward(self._preactivations(x_BI), dy_BO)

    def network_jacobian(self, x_BI: torch.Tensor) -> torch.Tensor:
        preactivations = self._preactivations(x_BI)
        if self.num_outputs == 1:
            return self._backward(preactivations, torch.ones_like(preactivations[-1])).unsqueeze(1)
        if self.num_outputs < self.num_inputs:
            unit_1OO = _identity(self.num_outputs, x_BI).unsqueeze(0)
            rows = self._backward([values.unsqueeze(1) for values in preactivations], unit_1OO)
            return rows.expand(x_BI.shape[0], -1, -1)
        return super().network_jacobian(x_BI)

    def _preactivations(self, x_BI: torch.Tensor) -> list[torch.Tensor]:
        """The output of each linear layer, (B, width)."""
        first, *others = self.layers
        preactivations = [first(x_BI)]
        for layer, activation in zip(others, self.activations[:-1], strict=True):
            preactivations.append(layer(activated(activation, preactivations[-1])))
        return preactivations

    def _backward(self, preactivations: list[torch.Tensor], change: torch.Tensor) -> torch.Tensor:
        """The product of `change`, whose last axis is O, with the Jacobian, by propagation back through the layers."""
        layers = zip(self.layers, self.activations, preactivations, strict=True)
        for layer, activation, preactivation in reversed(list(layers)):
            change = scaled(activation, change, preactivation) @ layer.weight
        return change


class BilinearConvolution(Emulator):
    """A residual network for states on a ring. Each hidden layer is u + v · w, with convolutions u, v and w of its input.

    The layers multiply values of neighbouring points, as advection does. No other part of an equation is built in.

    channels : the number of channels of each hidden layer
    """

    def __init__(self, num_points: int, channels: Sequence[int]):
        super().__init__(num_points, num_points, residual=True)
        sizes = [1, *channels]
        self.layers: Any = nn.ModuleList(
            nn.Linear(before * len(OFFSETS), 3 * after) for before, after in itertools.pairwise(sizes)
        )
        self.last = nn.Linear(sizes[-1] * len(OFFSETS), 1)

    def network(self, x_BI: torch.Tensor) -> torch.Tensor:
        value_BNC = x_BI.unsqueeze(-1)
        for layer in self.layers:
            u, v, w = layer(self._stencils(value_BNC)).chunk(3, dim=-1)
            value_BNC = u + v * w
        return self.last(self._stencils(value_BNC)).squeeze(-1)

    def network_tangent(self, x_BI: torch.Tensor, dx_BI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, change = x_BI.unsqueeze(-1), dx_BI.unsqueeze(-1)
        for layer in self.layers:
            u, v, w = layer(self._stencils(value)).chunk(3, dim=-1)
            du, dv, dw = F.linear(self._stencils(change), layer.weight).chunk(3, dim=-1)
            value, change = u + v * w, du + dv * w + v * dw
        dy = F.linear(self._stencils(change), self.last.weight).squeeze(-1)
        return self.last(self._stencils(value)).squeeze(-1), dy

    def network_adjoint(self, x_BI: torch.Tensor, dy_BO: torch.Tensor) -> torch.Tensor:
        value, factors = x_BI.unsqueeze(-1), []
        for layer in self.layers:
            u, v, w = layer(self._stencils(value)).chunk(3, dim=-1)
            factors.append((v, w))
            value = u + v * w
        change = self._gathered(dy_BO.unsqueeze(-1) @ self.last.weight)
        for layer, (v, w) in zip(reversed(self.layers), reversed(factors), strict=True):
            change = self._gathered(torch.cat((change, change * w, change * v), dim=-1) @ layer.weight)
        return change.squeeze(-1)

    def _stencils(self, value: torch.Tensor) -> torch.Tensor:
        """The values at all offsets from each point: (…, N, C) to (…, N, K C)."""
        return torch.cat([torch.roll(value, -offset, dims=-2) for offset in OFFSETS], dim=-1)

    def _gathered(self, stencils: torch.Tensor) -> torch.Tensor:
        """The transpose of `_stencils`: (…, N, K C) to (…, N, C)."""
        parts = stencils.chunk(len(OFFSETS), dim=-1)
        rolled = [torch.roll(part, offset, dims=-2) for part, offset in zip(parts, OFFSETS, strict=True)]
        return torch.stack(rolled).sum(dim=0)


class ConservedSum(Emulator):
    """An emulator whose outputs are corrected such that their weighted sum equals that of the inputs: Σ b_o y_o = Σ a_i x_i.

    The correction is the smallest that achieves this: y - b (b·y - a·x) / (b·b).

    inner : the emulator that is corrected
    input_weights, output_weights : a (I,) and b (O,)
    """

    input_weights: torch.Tensor
    output_weights: torch.Tensor

    def __init__(self, inner: Emulator, input_weights: Sequence[float], output_weights: Sequence[float]):
        super().__init__(inner.num_inputs, inner.num_outputs, inner.residual)
        self.inner = inner
        self.register_buffer("input_weights", torch.as_tensor(input_weights, dtype=torch.get_default_dtype()))
        self.register_buffer("output_weights", torch.as_tensor(output_weights, dtype=torch.get_default_dtype()))
        if self.input_weights.shape != (inner.num_inputs,) or self.output_weights.shape != (inner.num_outputs,):
            raise ValueError(
                f"a conserved sum needs {inner.num_inputs} weights of inputs and {inner.num_outputs} of outputs, not "
                f"{len(self.input_weights)} and {len(self.output_weights)}"
            )
        if not bool((self.output_weights != 0).any()):
            raise ValueError("a conserved sum needs a weight of an output that is not 0")

    def set_statistics(self, statistics: Mapping[str, Any]) -> None:
        super().set_statistics(statistics)
        self.inner.set_statistics(statistics)

    def forward(self, x_BI: torch.Tensor, dx_BI: torch.Tensor | None = None) -> Any:
        if dx_BI is None:
            return self._corrected(x_BI, self.inner(x_BI))
        y_BO, dy_BO = self.inner(x_BI, dx_BI)
        return self._corrected(x_BI, y_BO), self._corrected(dx_BI, dy_BO)

    def adjoint(self, x_BI: torch.Tensor, dy_BO: torch.Tensor) -> torch.Tensor:
        share_B1 = self._share(dy_BO @ self.output_weights).unsqueeze(-1)
        return self.inner.adjoint(x_BI, dy_BO - share_B1 * self.output_weights) + share_B1 * self.input_weights

    def jacobian(self, x_BI: torch.Tensor) -> torch.Tensor:
        jacobian_BOI = self.inner.jacobian(x_BI)
        missing_BI = self.input_weights - self.output_weights @ jacobian_BOI
        return jacobian_BOI + self.output_weights[:, None] * self._share(missing_BI).unsqueeze(1)

    def _corrected(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        missing = self._share(x @ self.input_weights - y @ self.output_weights)
        return y + missing.unsqueeze(-1) * self.output_weights

    def _share(self, missing: torch.Tensor) -> torch.Tensor:
        """The factor of b that adds `missing` to b·y."""
        return missing / (self.output_weights @ self.output_weights)


def build(
    name: str,
    num_inputs: int,
    num_outputs: int,
    *,
    widths: Sequence[int],
    activation: str = "gelu",
    output: str = "linear",
    residual: bool = False,
    conserve: Sequence[float] = (),
    statistics: Mapping[str, Any],
) -> Emulator:
    """A new network of a named kind, with the statistics of the training data. Raises ValueError for impossible settings.

    name : "mlp", or "bilinear", which is always residual
    widths : of the hidden layers; for "bilinear", their numbers of channels
    conserve : a weight for each input, of a sum that must be equal for inputs and outputs; () for none
    statistics : those of `Emulator.set_statistics`; {} for means of 0 and deviations of 1
    """
    network: Emulator
    if name == "mlp":
        network = Mlp(num_inputs, num_outputs, widths, activation, output, residual)
    elif name == "bilinear":
        if num_inputs != num_outputs:
            raise ValueError(f"bilinear needs as many outputs as inputs, not {num_outputs} and {num_inputs}")
        network = BilinearConvolution(num_inputs, widths)
    else:
        raise ValueError(f"network={name} is not one of mlp, bilinear")
    if len(conserve):
        network = ConservedSum(network, conserve, conserve)
    if statistics:
        network.set_statistics(statistics)
    return network


def activated(activation: str, preactivation: torch.Tensor) -> torch.Tensor:
    return preactivation if activation == "linear" else ACTIVATIONS[activation](preactivation)


def scaled(activation: str, change: torch.Tensor, preactivation: torch.Tensor) -> torch.Tensor:
    """`change` times the derivative of an activation at `preactivation`; the two are broadcast against each other."""
    if activation == "linear":
        return change
    if change.shape != preactivation.shape:
        return change * scaled(activation, torch.ones_like(preactivation), preactivation)
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(change, preactivation)
    if activation == "relu":
        return torch.ops.aten.threshold_backward(change, preactivation, 0)
    if activation == "tanh":
        return torch.ops.aten.tanh_backward(change, preactivation.tanh())
    return torch.ops.aten.sigmoid_backward(change, preactivation.sigmoid())


def _identity(size: int, like: torch.Tensor) -> torch.Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
