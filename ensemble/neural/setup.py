"""The objects of a training on one rank, and their creation: for a new run, or resumed from a checkpoint."""

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from ensemble import configuration, folders
from ensemble.errors import UserError, alike_on_all_ranks
from ensemble.neural import checkpoint, guards, launch, loader_tuning, preflight, profiling, runs, speed
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.heartbeat import Heartbeat
from ensemble.neural.loader import BatchPlan, Feed, Rows, checked_rows
from ensemble.neural.meter import Meter, preserved_state
from ensemble.neural.settings import TrainConfig, check, resolve
from ensemble.neural.tracking import Tracker, require_installed
from ensemble.neural.training_state import Progress, TrainingState, without_gradient
from ensemble.recipe import NeuralRecipe
from ensemble.signals import StopSignals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One training on one rank; the functions of loop.py take it."""

    recipe: NeuralRecipe
    config: TrainConfig
    accelerator: Accelerator
    description: dict[str, Any]
    """Recipe, fingerprint, inputs, config, and the micro-batch size that fits into memory; every checkpoint stores them."""
    rows: Rows
    """The training split."""
    plan: BatchPlan
    model: torch.nn.Module
    state: TrainingState
    autocast: Callable[[], AbstractContextManager[Any]]
    feed: Feed
    stop_signals: StopSignals
    heartbeat: Heartbeat
    spike_detector: guards.SpikeDetector
    tracker: Tracker
    meter: Meter
    writer: checkpoint.BackgroundWriter
    profiler: Any
    start_time: float
    """The start by the monotonic clock, in seconds, minus the duration of the run until the checkpoint that it resumes."""

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    @property
    def progress(self) -> Progress:
        return self.state.progress

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def hardware(self) -> dict[str, Any]:
        """How `accelerate launch` started the training, for summary.json."""
        return {
            "ranks": self.accelerator.num_processes,
            "device": str(self.accelerator.device),
            "precision": self.accelerator.mixed_precision,
            "sharded": self.state.is_sharded,
        }

    @property
    def num_steps(self) -> int:
        planned, most = self.progress.planned_steps, self.plan.num_steps(self.config.max_epochs)
        return min(planned, most) if planned and self.config.max_seconds else most

    @property
    def is_late(self) -> bool:
        """Whether `max_seconds` leaves at most the time of an evaluation."""
        limit_s = self.config.max_seconds
        return bool(limit_s) and time.monotonic() - self.start_time >= limit_s - self.progress.evaluation_seconds

    def plan_for_deadline(self, is_out_of_time: bool) -> None:
        """With `max_seconds`, set the number of steps to those that fit, by the time per step of the main process.

        It does so only before a line of the log and before an evaluation, and is collective then. With `is_out_of_time`,
        this step becomes the last one.
        """
        step, limit_s = self.progress.step, self.config.max_seconds
        if is_out_of_time:
            self.progress.planned_steps = step
            return
        if not limit_s or (step % self.config.log_every and step % self.evaluation_steps):
            return
        elapsed_s = time.monotonic() - self.start_time
        remaining_s = limit_s - elapsed_s - self.progress.evaluation_seconds
        num_more = int(remaining_s / (elapsed_s / step)) if elapsed_s else math.inf
        planned = int(max(step, min(step + num_more, self.plan.num_steps(self.config.max_epochs))))
        self.progress.planned_steps = launch.from_main_process(planned)

    @property
    def evaluation_steps(self) -> int:
        """Steps between evaluations, rounded up: otherwise one more evaluation could follow a few steps after the last."""
        return max(1, math.ceil(self.plan.steps_per_epoch / self.config.evaluations_per_epoch))

    @property
    def checkpoint_steps(self) -> int:
        return self.config.checkpoint_steps or self.evaluation_steps

    @property
    def is_finished(self) -> bool:
        return self.progress.step >= self.num_steps or self.progress.evaluations_since_best >= self.config.patience

    def explain_end(self) -> None:
        """Print why the training ended before all of its epochs, if the user may not expect it."""
        step, warmup_steps = self.progress.step, self.config.warmup_steps
        if step < self.num_steps:
            self.tracker.message(f"no better {self.recipe.monitor} in {self.config.patience} evaluations: stopped")
        elif step < warmup_steps and step < self.plan.num_steps(self.config.max_epochs):
            end = f"max_seconds={self.config.max_seconds:g} ended the training within the warm-up of {warmup_steps=}"
            self.tracker.message(f"{end}: the learning rate ends at {step / warmup_steps:.2g} of its peak")


def set_up(
    recipe: NeuralRecipe,
    config: TrainConfig,
    accelerator: Accelerator,
    stack: ExitStack,
    resume: str,
    override: bool,
    profile: bool,
) -> Training:
    """Create all objects of a new or resumed training; `stack` closes those that must be closed."""
    with alike_on_all_ranks():
        config = resolve(recipe, config)
        check(config)
    out, rows = Path(config.out), recipe.rows("train")
    if recipe.monitor:
        checked_rows(recipe.rows("validation"), "validation")  # now, not after half an epoch
    with alike_on_all_ranks():
        plan = preflight.make_plan(rows, config, accelerator)
    preflight.check_memory(recipe, config, plan, accelerator)
    state, flops = _make_state(recipe, config, plan, accelerator)
    description: dict[str, Any] = {
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "inputs": recipe.inputs,
        "config": {**configuration.to_dict(config), "precision": accelerator.mixed_precision},
    }
    require_installed(config.trackers)
    # On each rank before the status is `running`: from then on a job script forwards signals to the ranks
    stop_signals = stack.enter_context(StopSignals())
    resumed_from = runs.open_run(out, description, accelerator, resume, override, stack)
    stack.enter_context(runs.status_on_error(out, accelerator))
    if resumed_from:
        _restore(state, resumed_from, recipe.monitor, config, override)
    progress = state.progress
    start_time, num_steps = time.monotonic() - progress.seconds, plan.num_steps(config.max_epochs)
    set_lost = partial(runs.mark_lost, out)
    heartbeat = stack.enter_context(Heartbeat.from_accelerator(accelerator, config.timeout_s, out, set_lost))
    steps = (num_steps, progress.step, progress.evaluated_step)
    tracker = Tracker(out, accelerator.is_main_process, *steps, config.trackers, description["config"])
    stack.enter_context(closing(tracker))
    if not state.is_sharded:  # with sharded weights the forward pass itself is collective
        plan = _fit_micro_batch(recipe, rows, plan, state, accelerator, tracker)
        # With config.compile, each size of a batch would be compiled
        if not config.compile and (warning := preflight.mean_instead_of_sum(recipe, state.model, plan, accelerator)):
            tracker.message(warning)
        modules = accelerator.unwrap_model(state.model).named_modules()
        name = next((name for name, module in modules if isinstance(module, BatchNorm)), "")
        if name and plan.accumulation > 1:
            fix = f"use LayerNorm or GroupNorm, or micro_batch_size={plan.batch_size}"
            problem = f"'{name}' normalises with the rows of a micro-batch, so the gradient depends on micro_batch_size="
            tracker.message(f"warning: {problem}{plan.micro_batch_size}: {fix}")
    state.restore_carry(plan)
    feed = stack.enter_context(_feed(rows, plan, config, (progress.step, num_steps), accelerator, tracker))
    training = Training(
        recipe=recipe,
        config=config,
        accelerator=accelerator,
        description={**description, "micro_batch_size": plan.micro_batch_size},
        rows=rows,
        plan=plan,
        model=state.model,
        state=state,
        autocast=nullcontext if accelerator.mixed_precision == "no" else accelerator.autocast,
        feed=feed,
        stop_signals=stop_signals,
        heartbeat=heartbeat,
        spike_detector=guards.SpikeDetector(config.spike_factor, progress.recent_losses),
        tracker=tracker,
        meter=Meter(feed, accelerator.num_processes, *flops),
        writer=stack.enter_context(checkpoint.BackgroundWriter()),
        profiler=stack.enter_context(profiling.profile(out, profile, accelerator.process_index, tracker.message)),
        start_time=start_time,
    )
    tracker.message(
        f"{recipe.name}: {plan.num_rows:,} rows, {training.num_parameters:,} parameters, {num_steps} steps of "
        f"{plan.description}, on {accelerator.device}, precision {accelerator.mixed_precision}"
    )
    if num_steps < config.warmup_steps:
        problem = f"warmup_steps={config.warmup_steps} is more than the {num_steps} steps of this training"
        tracker.message(f"{problem}: the learning rate ends at {num_steps / config.warmup_steps:.2g} of its peak")
    if resumed_from and progress.step == training.num_steps < num_steps:
        before_s = folders.read_json(resumed_from / "state.json")["config"]["max_seconds"]
        if config.max_seconds > before_s:
            end = f"the run ended at step {progress.step} by its earlier max_seconds={before_s:g}"
            tracker.message(f"{end}: max_seconds=0 continues it to step {num_steps}")
    return training


def _restore(state: TrainingState, folder: Path, monitor: str, config: TrainConfig, override: bool) -> None:
    """Restore the state from a checkpoint, which another run may have written. monitor : that of the recipe."""
    state.restore(folder, config.seed, override)
    progress, out = state.progress, Path(config.out)
    if not (out / "best").exists():  # a new run from the checkpoint of another one
        progress.best_score, progress.best_step, progress.evaluations_since_best = None, 0, 0
    else:  # best/ may be newer than the checkpoint: with other settings or ranks it may not be reached again
        best = folders.read_json(out / "best" / "state.json")
        if best["step"] > progress.best_step and monitor in best["scores"]:
            progress.best_score, progress.best_step = best["scores"][monitor], best["step"]
            progress.evaluations_since_best = 0
    if not checkpoint.step_folder(out, progress.rollback_step).exists():  # the new run has a copy of this checkpoint only
        progress.rollback_step = progress.rollback_step and progress.step


def _feed(
    rows: Rows, plan: BatchPlan, config: TrainConfig, steps: tuple[int, int], accelerator: Accelerator, tracker: Tracker
) -> Feed:
    """The batches of a range of steps, loaded as the settings require. steps : the first one, and the one after the last."""
    num_workers, prefetch_factor = config.num_workers, config.prefetch_factor
    if config.loader == "auto":
        chosen = loader_tuning.choose(rows, plan, accelerator.device, tracker.message)
        num_workers, prefetch_factor = launch.from_main_process(chosen)
    return Feed(
        rows,
        plan.micro_batches(*steps),
        device=accelerator.device,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout_s=config.timeout_s,
    )


def _make_state(
    recipe: NeuralRecipe, config: TrainConfig, plan: BatchPlan, accelerator: Accelerator
) -> tuple[TrainingState, tuple[float, float | None]]:
    """Seed the random numbers; return the state, prepared by Accelerate, and FLOPs as in `preflight.flops`."""
    torch.manual_seed(config.seed)  # the same initial weights on every rank
    model = preflight.make_model(recipe)
    refuse_batch_norm(model, accelerator.num_processes, accelerator.device.type)
    optimizers = preflight.make_optimizers(recipe, model, config)
    _refuse_absent_layers(model, accelerator)
    flops = preflight.flops(recipe, model, plan, accelerator)
    if config.compile:
        speed.compile_model(model, accelerator.device)
    model, *prepared = accelerator.prepare(model, *optimizers)
    if accelerator.mixed_precision == "fp8":
        speed.refuse_fp8_without_effect(model)
    speed.disable_buffer_sync(model)
    # Accelerate's wrapper searches for a library at every step; `TrainingState` does its other work
    unwrapped = [wrapper.optimizer for wrapper in prepared]
    state = TrainingState(model, unwrapped, config.ema_decay, accelerator, config.timeout_s)
    torch.manual_seed((config.seed * 1_000_003 + accelerator.process_index) % 2**63)  # dropout differs by rank
    return state, flops


def _refuse_absent_layers(model: torch.nn.Module, accelerator: Accelerator) -> None:
    """`UserError` if the YAML names a class of layers whose weights are gathered together, and the model has none."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    classes = {type(module).__name__ for module in model.modules()}
    for name in (plugin and plugin.transformer_cls_names_to_wrap) or ():
        if name not in classes:
            raise UserError(
                f"fsdp_transformer_layer_cls_to_wrap: {name} in the accelerate YAML: the model has no layer of this class; "
                f"its classes are {', '.join(sorted(classes))}"
            )


