"""The one training loop, shared by every recipe; it knows nothing but the recipe's protocol.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers data=… out=…

`train` reads from top to bottom: set up (setup.py), then for each global batch `step` (forward, backward, all-reduce) and
`update` (the optimizers, or a verdict that the step is not to be taken), then `evaluate` and `save` where they are due.

The loss of a step is a sum over its global batch divided by the global count, over ranks and micro-batches: the gradient
does not depend on how the batch was cut. runs.py lists the files that a run leaves in its folder.
"""

import dataclasses
import math
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import checkpoint, evaluation, guards, runs
from ensemble.neural.loader import MicroBatch
from ensemble.neural.optim import learning_rate_scale, peak_learning_rate
from ensemble.neural.settings import TrainConfig
from ensemble.neural.setup import Training, set_up
from ensemble.recipe import NeuralRecipe

if TYPE_CHECKING:
    from accelerate import Accelerator


def train(
    recipe: NeuralRecipe,
    config: TrainConfig,
    accelerator: "Accelerator",
    resume: str = "",
    override: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Train, and return the summary. `resume` and `override` are those of `runs.open_run`; `profile` writes a trace."""
    with ExitStack() as stack:
        run = set_up(recipe, config, accelerator, stack, resume, override, profile)
        config, progress = run.config, run.progress
        if progress.step and progress.step % run.evaluation_steps == 0 and progress.evaluated_step < progress.step:
            evaluate(run)  # the run was asked to stop before it could
        finished, preempted = run.is_finished, False
        run.model.train()
        while not (finished or preempted):
            taken = step(run)
            update(run, taken)
            at = progress.step
            run.keep_deadline()
            run.meter.add(run.plan.length_of(taken.last.step))
            run.writer.check()
            run.profiler.step()
            run.tracker.advance()
            if at % config.log_every == 0 or at == run.num_steps:
                figures = {"loss": taken.loss, "learning_rate": peak_learning_rate(config) * taken.rate_scale}
                run.tracker.train(at, {**figures, "gradient_norm": taken.norm, **run.meter.read()})

            preempted = taken.num_asked_to_stop > 0 and at < run.num_steps
            is_scored = not preempted and (at % run.evaluation_steps == 0 or at == run.num_steps)
            if preempted or is_scored or at % run.checkpoint_steps == 0:
                with run.meter.paused():
                    if is_scored:
                        evaluate(run)
                        finished = run.is_finished
                    if preempted or finished or at % run.checkpoint_steps == 0:
                        save(run)
        return _end(run, preempted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A global batch after its backward pass; the same on every rank, but for `last`, `rows` and `own_loss_sum`."""

    last: MicroBatch
    rows: list[np.ndarray]
    """This rank's, by micro-batch."""
    own_loss_sum: torch.Tensor
    loss: float
    """The sum of the losses over the number of things summed; NaN if nothing was."""
    norm: float
    """Of the gradient of `loss`."""
    correction: float
    """The gradients are those of `loss` when they are multiplied by this."""
    rate_scale: float
    """The learning rate over its peak."""
    num_asked_to_stop: int
    """Ranks that have been sent a signal."""


def step(run: Training) -> Step:
    """Take the next global batch through the model, forward and backward, and sum losses and gradients over ranks."""
    state, plan, accelerator = run.state, run.plan, run.accelerator
    totals = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    total_loss, total_count, ranks_asked = totals.unbind()  # views
    rows_of_step: list[np.ndarray] = []
    for micro, batch in run.feed:
        run.heart.beat(micro.step)
        # Gradients are all-reduced after the last micro-batch of a step only, and the totals while that goes backward
        with nullcontext() if micro.is_last_of_step else accelerator.no_sync(run.model):
            with run.autocast():
                loss_sum, count, carried = run.recipe.step(run.model, batch, state.carry.take(micro))
            if not micro.idle:
                total_loss += loss_sum.detach()
                total_count += count
                rows_of_step.append(micro.rows)
                state.carry.put(micro, carried)
            if micro.is_last_of_step:
                ranks_asked.fill_(bool(run.stop.asked))
                own_loss_sum = total_loss.clone()
                if plan.num_ranks > 1:
                    reduction = torch.distributed.all_reduce(totals, async_op=True)
            # DDP averages over ranks, and a sum is wanted; a rank without a row takes part, and counts for nothing
            state.backward(loss_sum * (0.0 if micro.idle else plan.num_ranks / plan.batch_size))
        if micro.is_last_of_step:
            break
    if plan.num_ranks > 1:
        reduction.wait()
    norm_of_sum = state.gradient_norm()
    loss_sum_of_all, count_of_all, num_asked = totals.tolist()
    count_of_all = count_of_all or math.nan  # a batch of nothing is not finite
    # The gradients were divided by the nominal batch size; the true count is known only now
    correction = plan.batch_size / count_of_all
    run.progress.step = micro.step + 1
    return Step(
        last=micro,
        rows=rows_of_step,
        own_loss_sum=own_loss_sum,
        loss=loss_sum_of_all / count_of_all,
        norm=float(norm_of_sum) * correction,
        correction=correction,
        rate_scale=learning_rate_scale(run.config, run.progress.updates + 1, run.num_steps),
        num_asked_to_stop=int(num_asked),
    )


def update(run: Training, taken: Step) -> None:
    """Move the weights; or skip a step that is not finite, go back after a loss spike, or raise `UserError`."""
    config, state, progress, at = run.config, run.state, run.progress, run.progress.step
    loss, norm = taken.loss, taken.norm
    if math.isfinite(loss) and not math.isfinite(norm) and state.may_overflow():
        run.tracker.event(at, f"skipped: fp16 overflowed at a loss scale of {state.scaler.get_scale():g}")
    elif not math.isfinite(loss + norm):
        gather, own_is_finite = partial(run.rows.gather, epoch=taken.last.epoch), bool(taken.own_loss_sum.isfinite())
        report = guards.report_nonfinite(run.accelerator, run.out, at, taken.rows, gather, own_is_finite, loss, norm)
        progress.skipped += 1
        if config.nonfinite == "stop" or progress.skipped > config.max_nonfinite:
            raise UserError(report)
        run.tracker.event(at, report)
    elif progress.rollback_step and run.spikes.is_spike(loss):
        progress.rollbacks += 1
        sentence = f"the loss rose to {loss:.4g} at step {at}, over {config.spike_factor:g} times its recent median"
        if progress.rollbacks > config.max_rollbacks:
            raise UserError(f"{sentence}, after {config.max_rollbacks} rollbacks: lower learning_rate")
        folder = checkpoint.of_step(run.out, progress.rollback_step)
        run.writer.wait()
        run.accelerator.wait_for_everyone()
        state.restore_learned(folder, *checkpoint.read(folder))
        run.tracker.event(at, f"{sentence}: back to the weights of step {progress.rollback_step}")
    else:
        clip = min(1.0, config.clip_norm / (norm + 1e-6)) if config.clip_norm else 1.0
        state.update(taken.correction * clip, taken.rate_scale)
    state.end_step()


def evaluate(run: Training) -> None:
    """Score the validation split with the averaged weights, if there are any, and keep the best ones in best/."""
    recipe, progress, began = run.recipe, run.progress, time.monotonic()
    progress.evaluated_step = progress.step
    progress.evaluations_since_best += 1
    with run.state.averaged_weights():
        try:
            scores = evaluation.score(recipe, run.model, "validation", run.plan.micro_batch_size, run.accelerator)
        except evaluation.NotFinite:
            raise UserError(
                f"the predictions are not finite at step {progress.step}: lower learning_rate={run.config.learning_rate}"
            ) from None
        if recipe.monitor not in scores:
            raise UserError(f"the metrics {', '.join(scores)} lack monitor={recipe.monitor} of the recipe {recipe.name}")
        monitored, best = scores[recipe.monitor], progress.best_score
        if not math.isfinite(monitored):
            raise UserError(
                f"{recipe.monitor} of the validation split is {monitored} at step {progress.step}: it cannot tell a better "
                "model from a worse one, so prepare data whose validation split can"
            )
        run.tracker.validation(progress.step, scores)
        if best is None or (monitored > best if recipe.higher_is_better else monitored < best):
            progress.best_score, progress.best_step = monitored, progress.step
            progress.evaluations_since_best = 0
            _keep_weights(run, "best", scores)
    progress.evaluation_seconds = time.monotonic() - began
    run.model.train()


def save(run: Training) -> None:
    """Write a checkpoint to resume from: copied now, written in the background."""
    state, progress, writer = run.state, run.progress, run.writer
    if progress.step % run.checkpoint_steps == 0:
        progress.rollback_step = progress.step
    progress.seconds = round(time.monotonic() - run.began, 1)
    folder = checkpoint.of_step(run.out, progress.step)
    is_main = run.accelerator.is_main_process
    if state.is_sharded:
        writer.wait()
        state.write_sharded(folder, run.about)
    else:
        weights, (tensors, description) = state.weights(), state.snapshot()
        if is_main:
            writer.submit(lambda: checkpoint.write(folder, weights, {**run.about, **description}, tensors))
    if is_main:
        needed = progress.rollback_step if run.config.spike_factor else 0
        writer.submit(lambda: checkpoint.prune(run.out, run.config.keep_last, run.config.keep_steps, needed))


def _keep_weights(run: Training, name: str, scores: dict[str, float]) -> None:
    weights, description = run.state.weights(), {**run.about, "step": run.progress.step, "scores": scores}
    if run.accelerator.is_main_process:
        run.writer.submit(lambda: checkpoint.write(run.out / name, weights, description))


def _end(run: Training, preempted: bool) -> dict[str, Any]:
    """Keep the final weights of a run that was not asked to stop, and write the summary."""
    recipe, accelerator, progress = run.recipe, run.accelerator, run.progress
    if not preempted:
        if progress.step < run.num_steps:
            run.tracker.say(f"no better {recipe.monitor} in {run.config.patience} evaluations: stopped")
        with run.state.averaged_weights():
            _keep_weights(run, "final", {})
    run.writer.wait()
    summary = {
        "kind": "neural",
        "status": "preempted" if preempted else "done",
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "parameters": run.num_parameters,
        "ranks": accelerator.num_processes,
        "device": str(accelerator.device),
        "precision": accelerator.mixed_precision,
        "seconds": progress.seconds,
        "steps": progress.step,
        "skipped": progress.skipped,
        "best_step": progress.best_step,
        "higher_is_better": recipe.higher_is_better,
        f"validation_{recipe.monitor}": progress.best_score,
    }
    if accelerator.is_main_process:
        folders.write_json(run.out / "summary.json", summary)
        runs.set_status(run.out, summary["status"])
        if not preempted:
            runs.seal(run.out)
    accelerator.wait_for_everyone()
    return summary
