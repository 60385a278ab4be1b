"""What a training does when it does not fit, does not stay finite, or jumps.

A micro-batch that is too large for the memory of one rank is halved on all of them, before the first step. A step whose loss
or gradient is not finite leaves its rows in `nonfinite/` of the run's folder, for replay:

    rows, batch = guards.load_batch(out / "nonfinite/step37.rank1.micro0.safetensors")
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.meter import undisturbed

if TYPE_CHECKING:
    from accelerate import Accelerator


# ------------------------------------------------------------------------------------------------ memory


def fit_micro_batch(
    plan: BatchPlan,
    try_once: Callable[[BatchPlan], None],
    model: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    accelerator: "Accelerator",
    say: Callable[[str], None],
) -> BatchPlan:
    """The plan, with its micro-batch halved until all ranks have the memory for it; the global batches stay the same.

    `try_once` runs forward and backward of a full micro-batch of a plan, without any collective. Nothing stays of it: random
    states and buffers are put back, gradients are None. The moments of optimizers that have none yet are stood in for.
    Collective, one reduction a try. Raises what `try_once` raises, and `UserError` when not even one row fits.
    """
    state_is_missing = not any(optimizer.state for optimizer in optimizers)
    fitted, short = plan, set()
    while True:
        failed = torch.zeros(accelerator.num_processes, device=accelerator.device)
        failed[accelerator.process_index] = _runs_out_of_memory(try_once, fitted, model, state_is_missing)
        ranks = accelerator.reduce(failed).nonzero().flatten().tolist()
        if not ranks:
            break
        short |= set(ranks)
        fitted = fitted.halved()
    if fitted != plan:
        say(f"out of memory on {_ranks(sorted(short))}: {plan.algebra} becomes {fitted.algebra}")
    return fitted


def _runs_out_of_memory(
    try_once: Callable[[BatchPlan], None], plan: BatchPlan, model: torch.nn.Module, state_is_missing: bool
) -> bool:
    from accelerate.utils.memory import clear_device_cache

    with undisturbed(model):
        failed = _try(try_once, plan, model, state_is_missing)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.grad = None
    if failed:
        clear_device_cache(garbage_collection=True)
    return failed


def _try(try_once: Callable[[BatchPlan], None], plan: BatchPlan, model: torch.nn.Module, state_is_missing: bool) -> bool:
    """Whether memory ran out. On return the exception is gone, and with it the tensors in its frames."""
    try:
        moments = [torch.empty_like(p) for p in model.parameters() if p.requires_grad for _ in range(2 * state_is_missing)]
        try_once(plan)
        del moments
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return True
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out; those that have no class of their own are known by their words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "bad_alloc")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_shortened(ranks)}"


def _shortened(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}"


# ------------------------------------------------------------------------------------------------ not finite


def report_nonfinite(
    accelerator: "Accelerator",
    out: Path,
    step: int,
    rows_of_this_rank: Sequence[np.ndarray],
    gather: Callable[[np.ndarray], Batch],
    local_loss_is_finite: bool,
    loss: float,
    norm: float,
) -> str:
    """Save the micro-batches of the ranks whose own loss was not finite, and say which, in the same sentence on all ranks.

    `rows_of_this_rank` are the row numbers of this rank's micro-batches of the step, the idle ones left out, and `gather`
    fetches them again; `loss` and `norm` (NaN where it is not known) are those of the global batch. When the loss is finite,
    and only the gradient is not, nobody can tell whose it was, and all ranks save. Collective; a disk that is full is said.
    """
    from accelerate.utils import gather_object

    own: dict[str, Any] = {"rank": accelerator.process_index, "rows": [], "files": [], "problem": ""}
    if not local_loss_is_finite or math.isfinite(loss):
        own["rows"] = np.concatenate([np.empty(0, np.int64), *rows_of_this_rank]).tolist()
        try:
            for number, rows in enumerate(rows_of_this_rank):
                file = out / f"nonfinite/step{step}.rank{accelerator.process_index}.micro{number}.safetensors"
                own["files"].append(str(save_batch(file, rows, gather(rows))))
        except (OSError, SafetensorError) as error:
            own["problem"] = str(error)
    return describe_nonfinite(step, loss, norm, [of_rank for of_rank in gather_object([own]) if of_rank["rows"]])


def describe_nonfinite(step: int, loss: float, norm: float, reports: Sequence[dict[str, Any]]) -> str:
    """One sentence; a report is `rank`, `rows`, the `files` that hold them, and the `problem` of saving them, if any."""
    what = f"the gradient norm is {norm} (the loss {loss:.5g})" if math.isfinite(loss) else f"the loss is {loss}"
    places = [
        f"rank {report['rank']}, {len(report['rows'])} rows: {_shortened(report['rows'])} "
        + (f"(not saved: {report['problem']})" if report["problem"] else f"(saved: {_shortened(report['files'])})")
        for report in reports[:4]
    ]
    if len(reports) > 4:
        places.append(f"and {len(reports) - 4} more ranks")
    if not places:
        places = ["no rank's own loss, but their sum"]
    return (
        f"{what} at step {step}, from {'; '.join(places)}: look at those rows, lower learning_rate, or set clip_norm "
        "or nonfinite=skip"
    )


def save_batch(file: Path, rows: np.ndarray, batch: Batch) -> Path:
    """Write a batch and its row numbers as safetensors, beside `file` and renamed into place; creates the folder."""
    file.parent.mkdir(exist_ok=True)
    scratch = file.with_name(f".{file.name}.writing")
    try:
        tensors = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in batch.items()}
        save_file(tensors, scratch, {"rows": json.dumps(rows.tolist())})
        folders.sync(scratch)
        return scratch.rename(file)
    finally:
        scratch.unlink(missing_ok=True)


def load_batch(file: Path) -> tuple[np.ndarray, Batch]:
    """The row numbers, int64 (num_rows,), and the batch that `save_batch` wrote."""
    try:
        with safe_open(file, "pt") as content:
            rows = np.array(json.loads(content.metadata()["rows"]), np.int64)
            return rows, {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no saved batch ({error}): name a file of a run's folder nonfinite/") from None


# ------------------------------------------------------------------------------------------------ spikes


class SpikeWatch:
    """Whether a loss is more than `factor` times the median of those before it; a factor of 0 never finds one.

    `history` is kept in checkpoints: the last losses that were neither spikes nor infinite, at most `LONGEST`.
    Only losses above zero can be compared so: with a median below, nothing is a spike.
    """

    SHORTEST, LONGEST = 20, 100

    def __init__(self, factor: float, history: list[float]):
        self.factor, self.history = factor, history

    def is_spike(self, loss: float) -> bool:
        if not self.factor or not math.isfinite(loss):
            return False
        if len(self.history) >= self.SHORTEST and loss > self.factor * statistics.median(self.history) > 0:
            return True
        self.history.append(loss)
        del self.history[: -self.LONGEST]
        return False
