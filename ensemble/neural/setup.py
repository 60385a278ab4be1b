"""What a training consists of on one rank, and how it is set up: started anew, or resumed from a checkpoint."""

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ensemble import configuration
from ensemble.neural import checkpoint, guards, launch, loader_tuning, preflight, profiling, runs, speed
from ensemble.neural.heartbeat import Heartbeat
from ensemble.neural.loader import BatchPlan, Feed, Rows
from ensemble.neural.meter import Meter, undisturbed
from ensemble.neural.optim import peak_learning_rate
from ensemble.neural.settings import TrainConfig, check, settle
from ensemble.neural.tracking import Tracker, require_installed
from ensemble.neural.training_state import Progress, TrainingState
from ensemble.recipe import NeuralRecipe
from ensemble.signals import StopSignals

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One training on one rank; the functions of loop.py take it."""

    recipe: NeuralRecipe
    config: TrainConfig
    accelerator: "Accelerator"
    about: dict[str, Any]
    """What a checkpoint says of the run it is of."""
    rows: Rows
    """Of the training split."""
    plan: BatchPlan
    model: torch.nn.Module
    num_parameters: int
    state: TrainingState
    autocast: Callable[[], AbstractContextManager[Any]]
    feed: Feed
    stop: StopSignals
    heart: Heartbeat
    spikes: guards.SpikeWatch
    tracker: Tracker
    meter: Meter
    writer: checkpoint.Writer
    profiler: Any
    began: float
    """By the monotonic clock; of a resumed run, as if it had never been interrupted."""

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    @property
    def progress(self) -> Progress:
        return self.state.progress

    @property
    def num_steps(self) -> int:
        planned = self.progress.planned_steps if self.config.max_seconds else 0
        return planned or _num_steps(self.config, self.plan)

    def keep_deadline(self) -> None:
        """With `max_seconds`, let the last step be the last that fits, as the main process measures it; collective."""
        at, limit = self.progress.step, self.config.max_seconds
        if not limit or (at % self.config.log_every and at % self.evaluation_steps):
            return
        taken = time.monotonic() - self.began
        fits = int((limit - taken - self.progress.evaluation_seconds) / (taken / at)) if taken else math.inf
        planned = int(max(at, min(at + fits, _num_steps(self.config, self.plan))))
        self.progress.planned_steps = launch.from_main_process(self.accelerator, planned)

    @property
    def evaluation_steps(self) -> int:
        return max(1, self.plan.steps_per_epoch // self.config.evaluations_per_epoch)

    @property
    def checkpoint_steps(self) -> int:
        return self.config.checkpoint_steps or self.evaluation_steps

    @property
    def is_finished(self) -> bool:
        return self.progress.step >= self.num_steps or self.progress.evaluations_since_best >= self.config.patience


def set_up(
    recipe: NeuralRecipe,
    config: TrainConfig,
    accelerator: "Accelerator",
    stack: ExitStack,
    resume: str,
    override: bool,
    profile: bool,
) -> Training:
    """Model, optimizers and data of a run that starts or goes on; `stack` closes what is opened here."""
    config = settle(recipe, config)
    check(config)
    out, rows = Path(config.out), recipe.rows("train")
    plan = preflight.make_plan(rows, config, accelerator)
    preflight.refuse_too_large(recipe, config, plan, accelerator)
    torch.manual_seed(config.seed)  # the same initial weights on every rank and number of ranks
    model = recipe.model()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizers = recipe.optimizers(model, peak_learning_rate(config), config.weight_decay)
    flops, peak = preflight.flops(recipe, model, plan, accelerator)
    if config.compile:
        speed.compile_model(model, accelerator.device)
    model, *prepared = accelerator.prepare(model, *optimizers)
    speed.leave_buffers(model)
    # Accelerate's wrapper searches for a library at every step; what else it does, the training state does
    state = TrainingState(model, [wrapper.optimizer for wrapper in prepared], config.ema_decay, accelerator)
    torch.manual_seed(config.seed * 1_000_003 + accelerator.process_index)  # dropout differs by rank

    about: dict[str, Any] = {
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "inputs": recipe.inputs,
        "config": {**configuration.to_dict(config), "precision": accelerator.mixed_precision},
    }
    require_installed(config.trackers)
    # Before the run says that it is running, on any rank: from then on a job passes its warnings on
    stop = stack.enter_context(StopSignals())
    resumed_from = runs.open_run(out, about, accelerator, resume, override)
    stack.enter_context(runs.failure_marked(out, accelerator))
    if resumed_from:
        state.restore(resumed_from, plan.num_ranks, config.seed, override)
        if not (out / "best").exists():  # of a run that branches off another
            state.progress.forget_best()
    progress = state.progress
    if progress.rollback_step and not checkpoint.of_step(out, progress.rollback_step).exists():  # likewise
        progress.rollback_step = progress.step
    autocast = nullcontext if accelerator.mixed_precision == "no" else accelerator.autocast
    began, num_steps = time.monotonic() - progress.seconds, _num_steps(config, plan)
    heart = stack.enter_context(Heartbeat.of(accelerator, config.timeout_s, out, partial(runs.mark_lost, out)))
    is_main, evaluated = accelerator.is_main_process, progress.evaluated_step
    tracker = Tracker(out, is_main, num_steps, progress.step, config.trackers, about["config"], evaluated)
    stack.enter_context(closing(tracker))

    def try_once(plan: BatchPlan, together: bool = False) -> None:
        """Forward and backward of one micro-batch, without a trace; they wait for nobody, or all ranks take part."""
        batch = preflight.largest_batch(rows, plan, accelerator)
        with nullcontext() if together else accelerator.no_sync(model), autocast():
            state.backward(recipe.step(model, batch, None)[0])

    if not state.is_sharded:  # whose forward pass gathers weights, so that one rank cannot try alone
        plan = guards.fit_micro_batch(plan, try_once, model, state.optimizers, accelerator, tracker.say)
        if plan.num_ranks > 1:
            # With three ranks or more, a sum's last bits depend on where in a bucket it lies, and DDP lays its buckets
            # anew after the first pass: so that one comes before the first step, in a run that goes on as in any other
            with undisturbed(model):
                try_once(plan, together=True)
            model.zero_grad()
    state.cut_carry(plan)
    workers = config.num_workers, config.prefetch_factor
    if config.loader == "auto":
        chosen = loader_tuning.choose(rows, plan, accelerator.device, tracker.say)
        workers = launch.from_main_process(accelerator, chosen)
    micro_batches = plan.micro_batches(progress.step, num_steps)
    options = dict(zip(("num_workers", "prefetch_factor"), workers, strict=True))
    feed = stack.enter_context(Feed(rows, micro_batches, device=accelerator.device, **options))
    tracker.say(
        f"{recipe.name}: {plan.num_rows:,} rows, {num_parameters:,} parameters, {num_steps} steps of {plan.algebra}, "
        f"on {accelerator.device}, precision {accelerator.mixed_precision}"
    )
    return Training(
        recipe=recipe,
        config=config,
        accelerator=accelerator,
        about=about,
        rows=rows,
        plan=plan,
        model=model,
        num_parameters=num_parameters,
        state=state,
        autocast=autocast,
        feed=feed,
        stop=stop,
        heart=heart,
        spikes=guards.SpikeWatch(config.spike_factor, progress.recent_losses),
        tracker=tracker,
        meter=Meter(feed, accelerator.num_processes, flops, peak),
        writer=stack.enter_context(checkpoint.Writer()),
        profiler=stack.enter_context(profiling.profile(out, profile, accelerator.process_index, tracker.say)),
        began=began,
    )


def _num_steps(config: TrainConfig, plan: BatchPlan) -> int:
    return math.ceil(config.max_epochs * plan.steps_per_epoch)
