"""All that changes while a model is trained, and how it goes into a checkpoint and comes back."""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import checkpoint, launch
from ensemble.neural.carry import Carry
from ensemble.neural.checkpoint import Tensors
from ensemble.neural.loader import BatchPlan
from ensemble.neural.optim import MovingAverage

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclasses.dataclass
class Progress:
    """How far a run has come; it goes into checkpoints as JSON."""

    step: int = 0
    """Global batches taken from the data."""
    updates: int = 0
    """Optimizer steps, which the schedule counts: less those that were skipped."""
    best_score: float | None = None
    best_step: int = 0
    evaluated_step: int = 0
    evaluations_since_best: int = 0
    skipped: int = 0
    """Batches left out since their loss or gradient was not finite."""
    rollbacks: int = 0
    rollback_step: int = 0
    """Of the checkpoint that a loss spike goes back to: the last one that was due, wherever the run was stopped since."""
    recent_losses: list[float] = dataclasses.field(default_factory=list)
    ranks: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    """Of the last evaluation."""
    planned_steps: int = 0
    """With max_seconds the steps that fit; 0 for those of max_epochs."""

    def forget_best(self) -> None:
        self.best_score, self.best_step, self.evaluations_since_best = None, 0, 0


class TrainingState:
    """Model, optimizers, loss scaler, moving average, carried state and progress of one rank.

    The rates that the optimizers come with are the peaks of the schedule.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        ema_decay: float,
        accelerator: "Accelerator",
    ):
        self.model = model
        self.optimizers = optimizers
        self.scaler: Any = accelerator.scaler
        self.average = MovingAverage(model, ema_decay) if ema_decay else None
        self.carry = Carry()
        self._carry_of_all: Tensors = {}
        self.progress = Progress(ranks=accelerator.num_processes)
        self.is_sharded = launch.is_sharded(accelerator)
        self._accelerator = accelerator
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._peak_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    def backward(self, loss: torch.Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()  # as accelerator.backward, at half its cost

    def gradient_norm(self) -> torch.Tensor:
        """The norm over all gradients, which are freed of the loss scale first; the same on every rank."""
        if self.scaler:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        return torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])

    def may_overflow(self) -> bool:
        """Whether gradients that are not finite may be so for their loss scale, which is lowered then, and nothing else."""
        return bool(self.scaler) and self.scaler.get_scale() >= 1

    def update(self, factor: float, rate_scale: float) -> None:
        """One step of every optimizer, with the gradients times `factor`, at `rate_scale` of the peak rates."""
        if factor != 1.0:
            torch._foreach_mul_([p.grad for p in self._parameters if p.grad is not None], factor)
        for optimizer, peak_rates in zip(self.optimizers, self._peak_rates, strict=True):
            for group, peak_rate in zip(optimizer.param_groups, peak_rates, strict=True):
                group["lr"] = peak_rate * rate_scale
            if self.scaler:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        self.progress.updates += 1
        if self.average:
            self.average.update(self.progress.updates)
        self.carry.commit()

    def end_step(self) -> None:
        """Clear the gradients, and what a step that was not taken left behind."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.scaler:
            self.scaler.update()
        self.carry.discard()

    def averaged_weights(self) -> AbstractContextManager[None]:
        """The model with the moving average in place of its weights, if there is one."""
        return self.average.applied() if self.average else nullcontext()

    def weights(self) -> Tensors:
        """A copy of the weights on the CPU of the main process, under the model's own names; collective."""
        weights = self._unwrapped().state_dict()
        if self.is_sharded:
            from ensemble.neural import sharded

            return sharded.gather(weights)
        return _copied(weights) if self._accelerator.is_main_process else {}

    def snapshot(self) -> tuple[Tensors, dict[str, Any]]:
        """A copy of what a checkpoint holds beside the weights, on the main process; collective.

        Of weights that are sharded, the optimizers and the moving average are left to `write_sharded`.
        """
        from accelerate.utils import gather_object

        own = {"random.cpu": torch.get_rng_state()}
        if self._accelerator.device.type == "cuda":
            own["random.cuda"] = torch.cuda.get_rng_state(self._accelerator.device)
        of_ranks = gather_object([(own, _copied(self.carry.tensors()))])
        if not self._accelerator.is_main_process:
            return {}, {}
        tensors: Tensors = {}
        for rank, (own, carried) in enumerate(of_ranks):
            tensors |= {f"rank{rank}.{name}": tensor for name, tensor in own.items()}
            tensors |= {f"carry.{name}": tensor for name, tensor in carried.items()}
        about = []
        if not self.is_sharded:
            tensors |= self._averages()
            for number, optimizer in enumerate(self.optimizers):
                named, rest = checkpoint.flatten_optimizer(optimizer, f"optimizer{number}")
                tensors |= named
                about.append(rest)
        scaler = self.scaler.state_dict() if self.scaler else {}
        return _copied(tensors), {
            "progress": dataclasses.asdict(self.progress),
            "optimizers": about,
            "has_average": self.average is not None,
            "scaler": scaler,
        }

    def write_sharded(self, folder: Path, about: dict[str, Any]) -> None:
        """A checkpoint to which every rank writes its own pieces; collective, and done when it returns."""
        from ensemble.neural import sharded

        is_main = self._accelerator.is_main_process
        new_folder = folders.new_folder(folder, True, "checkpoint") if is_main else nullcontext()
        with checkpoint.refuse_unwritable(folder), new_folder as scratch:
            scratch = launch.from_main_process(self._accelerator, scratch)
            optimizers = sharded.save(scratch, self._unwrapped(), self.optimizers, self._averages())
            tensors, description = self.snapshot()
            if is_main:
                checkpoint.fill(scratch, {**about, **description, "optimizers": optimizers}, {"state": tensors})
        self._accelerator.wait_for_everyone()

    def restore(self, folder: Path, num_ranks: int, seed: int, override: bool) -> None:
        """Go on from a checkpoint; on another number of ranks, dropout draws anew and everything else goes on.

        What places carry waits for `cut_carry`. With `override`, the optimizers keep the settings they were made with,
        instead of those of the checkpoint.
        """
        description, tensors = checkpoint.read(folder)
        self.restore_learned(folder, description, tensors, override)
        self.progress = Progress(**description["progress"])
        rank, device = self._accelerator.process_index, self._accelerator.device
        own = _under(f"rank{rank}.", tensors)
        if self.progress.ranks == num_ranks:
            torch.set_rng_state(own["random.cpu"])
            if "random.cuda" in own and device.type == "cuda":
                torch.cuda.set_rng_state(own["random.cuda"], device)
        else:
            torch.manual_seed(((seed * 1_000_003 + self.progress.step) * 1_000_003 + rank) % 2**63)
        self.progress.ranks = num_ranks
        self._carry_of_all = _under("carry.", tensors)

    def cut_carry(self, plan: BatchPlan) -> None:
        """What places carried in the checkpoint, for micro-batches of which it is known that they fit into memory."""
        self.carry.restore(self._carry_of_all, plan, self._accelerator.device)
        self._carry_of_all = {}

    def restore_learned(self, folder: Path, description: dict[str, Any], tensors: Tensors, override: bool = False) -> None:
        """The weights, and what the optimizers know: that part of a checkpoint to which a loss spike goes back."""
        if len(description["optimizers"]) != len(self.optimizers):
            ours, theirs = len(self.optimizers), len(description["optimizers"])
            raise UserError(f"{folder} was written with {theirs} optimizers, not {ours}: it belongs to another recipe")
        rest = description["optimizers"]
        if override:
            groups = [optimizer.state_dict()["param_groups"] for optimizer in self.optimizers]
            rest = [{**about, "groups": now} for about, now in zip(rest, groups, strict=True)]
        averages = self._averages() if description["has_average"] else {}
        if self.is_sharded or checkpoint.is_sharded(folder):
            from ensemble.neural import sharded

            sharded.load(folder, self._unwrapped(), self.optimizers, averages, rest)
        else:
            checkpoint.load_weights(folder, self._unwrapped())
            for number, (optimizer, about) in enumerate(zip(self.optimizers, rest, strict=True)):
                checkpoint.restore_optimizer(optimizer, f"optimizer{number}", tensors, about)
            for name, average in averages.items():
                average.copy_(tensors[name])
        if self.average and not averages:
            self.average.begin_anew()
        if self.scaler and description["scaler"]:
            self.scaler.load_state_dict(description["scaler"])

    def _unwrapped(self) -> torch.nn.Module:
        return self._accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _averages(self) -> Tensors:
        averages = self.average.average if self.average else []
        return {f"average.{number}": tensor for number, tensor in enumerate(averages)}


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
