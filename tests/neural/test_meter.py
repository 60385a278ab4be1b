"""Throughput and FLOPs."""

import time
from types import SimpleNamespace

import pytest
import torch

from ensemble.neural import meter
from ensemble.neural.meter import Meter, flops_per_example, peak_flops, preserved_state


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_pauses_count_neither_as_time_nor_as_waiting(clock: SimpleNamespace) -> None:
    """Each evaluation would lower the speed, or increase the waiting time of the loader."""
    batches = SimpleNamespace(waited_s=7.0)
    meter_of_run = Meter(batches, num_ranks=2, flops_per_example=3.0, peak_flops=60.0)
    for times in (1, 3):  # each reading resets the meter
        meter_of_run.add(60 * times)
        clock.now += 4
        batches.waited_s += times
        with meter_of_run.paused():
            clock.now += 1000
            batches.waited_s += 500
        meter_of_run.add(40 * times)
        clock.now += 1
        expected = {"samples_per_s": 20.0 * times, "data_wait": 0.2 * times, "mfu": 0.5 * times}
        assert meter_of_run.read() == pytest.approx(expected)


def test_an_exception_in_a_pause_is_raised(clock: SimpleNamespace) -> None:
    """The exception of a failed evaluation would be lost."""
    with pytest.raises(KeyboardInterrupt), Meter(SimpleNamespace(waited_s=0.0)).paused():
        raise KeyboardInterrupt


def test_without_a_known_peak_there_is_no_mfu(clock: SimpleNamespace) -> None:
    """A guess would be logged beside measured values."""
    meter_of_run = Meter(SimpleNamespace(waited_s=0.0), 1, 3.0, peak_flops("cpu", "no"))
    clock.now += 1
    assert meter_of_run.read().keys() == {"samples_per_s", "data_wait"}


def test_peaks_hold_for_exactly_that_device() -> None:
    """A similar device, or a slice of one, would get the same peak, or the peak would be that with sparsity."""
    assert peak_flops("NVIDIA H200", "bf16") == peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989.4e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert peak_flops("NVIDIA A100 80GB PCIe", "no") == 19.5e12
    for name in ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40", "NVIDIA H200 NVL"):
        assert peak_flops(name, "bf16") is None
    assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None, "it has none"
    for peaks in meter.PEAK_TFLOPS.values():
        assert set(peaks) <= {"no", "tf32", "fp16", "bf16", "fp8"}
        assert peaks["no"] < peaks["fp16"]
        assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
        assert peaks.get("tf32", peaks["fp16"] / 2) == pytest.approx(peaks["fp16"] / 2, rel=0.03)
        assert peaks.get("fp8", peaks["fp16"] * 2) == pytest.approx(peaks["fp16"] * 2, rel=0.03)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 2, bias=False)
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(self.first(x))))


def test_operations_are_those_of_forward_and_backward() -> None:
    """MFU would be wrong by a factor, as if a multiply-add were one operation, or without the backward pass."""
    model, x = Model(), torch.ones(10, 4)
    # forward, and backward to weights; backward to inputs for the second layer only
    expected = 2 * (4 * 8) * 2 + 2 * (8 * 2) * 3
    assert flops_per_example(model, lambda: model(x).sum(), 10) == expected
    model.first.weight.requires_grad_(False)
    assert flops_per_example(model, lambda: model(x).sum(), 10) == expected - 2 * (4 * 8)


def test_counting_does_not_change_the_state() -> None:
    """Counting FLOPs would change the result of a training."""
    model, x = Model(), torch.randn(10, 4)
    model(x).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters() if parameter.grad is not None]
    random = torch.get_rng_state()
    assert flops_per_example(model, lambda: model(x).sum(), 10) > 0

    def fail() -> None:
        with preserved_state(model):
            model(x)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    after = [parameter.grad for parameter in model.parameters()]
    assert len(gradients) == len(after) == 4
    for (gradient, values), now in zip(gradients, after, strict=True):
        assert gradient is now
        assert torch.equal(values, now)


class Cache(torch.nn.Module):
    """Has buffers that grow with the longest sequence, or are made in the first pass, as those of rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("mask", torch.ones(len(x)), persistent=False)
        self.angles = torch.arange(len(x)) / 10
        return x * self.angles * self.mask


def test_a_buffer_that_grows_in_a_pass_is_no_error() -> None:
    """A language model whose cache grows with the longest text could not be trained: its trial pass ended in a traceback."""
    model = Cache()
    with preserved_state(model):
        model(torch.ones(3))
    assert model(torch.ones(4)).shape == (4,)
