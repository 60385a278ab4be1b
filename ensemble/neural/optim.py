"""AdamW with parameter groups, learning rate schedules, and the moving average of the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ensemble.neural.settings import TrainConfig


def adamw(model: torch.nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on parameters of two or more dimensions only, not on biases and norm weights.

    It is fused, unless there are complex parameters, for which PyTorch has no fused kernel.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    is_real = not any(parameter.is_complex() for parameter in parameters)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=is_real)


def peak_learning_rate(config: TrainConfig) -> float:
    """The peak rate for the global batch size; linear is for SGD (Goyal et al. 2017, arXiv:1706.02677), sqrt for Adam."""
    ratio = config.batch_size / config.base_batch_size
    return config.learning_rate * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.learning_rate_scaling]


def learning_rate_scale(config: TrainConfig, step: int, num_steps: int) -> float:
    """The factor of the peak rate at optimizer step 1, …, num_steps; independent of ranks and micro-batches."""
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    num_after = max(1, num_steps - config.warmup_steps)
    done = min(step - config.warmup_steps, num_after - 0.5) / num_after  # without the 0.5 the last rate would be 0
    match config.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return 1 - done
        case "step":
            return config.decay_factor ** ((step - config.warmup_steps - 1) // config.decay_steps)
        case _:
            return 1.0


class MovingAverage:
    """The exponential moving average of a model's trainable parameters.

    The decay of step t is min(decay, (1 + t) / (10 + t)), so that the weights of the first steps are forgotten sooner.
    """

    def __init__(self, model: torch.nn.Module, decay: float):
        self.decay = decay
        self.parameters: list[torch.Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.average = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def reset(self) -> None:
        """Set the average to the present weights."""
        for parameter, average in zip(self.parameters, self.average, strict=True):
            average.copy_(parameter)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after optimizer step 1, 2, …"""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as the weights of the model inside the context."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, average in zip(self.parameters, self.average, strict=True):
            weight = parameter.clone()
            parameter.copy_(average)
            average.copy_(weight)
