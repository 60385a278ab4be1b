"""The training loop, shared by all recipes, of which it uses only the `NeuralRecipe` protocol.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers data=… out=…

`train` sets up the training (setup.py), then for each global batch calls `step` (forward, backward, all-reduce) and `update`
(the optimizers, or a skip or rollback), and where they are due `evaluate` and `save`.

The loss of a step is the sum of the losses of all ranks and micro-batches, divided by the sum of their counts. So the
gradient does not depend on how the batch is divided. runs.py lists the files in the folder of a run.
"""

import dataclasses
import math
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import checkpoint, evaluation, guards, runs
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.loader import MicroBatch
from ensemble.neural.optim import learning_rate_scale, peak_learning_rate
from ensemble.neural.settings import TrainConfig
from ensemble.neural.setup import Training, set_up
from ensemble.recipe import NeuralRecipe


def train(
    recipe: NeuralRecipe,
    config: TrainConfig,
    accelerator: Accelerator,
    resume: str = "",
    override: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Train and return the summary. `resume` and `override` are as in `runs.open_run`; `profile` writes a trace."""
    with ExitStack() as stack:
        run = set_up(recipe, config, accelerator, stack, resume, override, profile)
        config, progress = run.config, run.progress
        is_due = progress.step % run.evaluation_steps == 0 and progress.evaluated_step < progress.step
        if progress.step and (is_due or (run.is_finished and progress.best_score is None)):
            evaluate(run)  # the run was preempted before this evaluation, or starts from the last checkpoint of another run
        finished, preempted = run.is_finished, False
        run.model.train()
        while not (finished or preempted):
            result = step(run)
            update(run, result)
            num_done = progress.step
            run.plan_for_deadline(result.is_out_of_time)
            run.meter.add(run.plan.batch_length(result.last.step))
            run.writer.check()
            run.profiler.step()
            run.tracker.advance(run.num_steps)
            if num_done % config.log_every == 0 or num_done == run.num_steps:
                values = {"loss": result.loss, "learning_rate": peak_learning_rate(config) * result.rate_scale}
                run.tracker.metrics("train", num_done, {**values, "gradient_norm": result.norm, **run.meter.read()})

            preempted = result.num_stop_requests > 0 and num_done < run.num_steps
            evaluation_due = not preempted and (num_done % run.evaluation_steps == 0 or num_done == run.num_steps)
            if evaluation_due:
                evaluate(run)
                finished = run.is_finished
            if preempted or finished or num_done % run.checkpoint_steps == 0:
                save(run)
        return _finish(run, preempted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of forward and backward of a global batch; all but the first three fields are equal on all ranks."""

    last: MicroBatch
    """This rank's last micro-batch."""
    rows: list[np.ndarray]
    """The row numbers of each of this rank's micro-batches, without idle ones."""
    own_loss_sum: torch.Tensor
    """This rank's sum of losses."""
    loss: float
    """The sum of losses divided by the count that the recipe returned; NaN if only the count is 0, or both in step 0."""
    norm: float
    """The norm of the gradient of `loss`."""
    correction: float
    """The factor that turns the accumulated gradients into those of `loss`."""
    rate_scale: float
    """The learning rate divided by its peak."""
    num_stop_requests: int
    """The number of ranks that received a stop signal."""
    is_out_of_time: bool
    """Whether `max_seconds` leaves the main process at most the time of an evaluation."""


def step(run: Training) -> StepResult:
    """Run forward and backward for the next global batch, and sum losses and gradients over ranks."""
    state, plan, accelerator = run.state, run.plan, run.accelerator
    totals = torch.zeros(4, dtype=torch.float64, device=accelerator.device)
    total_loss, total_count, num_stop_requests, is_late = totals.unbind()  # views
    rows: list[np.ndarray] = []
    for micro, batch in run.feed:
        run.heartbeat.beat(micro.step)
        # Gradients are all-reduced only in the last micro-batch of a step; the totals during its backward pass
        with nullcontext() if micro.is_last_of_step else accelerator.no_sync(run.model):
            with run.autocast():
                loss_sum, count, carried = run.recipe.step(run.model, batch, state.carry.take(micro))
            if not micro.idle:
                total_loss += loss_sum.detach()
                total_count += count
                rows.append(micro.rows)
                state.carry.put(micro, carried)
            if micro.is_last_of_step:
                num_stop_requests.fill_(bool(run.stop_signals.received))
                is_late.fill_(accelerator.is_main_process and run.is_late)
                own_loss_sum = total_loss.clone()
                if plan.num_ranks > 1:
                    reduction = torch.distributed.all_reduce(totals, async_op=True)
            # The factor num_ranks turns DDP's mean over ranks into a sum; an idle rank contributes zeros
            state.backward(loss_sum * (0.0 if micro.idle else plan.num_ranks / plan.batch_size))
        if micro.is_last_of_step:
            break
    if plan.num_ranks > 1:
        reduction.wait()
    norm_of_sum = state.gradient_norm()
    global_loss_sum, global_count, total_stop_requests, is_out_of_time = totals.tolist()
    global_count = global_count or (1.0 if run.progress.step and not global_loss_sum else math.nan)  # all rows weigh 0
    # The gradients were divided by the nominal batch size, since the count was not known before
    correction = plan.batch_size / global_count
    run.progress.step = micro.step + 1
    return StepResult(
        last=micro,
        rows=rows,
        own_loss_sum=own_loss_sum,
        loss=global_loss_sum / global_count,
        norm=float(norm_of_sum) * correction,
        correction=correction,
        rate_scale=learning_rate_scale(run.config, run.progress.updates + 1, run.num_steps),
        num_stop_requests=int(total_stop_requests),
        is_out_of_time=bool(is_out_of_time),
    )


def update(run: Training, result: StepResult) -> None:
    """Update the weights; or skip a loss or gradient that is not finite, roll back after a spike, or raise `UserError`."""
    config, state, progress, num_done = run.config, run.state, run.progress, run.progress.step
    loss, norm = result.loss, result.norm
    if math.isfinite(loss) and not math.isfinite(norm) and state.scaler and state.scaler.get_scale() >= 1:
        # The gradients may have overflowed because of the loss scale, which the scaler then lowers by itself
        run.tracker.event(num_done, f"skipped: fp16 overflowed at a loss scale of {state.scaler.get_scale():g}")
    elif not math.isfinite(loss + norm):
        gather, own_is_finite = partial(run.rows.gather, epoch=result.last.epoch), bool(result.own_loss_sum.isfinite())
        report = guards.report_nonfinite(run.accelerator, run.out, num_done, result.rows, gather, own_is_finite, loss, norm)
        progress.skipped += 1
        if config.nonfinite == "stop":
            raise UserError(f"{report} or nonfinite=skip")
        if progress.skipped > config.max_nonfinite:
            raise UserError(f"{report} (max_nonfinite={config.max_nonfinite} batches were skipped before)")
        run.tracker.event(num_done, report)
    elif run.spike_detector.is_spike(loss) and progress.rollback_step:
        progress.rollbacks += 1
        sentence = f"the loss rose to {loss:.4g} at step {num_done}, over {config.spike_factor:g} times its recent median"
        if progress.rollbacks > config.max_rollbacks:
            raise UserError(f"{sentence}, after {config.max_rollbacks} rollbacks: lower learning_rate")
        folder = checkpoint.step_folder(run.out, progress.rollback_step)
        run.writer.wait()
        run.accelerator.wait_for_everyone()
        description, tensors = checkpoint.read(folder)
        # Settings may have changed since then by --resume-override: the optimizers keep the present ones
        is_other = description["config"] != folders.read_json(run.out / "config.json")
        state.restore_weights(folder, description, tensors, override=is_other)
        run.tracker.event(num_done, f"{sentence}: back to the weights of step {progress.rollback_step}")
    else:
        clip = min(1.0, config.clip_norm / (norm + 1e-6)) if config.clip_norm else 1.0
        state.update(result.correction * clip, result.rate_scale)
    state.end_step()


def evaluate(run: Training) -> None:
    """Score the validation split, and store the weights in best/ if the score is the best so far.

    If there is a moving average of the weights, it is scored and stored instead of them. Does nothing for a recipe with an
    empty `monitor`, which has no rows to validate on (refit.py).
    """
    recipe, progress, start = run.recipe, run.progress, time.monotonic()
    if not recipe.monitor:
        return
    progress.evaluated_step = progress.step
    progress.evaluations_since_best += progress.step > progress.best_step  # not for those that a resumed run repeats
    with run.meter.paused(), run.state.averaged_weights():
        scores = evaluation.score(recipe, run.model, "validation", run.plan.micro_batch_size, run.accelerator)
        if recipe.monitor not in scores:
            raise UserError(f"the metrics {', '.join(scores)} lack monitor={recipe.monitor} of the recipe {recipe.name}")
        monitored, best = scores[recipe.monitor], progress.best_score
        if not math.isfinite(monitored):
            raise UserError(
                f"{recipe.monitor} of the validation split is {monitored} at step {progress.step}, but it must be finite to "
                "compare models: prepare data with a validation split on which it is defined; if the predictions are not "
                f"finite, lower learning_rate={run.config.learning_rate}"
            )
        run.tracker.metrics("val", progress.step, scores)
        if best is None or (monitored > best if recipe.higher_is_better else monitored < best):
            progress.best_score, progress.best_step = monitored, progress.step
            progress.evaluations_since_best = 0
            _write_weights(run, "best", scores)
    progress.evaluation_seconds = time.monotonic() - start
    run.model.train()


def save(run: Training) -> None:
    """Write a checkpoint to resume from: the state is copied now, and written in the background."""
    state, progress, writer = run.state, run.progress, run.writer
    if progress.step % run.checkpoint_steps == 0:
        progress.rollback_step = progress.step
    progress.seconds = round(time.monotonic() - run.start_time, 1)
    folder = checkpoint.step_folder(run.out, progress.step)
    with run.meter.paused():
        writer.submit(state.checkpoint_writer(folder, run.description))
        if run.accelerator.is_main_process:
            needed = progress.rollback_step if run.config.spike_factor else 0
            writer.submit(lambda: checkpoint.prune(run.out, run.config.keep_last, run.config.keep_steps, needed))


def _write_weights(run: Training, name: str, scores: dict[str, float]) -> None:
    description = {**run.description, "step": run.progress.step, "scores": scores}
    run.writer.submit(run.state.weights_writer(run.out / name, description))


def _finish(run: Training, preempted: bool) -> dict[str, Any]:
    """Write final/, unless the run was preempted, and summary.json; returns the summary."""
    recipe, accelerator, progress = run.recipe, run.accelerator, run.progress
    if not preempted:
        run.explain_end()
        with run.state.averaged_weights():
            _write_weights(run, "final", {})
    run.writer.wait()
    summary = {
        "kind": "neural",
        "status": "preempted" if preempted else "running" if run.config.refit_epochs else "done",  # a refit follows
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "parameters": run.num_parameters,
        **run.hardware,
        "seconds": progress.seconds,
        "steps": progress.step,
        "skipped": progress.skipped,
        "best_step": progress.best_step,
        "higher_is_better": recipe.higher_is_better,
        **({f"validation_{recipe.monitor}": progress.best_score} if recipe.monitor else {}),
    }
    if accelerator.is_main_process:
        folders.write_json(run.out / "summary.json", summary)
        if preempted or not run.config.refit_epochs:
            runs.end(run.out, summary["status"])
    accelerator.wait_for_everyone()
    run.heartbeat.finish()
    return summary
