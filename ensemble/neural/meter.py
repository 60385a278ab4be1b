"""The speed of a training: examples per second, the share of time spent waiting for data, and MFU.

MFU (model FLOPs utilisation; Chowdhery et al. 2022, arXiv 2204.02311, appendix B) is the number of FLOP/s of the model's
operations divided by the peak FLOP/s of the devices. It is reported only for devices whose peak is in the table below.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ensemble.neural.loader import Feed

# Dense TFLOP/s from NVIDIA's data sheets: half of the values "with sparsity". GeForce: appendices of the GA102 and AD102
# whitepapers, with accumulation in fp32. All values are for tensor cores, except "no", which is plain float32.
PEAK_TFLOPS: dict[str, dict[str, float]] = {
    r"NVIDIA H100 80GB HBM3|NVIDIA H200": {"no": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9},
    r"NVIDIA H100 PCIe": {"no": 51, "tf32": 378, "fp16": 756.5, "bf16": 756.5, "fp8": 1513},
    r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe": {"no": 19.5, "tf32": 156, "fp16": 312, "bf16": 312},
    r"NVIDIA L4": {"no": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242.5},
    r"NVIDIA L40S": {"no": 91.6, "tf32": 183, "fp16": 362.05, "bf16": 362.05, "fp8": 733},
    r"Tesla V100-SXM2-\d+GB": {"no": 15.7, "fp16": 125},
    r"Tesla V100-PCIE-\d+GB": {"no": 14, "fp16": 112},
    r"Tesla T4": {"no": 8.1, "fp16": 65},
    r"NVIDIA GeForce RTX 3090": {"no": 35.6, "tf32": 35.6, "fp16": 71, "bf16": 71},
    r"NVIDIA GeForce RTX 4090": {"no": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3},
}


def peak_flops(name: str, precision: str) -> float | None:
    """The peak FLOP/s of the GPU `name` in precision no | tf32 | fp16 | bf16 | fp8; None if it is not known."""
    # The full name must match: an RTX 3090 Ti is not an RTX 3090, and a MIG slice of an H100 is not an H100
    tflops = next((peaks.get(precision) for pattern, peaks in PEAK_TFLOPS.items() if re.fullmatch(pattern, name)), None)
    return tflops and tflops * 1e12


def flops_per_example(model: torch.nn.Module, forward: Callable[[], torch.Tensor], num_examples: int) -> float:
    """Floating-point operations of forward and backward per example: matrix products, convolutions and attention.

    `forward` runs a micro-batch of `num_examples` through `model`, which is neither compiled nor wrapped by DDP, and returns
    the loss. A multiply-add counts as two operations. Operations that gradient checkpointing recomputes are counted; the
    fused attention kernel of the CPU is not. Gradients, buffers and random state do not change.
    """
    from torch.utils.flop_counter import FlopCounterMode

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with preserved_state(model), FlopCounterMode(display=False) as counter:
        torch.autograd.grad(forward(), parameters, allow_unused=True)  # does not change .grad
    return counter.get_total_flops() / num_examples


@contextmanager
def preserved_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore PyTorch's random state and the model's buffers (running statistics) at the end, also after an exception."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in model.named_buffers():  # by name: a module may have replaced the tensor
                    # A buffer of another shape is a cache that grows with the batch
                    if name in buffers and buffer.shape == buffers[name].shape:
                        buffer.copy_(buffers[name])


class Meter:
    """Measures the speed between two calls of `read`; the time inside `paused` does not count.

        meter = Meter(batches, num_ranks, flops, peak)
        meter.add(512)                      # examples of a step, over all ranks
        with meter.paused(): …              # an evaluation, a checkpoint
        meter.read()                        # {"samples_per_s": 1234.5, "data_wait": 0.01, "mfu": 0.41}

    `peak_flops` is that of one device; without it there is no "mfu".
    """

    def __init__(self, batches: Feed, num_ranks: int = 1, flops_per_example: float = 0.0, peak_flops: float | None = None):
        self._batches = batches
        self._flops_per_example = flops_per_example
        self._peak_flops = peak_flops and peak_flops * num_ranks
        self._reset()

    def add(self, num_examples: int) -> None:
        self._num_examples += num_examples

    @contextmanager
    def paused(self) -> Iterator[None]:
        pause_start, waited_s = time.perf_counter(), self._batches.waited_s
        yield
        self._start_time += time.perf_counter() - pause_start
        self._waited_s += self._batches.waited_s - waited_s

    def read(self) -> dict[str, float]:
        """Examples per second over all ranks, this rank's share of time spent waiting for data, and MFU; then reset."""
        seconds = time.perf_counter() - self._start_time
        values = {
            "samples_per_s": self._num_examples / seconds,
            "data_wait": (self._batches.waited_s - self._waited_s) / seconds,
        }
        if self._peak_flops:
            values["mfu"] = self._flops_per_example * values["samples_per_s"] / self._peak_flops
        self._reset()
        return values

    def _reset(self) -> None:
        self._start_time, self._waited_s, self._num_examples = time.perf_counter(), self._batches.waited_s, 0
