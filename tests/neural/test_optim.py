"""Learning rates, schedules and the moving average, compared with their formulas."""

import math

import pytest
import torch

from ensemble.neural.optim import MovingAverage, adamw, learning_rate_scale, peak_learning_rate
from ensemble.neural.settings import TrainConfig


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_peak_rate_follows_the_global_batch(scaling: str, factor: float) -> None:
    """A batch four times as large would use the rate of the small one, or another factor than documented."""
    config = TrainConfig(
        data="", out="", learning_rate=0.01, batch_size=1024, base_batch_size=256, learning_rate_scaling=scaling
    )
    assert peak_learning_rate(config) == pytest.approx(0.01 * factor)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", {55: 0.5, 100: 0.5 * (1 + math.cos(math.pi * 89.5 / 90)), 30: 0.5 * (1 + math.cos(math.pi * 20 / 90))}),
        ("linear", {55: 0.5, 99: 1 / 90, 100: 0.5 / 90, 19: 0.9}),
        ("constant", {11: 1.0, 55: 1.0, 100: 1.0}),
        ("step", {11: 1.0, 40: 1.0, 41: 0.5, 70: 0.5, 71: 0.25, 100: 0.25}),
    ],
)
def test_schedules(schedule: str, expected: dict[int, float]) -> None:
    """A run would use other learning rates than configured."""
    config = TrainConfig(data="", out="", schedule=schedule, warmup_steps=10, decay_steps=30, decay_factor=0.5)
    scales = {step: learning_rate_scale(config, step, 100) for step in range(1, 101)}
    assert {step: scales[step] for step in expected} == pytest.approx(expected)
    assert [scales[step] for step in range(1, 11)] == pytest.approx([step / 10 for step in range(1, 11)])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_training_of_one_step_has_a_learning_rate(schedule: str) -> None:
    """A run, or a refit, of a single step would change nothing, without a message."""
    config = TrainConfig(data="", out="", schedule=schedule, warmup_steps=0)
    assert learning_rate_scale(config, 1, 1) == pytest.approx(0.5)


def test_the_moving_average_is_the_recurrence() -> None:
    """Averaged weights would have another decay, or lag by a step."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    average = MovingAverage(model, 0.9)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(1, 200):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [decay * old + (1 - decay) * new.detach() for old, new in zip(expected, model.parameters(), strict=True)]
    for actual, wanted in zip(average.average, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_weights_are_restored_exactly_after_using_the_average() -> None:
    """An evaluation would change the weights."""
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([-0.0, 1e-30]))
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    averaged = [tensor.clone() for tensor in average.average]
    with average.applied():
        assert torch.equal(model.weight, averaged[0])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.int32), weights[name].view(torch.int32)), name
    assert all(map(torch.equal, average.average, averaged))


def test_complex_weights_are_updated() -> None:
    """The fused kernel of AdamW refuses them: a network with complex weights would end in PyTorch's traceback."""
    model = torch.nn.ParameterDict({"angles": torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))})
    model["angles"].grad = torch.ones(2, 2, dtype=torch.complex64)
    adamw(model, 0.1, 0.0).step()
    assert torch.allclose(model["angles"].real, torch.full((2, 2), 0.9))
