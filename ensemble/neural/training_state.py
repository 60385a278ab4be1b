"""The state of a training, and how it is saved in and restored from a checkpoint."""

import dataclasses
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ensemble.errors import UserError, shortened
from ensemble.neural import checkpoint, launch
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.carry import Carry
from ensemble.neural.checkpoint import Tensors
from ensemble.neural.loader import BatchPlan
from ensemble.neural.optim import MovingAverage


@dataclasses.dataclass
class Progress:
    """Counters and scores of a run, stored in checkpoints as JSON."""

    step: int = 0
    """Global batches processed, including skipped ones."""
    updates: int = 0
    """Optimizer steps, without skipped ones; the learning rate depends on this number."""
    best_score: float | None = None
    best_step: int = 0
    evaluated_step: int = 0
    """The step of the last evaluation."""
    evaluations_since_best: int = 0
    skipped: int = 0
    """Batches skipped because their loss or gradient was not finite, except those whose gradient may have overflowed by the
    loss scale of fp16."""
    rollbacks: int = 0
    rollback_step: int = 0
    """The step of the checkpoint to return to after a loss spike: the last regular one, not one written on preemption; 0 if
    there is none yet."""
    recent_losses: list[float] = dataclasses.field(default_factory=list)
    """`history` of `guards.SpikeDetector`."""
    ranks: int = 0
    """The number of ranks."""
    seconds: float = 0.0
    """Duration of the run until the last checkpoint."""
    evaluation_seconds: float = 0.0
    """Duration of the last evaluation, in seconds."""
    planned_steps: int = 0
    """With max_seconds, the total number of steps that fit; 0 for that of max_epochs."""


def without_gradient(names: list[str], when: str = "") -> UserError:
    """The error for parameters on which the loss of one rank does not depend: DDP would wait for their gradients."""
    return UserError(
        f"the loss that `step` of the recipe returns{when} does not depend on {shortened(', '.join(names))}: with several "
        "processes each parameter needs a gradient in each pass; remove it, set requires_grad_(False), or add 0 times its "
        "sum to the loss"
    )


