"""Handling of three training failures: out of memory, a loss or gradient that is not finite, and a loss spike.

If the micro-batch is too large for the memory of one rank, it is halved on all ranks before the first step, except with
sharded weights. If a loss or gradient is not finite, the rows of that step are saved in `nonfinite/` of the run's folder,
and can be loaded again:

    rows, batch = guards.load_batch(out / "nonfinite/step37.rank1.micro0.safetensors")

A loss spike is only detected here; `loop.update` then restores the weights of the last checkpoint.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ensemble import folders
from ensemble.errors import UserError, listed
from ensemble.neural import checkpoint
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.meter import preserved_state

# ------------------------------------------------------------------------------------------------ memory


def fit_micro_batch(
    plan: BatchPlan,
    trial_pass: Callable[[BatchPlan], None],
    model: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    accelerator: Accelerator,
    log: Callable[[str], None],
) -> BatchPlan:
    """Halve the micro-batch of `plan` until all ranks have enough memory for it; the global batches stay the same.

    `trial_pass` runs forward and backward of a full micro-batch without communication. Random states and buffers are
    restored afterwards, and gradients are None. If no optimizer has a state yet, memory for two moments of each parameter
    is allocated during a trial. Collective, with one reduction per trial. Raises `UserError` if one row does not fit, and
    any other exception of `trial_pass`.
    """
    needs_moments = not any(optimizer.state for optimizer in optimizers)
    fitted, failed_ranks = plan, set()
    while True:
        failed = torch.zeros(accelerator.num_processes, device=accelerator.device)
        failed[accelerator.process_index] = _runs_out_of_memory(trial_pass, fitted, model, needs_moments)
        ranks = accelerator.reduce(failed).nonzero().flatten().tolist()
        if not ranks:
            break
        failed_ranks |= set(ranks)
        fitted = fitted.halved()
    if fitted != plan:
        names = f"rank{'s' if len(failed_ranks) > 1 else ''} {listed(sorted(failed_ranks), 8)}"
        log(f"out of memory on {names}: {plan.description} becomes {fitted.description}")
    return fitted


def _runs_out_of_memory(
    trial_pass: Callable[[BatchPlan], None], plan: BatchPlan, model: torch.nn.Module, needs_moments: bool
) -> bool:
    from accelerate.utils.memory import clear_device_cache

    failed = False
    moments: list[torch.Tensor] = []
    with preserved_state(model):
        try:
            moments += [torch.empty_like(p) for p in model.parameters() if p.requires_grad for _ in range(2 * needs_moments)]
            trial_pass(plan)
        except Exception as error:  # deleted with this clause, which frees the tensors in its frames
            if not is_out_of_memory(error):
                raise
            failed = True
    moments.clear()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.grad = None
    if failed:
        clear_device_cache(garbage_collection=True)
    return failed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: by the class of the exception, or by its message if PyTorch raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    texts = ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "bad_alloc")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


# ------------------------------------------------------------------------------------------------ not finite


def report_nonfinite(
    accelerator: Accelerator,
    out: Path,
    step: int,
    rows_of_this_rank: Sequence[np.ndarray],
    gather: Callable[[np.ndarray], Batch],
    local_loss_is_finite: bool,
    loss: float,
    norm: float,
) -> str:
    """Save the micro-batches of the ranks whose own loss was not finite, and return one error message for all ranks.

    `rows_of_this_rank` are the row numbers of this rank's micro-batches of the step, without idle ones; `gather` reads them
    again. `loss` is that of the global batch, and `norm` that of its gradient. If only the gradient is not finite, the rank
    that caused it is unknown, and all ranks save. A batch that cannot be saved is mentioned in the message. Collective.
    """
    from accelerate.utils import gather_object

    report: dict[str, Any] = {"rank": accelerator.process_index, "rows": [], "files": [], "problem": ""}
    if not local_loss_is_finite or math.isfinite(loss):
        report["rows"] = np.concatenate([np.empty(0, np.int64), *rows_of_this_rank]).tolist()
        try:
            for number, rows in enumerate(rows_of_this_rank):
                file = out / f"nonfinite/step{step}.rank{accelerator.process_index}.micro{number}.safetensors"
                report["files"].append(str(save_batch(file, rows, gather(rows))))
        except (OSError, SafetensorError, UserError) as error:  # the other ranks wait in `gather_object`
            report["problem"] = str(error)
    return describe_nonfinite(step, loss, norm, [report for report in gather_object([report]) if report["rows"]])


def describe_nonfinite(step: int, loss: float, norm: float, reports: Sequence[dict[str, Any]]) -> str:
    """The error message for all ranks, to which the caller may add another fix.

    A report has `rank`, `rows`, the `files` with these rows, and `problem`, the error of saving them, or "".
    """
    problem = f"the gradient norm is {norm} (the loss {loss:.5g})" if math.isfinite(loss) else f"the loss is {loss}"
    sources = [
        f"rank {report['rank']}, {len(report['rows'])} rows: {listed(report['rows'], 8)} "
        + (f"(not saved: {report['problem']})" if report["problem"] else f"(saved: {listed(report['files'], 8)})")
        for report in reports[:4]
    ]
    if len(reports) > 4:
        sources.append(f"and {len(reports) - 4} more ranks")
    if not sources:
        sources = ["the sum over ranks, since that of each rank is finite, or from a count of 0"]
    return f"{problem} at step {step}, from {'; '.join(sources)}: look at those rows, lower learning_rate, or set clip_norm"


def save_batch(file: Path, rows: np.ndarray, batch: Batch) -> Path:
    """Write a batch and its row numbers to a safetensors file; creates the folder."""
    file.parent.mkdir(exist_ok=True)
    tensors = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in batch.items()}
    with folders.replacing(file) as scratch:
        checkpoint.write_tensors(scratch, tensors, {"rows": json.dumps(rows.tolist())})
    return file


def load_batch(file: Path) -> tuple[np.ndarray, Batch]:
    """The row numbers, int64 (num_rows,), and the batch that `save_batch` wrote."""
    try:
        with safe_open(file, "pt") as content:
            rows = np.array(json.loads(content.metadata()["rows"]), np.int64)
            return rows, {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{file} is not a saved batch ({error}): give a file from the folder nonfinite/ of a run") from None


# ------------------------------------------------------------------------------------------------ spikes


class SpikeDetector:
    """Detects a loss of more than `factor` times the median of previous losses; a factor of 0 disables it.

    `history`, which checkpoints contain, has the last losses that were finite and no spikes, at most `MAX_HISTORY`. No loss
    counts as a spike if there are fewer than `MIN_HISTORY`, or if their median is not positive.
    """

    MIN_HISTORY, MAX_HISTORY = 20, 100

    def __init__(self, factor: float, history: list[float]):
        self.factor, self.history = factor, history

    def is_spike(self, loss: float) -> bool:
        """Whether the loss is a spike; if it is finite and no spike, it is added to `history`."""
        if not self.factor or not math.isfinite(loss):
            return False
        if len(self.history) >= self.MIN_HISTORY and loss > self.factor * statistics.median(self.history) > 0:
            return True
        self.history.append(loss)
        del self.history[: -self.MAX_HISTORY]
        return False