def refuse_batch_norm(model: torch.nn.Module, num_ranks: int, device_type: str) -> None:
    """`UserError` for batch normalisation on several ranks: each would have its own running statistics, and a checkpoint
    only those of rank 0. SyncBatchNorm has the same on all ranks, but it works on GPUs only."""
    for name, module in model.named_modules() if num_ranks > 1 else ():
        fix = "use LayerNorm or GroupNorm, or train with one process"
        if isinstance(module, torch.nn.SyncBatchNorm):
            if device_type == "cpu":
                raise UserError(f"'{name}' (SyncBatchNorm) works on GPUs only: {fix}")
        elif isinstance(module, BatchNorm):
            statistics = f"the statistics of '{name}' ({type(module).__name__})"
            raise UserError(f"{statistics} would differ between the {num_ranks} processes: {fix}")


def _fit_micro_batch(
    recipe: NeuralRecipe, rows: Rows, plan: BatchPlan, state: TrainingState, accelerator: Accelerator, tracker: Tracker
) -> BatchPlan:
    """Halve the micro-batch if memory is too small, and make DDP's first pass."""
    model = state.model

    def trial_pass(plan: BatchPlan, synchronised: bool = False) -> None:
        """Forward and backward of the largest micro-batch; without all-reduce unless `synchronised`."""
        batch = preflight.largest_batch(rows, plan, accelerator)
        named = list(accelerator.unwrap_model(model).named_parameters())
        versions = [weight._version for _, weight in named]
        with nullcontext() if synchronised else accelerator.no_sync(model), accelerator.autocast():
            state.backward(preflight.checked_step(recipe.step(model, batch, None))[0])
        preflight.check_pass(named, versions)
        unused = [name for name, weight in named if weight.requires_grad and weight.grad is None]
        if unused and plan.num_ranks > 1:
            raise without_gradient(unused)

    plan = guards.fit_micro_batch(plan, trial_pass, model, state.optimizers, accelerator, tracker.message)
    if plan.num_ranks > 1:
        # With three or more ranks the last bits of a sum depend on its position in a bucket, and DDP rearranges its buckets
        # after the first pass. Doing that pass here gives new and resumed runs the same buckets
        with preserved_state(model):
            trial_pass(plan, synchronised=True)
        model.zero_grad()
    return plan