class TrainingState:
    """Model, optimizers, loss scaler, moving average, carried state and progress of one rank.

    The initial learning rates of the optimizers are the peak rates of the schedule. With sharded weights the constructor is
    collective: it creates the process group, with the time-out `timeout_s`, in which checkpoints are written.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        ema_decay: float,
        accelerator: Accelerator,
        timeout_s: float,
    ):
        self.model = model
        self.optimizers = optimizers
        self.scaler: Any = accelerator.scaler
        self.average = MovingAverage(model, ema_decay) if ema_decay else None
        self.carry = Carry()
        self.copies = checkpoint.CpuCopies()
        self._saved_carry: Tensors = {}
        self.progress = Progress(ranks=accelerator.num_processes)
        self.is_sharded = launch.is_sharded(accelerator)
        self._is_norm_checked = accelerator.num_processes == 1
        if self.is_sharded:
            from ensemble.neural import sharded

            self._writer_group = sharded.writer_group(timeout_s)
        self._accelerator = accelerator
        updated = {id(parameter) for optimizer in optimizers for parameter in checkpoint.parameters_of(optimizer)}
        # The scaler unscales the gradients of these only
        self._parameters = [p for p in model.parameters() if p.requires_grad and id(p) in updated]
        self._peak_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    def backward(self, loss: torch.Tensor) -> None:
        if loss.dim():
            returned = f"losses of the shape {tuple(loss.shape)} instead of their sum"
            raise UserError(f"`step` of the recipe returns {returned}: return losses.sum()")
        (self.scaler.scale(loss) if self.scaler else loss).backward()  # as accelerator.backward, which costs twice as much

    def gradient_norm(self) -> torch.Tensor:
        """Unscale the gradients, and return their global norm, the same on every rank."""
        if isinstance(self.model, torch.nn.parallel.DistributedDataParallel):
            self._check_summed(self.model)
        if self.is_sharded and self._accelerator.num_processes > 1:
            # FSDP leaves out gradients that a rank lacks, and would silently add those of other parameters of the same size
            named = self._unwrapped().named_parameters()
            if unused := [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]:
                raise without_gradient(unused, " for some rows")
        if self.scaler:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        if not self._is_norm_checked:
            self._is_norm_checked = self._check_equality(norm)
        return norm

    def _check_summed(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        """`UserError` if a parameter had no gradient in the last pass, so that DDP did not sum those of all ranks."""
        try:
            model._check_reducer_finalized()
        except RuntimeError as error:
            if not (numbers := re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))):
                raise
            names = [name for name, parameter in self._unwrapped().named_parameters() if parameter.requires_grad]
            raise without_gradient([names[int(number)] for number in numbers[1].split()], " for some rows") from None

    def _check_equality(self, norm: torch.Tensor) -> bool:
        """`UserError` if the gradients' norm, or a buffer that checkpoints contain, depends on the rank; collective.

        Returns whether the norms of all ranks could be compared: the first gradients often overflow in fp16.
        """
        model = self._unwrapped()
        in_checkpoints = model.state_dict().keys()
        buffers = {
            name: torch.view_as_real(buffer.resolve_conj()) if buffer.is_complex() else buffer
            for name, buffer in model.named_buffers()
            if name in in_checkpoints
        }
        if self.is_sharded:  # it is computed from the shards of all ranks, so it cannot differ
            norm = torch.zeros((), device=self._accelerator.device)
        norm = norm.detach().double().nan_to_num(torch.inf, torch.inf)  # Gloo's maximum may ignore a NaN
        sums = [tensor.double().nan_to_num().sum().to(norm.device) for tensor in buffers.values()]
        values = torch.stack([norm, *sums])
        extremes = torch.stack([values, -values])
        torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX)
        differences, sizes = extremes.sum(0), extremes.abs().amax(0)  # of each value: largest minus smallest, magnitude
        if differences[0] > 1e-3 * sizes[0]:
            raise UserError(
                "the gradients differ between the processes after they were summed: `step` of the recipe must call the "
                "model that it is given, and no other reference to it"
            )
        for name, difference, size in zip(buffers, differences[1:], sizes[1:], strict=True):
            if difference > 1e-6 * size:
                raise UserError(
                    f"the buffer '{name}' of the model differs between the processes, since each has other rows, and "
                    "checkpoints have only that of rank 0: let it not depend on the rows, or train with one process"
                )
        return bool(extremes[:, 0].isfinite().all())

    def update(self, factor: float, rate_scale: float) -> None:
        """One step of every optimizer with gradients × `factor` and peak learning rates × `rate_scale`."""
        if factor != 1.0:
            torch._foreach_mul_([p.grad for p in self._parameters if p.grad is not None], factor)
        for optimizer, peak_rates in zip(self.optimizers, self._peak_rates, strict=True):
            for group, peak_rate in zip(optimizer.param_groups, peak_rates, strict=True):
                group["lr"] = peak_rate * rate_scale
            # Without any gradient, the scaler's step ends in an assertion
            if self.scaler and any(parameter.grad is not None for parameter in checkpoint.parameters_of(optimizer)):
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        self.progress.updates += 1
        if self.average:
            self.average.update(self.progress.updates)
        self.carry.commit()

    def end_step(self) -> None:
        """Clear the gradients and the carried state of a skipped step, and adapt the loss scale of fp16."""
        self.model.zero_grad()  # also of parameters that no optimizer has
        if self.scaler:
            self.scaler.update()
        self.carry.discard()

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Use the moving average, if there is one, as the weights of the model inside the context."""
        return self.average.applied() if self.average else nullcontext()

    def weights(self) -> Tensors:
        """A copy of the weights on the CPU of the main process, {} on other ranks; collective."""
        weights = self._unwrapped().state_dict()
        if self.is_sharded:
            from ensemble.neural import sharded

            return sharded.gather(weights)
        return self.copies.copy(weights) if self._accelerator.is_main_process else {}

    def weights_writer(self, folder: Path, description: dict[str, Any]) -> Callable[[], None]:
        """Copy the weights (collective), and return a function that writes them, on the main process, in any thread."""
        weights = self.weights()

        def write() -> None:
            if self._accelerator.is_main_process:
                checkpoint.write(folder, weights, description)
                if not self.is_sharded:  # otherwise they were gathered, and are not in `copies`
                    self.copies.release(weights)

        return write

    def checkpoint_writer(self, folder: Path, run_description: dict[str, Any]) -> Callable[[], None]:
        """Copy the training state, and return a function that writes the copy, in any thread.

        Collective. If the weights are sharded, the returned function is collective too: all ranks must call the functions of
        several checkpoints in the same order.
        """
        tensors, (moments, optimizers) = self._states_of_ranks(), self._moments()
        description = {
            **run_description,
            "progress": dataclasses.asdict(self.progress),
            "optimizers": optimizers,
            "has_average": self.average is not None,
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }
        if self.is_sharded:
            weights = self.copies.copy({**self._unwrapped().state_dict(), **moments})
        else:
            tensors, weights = {**tensors, **moments}, self.weights()
        tensors = self.copies.copy(tensors) if self._accelerator.is_main_process else {}

        def write() -> None:
            if self.is_sharded:
                from ensemble.neural import sharded

                sharded.write(folder, weights, description, tensors, self._writer_group)
            elif self._accelerator.is_main_process:
                checkpoint.write(folder, weights, description, tensors)
            self.copies.release({**weights, **tensors})

        return write

    def restore(self, folder: Path, seed: int, override: bool) -> None:
        """Restore everything but the carried state (see `restore_carry`) from a checkpoint.

        On another number of ranks the random states are seeded anew. With `override`, the optimizers keep their present
        settings instead of those in the checkpoint.
        """
        description, tensors = checkpoint.read(folder)
        self.restore_weights(folder, description, tensors, override)
        self.progress, num_ranks = Progress(**description["progress"]), self._accelerator.num_processes
        rank, device = self._accelerator.process_index, self._accelerator.device
        random_states = checkpoint.with_prefix(f"rank{rank}.", tensors)
        if self.progress.ranks == num_ranks:
            torch.set_rng_state(random_states["random.cpu"])
            if "random.cuda" in random_states and device.type == "cuda":
                torch.cuda.set_rng_state(random_states["random.cuda"], device)
        else:
            torch.manual_seed(((seed * 1_000_003 + self.progress.step) * 1_000_003 + rank) % 2**63)
        self.progress.ranks = num_ranks
        self._saved_carry = checkpoint.with_prefix("carry.", tensors)

    def restore_carry(self, plan: BatchPlan) -> None:
        """Restore the carried state of the checkpoint, once the size of micro-batches that fits into memory is known."""
        self.carry.restore(self._saved_carry, plan, self._accelerator.device)
        self._saved_carry = {}

    def restore_weights(self, folder: Path, description: dict[str, Any], tensors: Tensors, override: bool = False) -> None:
        """Restore weights, moving average, optimizers and loss scaler, but not the progress; used after a loss spike too."""
        optimizers = description["optimizers"]
        if len(optimizers) != len(self.optimizers):
            counts = f"{len(optimizers)} optimizers, not {len(self.optimizers)}"
            raise UserError(f"{folder} was written with {counts}: it belongs to another recipe")
        restored = [number for number, saved in enumerate(optimizers) if self._has_parameters(number, saved)]
        has_other_parameters = len(restored) < len(optimizers)
        if override:
            groups = [optimizer.state_dict()["param_groups"] for optimizer in self.optimizers]
            optimizers = [{**saved, "groups": now} for saved, now in zip(optimizers, groups, strict=True)]
        averages = self._averages() if description["has_average"] and not has_other_parameters else {}
        if self.is_sharded or checkpoint.is_sharded(folder):
            from ensemble.neural import sharded

            sharded.load(folder, self._unwrapped(), self.optimizers, averages, optimizers, restored)
        else:
            checkpoint.load_weights(folder, self._unwrapped())
            for number in restored:
                checkpoint.restore_optimizer(self.optimizers[number], f"optimizer{number}", tensors, optimizers[number])
            for name, average in averages.items():
                average.copy_(tensors[name])
        if has_other_parameters and not override:  # after the weights, whose error explains more
            fix = "train the same ones, or add --resume-override, with which optimizers begin anew"
            raise UserError(f"{folder} was written while other parameters were trained: {fix}")
        if has_other_parameters and self._accelerator.is_main_process:
            print("other parameters are trained than before: optimizers and moving average of the weights begin anew")
        for number in set(range(len(self.optimizers))) - set(restored):
            self.optimizers[number].state.clear()
        if self.average and not averages:
            self.average.reset()
        if self.scaler and description["scaler"]:
            self.scaler.load_state_dict(description["scaler"])

    def _names(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """The names of the parameters of each group."""
        names = {id(parameter): name for name, parameter in self._unwrapped().named_parameters()}
        return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]

    def _has_parameters(self, number: int, saved: dict[str, Any]) -> bool:
        """Whether an optimizer has the parameters of the one that `saved` describes. Moments are stored by the position of
        their parameter."""
        names = self._names(self.optimizers[number])
        sizes = [len(group["params"]) for group in saved["groups"]]
        return saved.get("names", names) == names and sizes == list(map(len, names))

    def _unwrapped(self) -> torch.nn.Module:
        return self._accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _states_of_ranks(self) -> Tensors:
        """The random states and carried states of all ranks, not copied; collective."""
        from accelerate.utils import gather_object

        rank, device = self._accelerator.process_index, self._accelerator.device
        own = {f"rank{rank}.random.cpu": torch.get_rng_state()}
        if device.type == "cuda":
            own[f"rank{rank}.random.cuda"] = torch.cuda.get_rng_state(device)
        own |= {f"carry.{name}": tensor.cpu() for name, tensor in self.carry.tensors().items()}
        return {name: tensor for state in gather_object([own]) for name, tensor in state.items()}

    def _moments(self) -> tuple[Tensors, list[dict[str, Any]]]:
        """The tensors of moving average and optimizers, not copied, and the JSON of each optimizer."""
        tensors, descriptions = self._averages(), []
        for number, optimizer in enumerate(self.optimizers):
            optimizer_tensors, description = checkpoint.flatten_optimizer(optimizer, f"optimizer{number}")
            tensors |= optimizer_tensors
            descriptions.append({**description, "names": self._names(optimizer)})
        return tensors, descriptions

    def _averages(self) -> Tensors:
        averages = self.average.average if self.average else []
        return {f"average.{number}": tensor for number, tensor in enumerate(averages)}
