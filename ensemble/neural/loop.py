"""The one training loop, shared by every recipe; it knows nothing but the recipe's protocol.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers data=… out=…

The loss of a step is a sum over its global batch divided by the global count, over ranks and micro-batches: the gradient
does not depend on how the batch was cut. What a run leaves in its folder is told in runs.py.
"""

import math
import time
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ensemble import config as configuration
from ensemble.data import manifest
from ensemble.errors import UserError
from ensemble.neural import checkpoint, guards, launch, loader_tuning, profiling, runs, speed, trial
from ensemble.neural.config import TrainConfig, check
from ensemble.neural.heartbeat import Heartbeat
from ensemble.neural.loader import Batch, BatchPlan, Feed, in_order
from ensemble.neural.meter import Meter, undisturbed
from ensemble.neural.optim import learning_rate_scale, peak_learning_rate
from ensemble.neural.recipe import Recipe
from ensemble.neural.tracking import Tracker, require_installed
from ensemble.neural.training_state import TrainingState
from ensemble.signals import StopSignals

if TYPE_CHECKING:
    from accelerate import Accelerator


def train(
    recipe: Recipe,
    config: TrainConfig,
    accelerator: "Accelerator",
    resume: str = "",
    override: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """Train, and return the summary. `resume` and `override` are those of `runs.open_run`; `profile` writes a trace."""
    check(config)
    out, rows = Path(config.out), recipe.rows("train")
    plan = trial.make_plan(rows, config, accelerator)
    num_steps = math.ceil(config.max_epochs * plan.steps_per_epoch)
    evaluation_steps = max(1, plan.steps_per_epoch // config.evaluations_per_epoch)
    checkpoint_steps = config.checkpoint_steps or evaluation_steps

    torch.manual_seed(config.seed)  # the same initial weights on every rank and number of ranks
    model = recipe.model()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizers = recipe.optimizers(model, peak_learning_rate(config), config.weight_decay)
    flops, peak = trial.flops(recipe, model, plan, accelerator)
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
    with ExitStack() as stack:
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
        spikes = guards.SpikeWatch(config.spike_factor, progress.recent_losses)
        began = time.monotonic() - progress.seconds
        heart = stack.enter_context(Heartbeat.of(accelerator, config.timeout_s, out, partial(runs.mark_lost, out)))
        is_main = accelerator.is_main_process
        tracker = Tracker(out, is_main, num_steps, progress.step, config.trackers, about["config"], progress.evaluated_step)
        stack.enter_context(closing(tracker))

        def try_once(plan: BatchPlan, together: bool = False) -> None:
            """Forward and backward of one micro-batch, without a trace; they wait for nobody, or all ranks take part."""
            batch = trial.largest_batch(rows, plan, accelerator)
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
        num_workers, prefetch_factor = config.num_workers, config.prefetch_factor
        if config.loader == "auto":
            chosen = loader_tuning.choose(rows, plan, accelerator.device, tracker.say)
            num_workers, prefetch_factor = launch.from_main_process(accelerator, chosen)
        feed = stack.enter_context(
            Feed(
                rows,
                plan.micro_batches(progress.step, num_steps),
                device=accelerator.device,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
            )
        )
        meter = Meter(feed, accelerator.num_processes, flops, peak)
        writer = stack.enter_context(checkpoint.Writer())
        profiler = stack.enter_context(profiling.profile(out, profile, accelerator.process_index, tracker.say))

        def evaluate() -> None:
            """Score the validation split with the averaged weights, if there are any, and keep the best ones in best/."""
            progress.evaluated_step = progress.step
            progress.evaluations_since_best += 1
            with state.averaged_weights():
                found = predict(recipe, model, "validation", plan.micro_batch_size, accelerator)
                if not np.isfinite(found["prediction"]).all():
                    raise UserError(
                        f"the predictions are not finite at step {progress.step}: lower learning_rate={config.learning_rate}"
                    )
                scores = recipe.metrics(found)
                if not math.isfinite(scores[recipe.monitor]):
                    raise UserError(
                        f"{recipe.monitor} of the validation split is {scores[recipe.monitor]} at step {progress.step}: it "
                        "cannot tell a better model from a worse one, so prepare data whose validation split can"
                    )
                tracker.validation(progress.step, scores)
                if progress.best_score is None or scores[recipe.monitor] > progress.best_score:
                    progress.best_score, progress.best_step = scores[recipe.monitor], progress.step
                    progress.evaluations_since_best = 0
                    keep_weights("best", scores)
            model.train()

        def keep_weights(name: str, scores: dict[str, float]) -> None:
            weights, description = state.weights(), {**about, "step": progress.step, "scores": scores}
            if is_main:
                writer.submit(lambda: checkpoint.write(out / name, weights, description))

        def save(is_due: bool) -> None:
            """A checkpoint to resume from: copied now, written in the background."""
            if is_due:
                progress.rollback_step = progress.step
            progress.seconds = round(time.monotonic() - began, 1)
            folder = checkpoint.of_step(out, progress.step)
            if state.is_sharded:
                writer.wait()
                state.write_sharded(folder, about)
            else:
                weights, (tensors, description) = state.weights(), state.snapshot()
                if is_main:
                    writer.submit(lambda: checkpoint.write(folder, weights, {**about, **description}, tensors))
            if is_main:
                needed = progress.rollback_step if config.spike_factor else 0
                writer.submit(lambda: checkpoint.prune(out, config.keep_last, config.keep_steps, needed))

        def roll_back() -> None:
            folder = checkpoint.of_step(out, progress.rollback_step)
            writer.wait()
            accelerator.wait_for_everyone()
            state.restore_learned(folder, *checkpoint.read(folder))

        tracker.say(
            f"{recipe.name}: {plan.num_rows:,} rows, {num_parameters:,} parameters, {num_steps} steps of {plan.algebra}, "
            f"on {accelerator.device}, precision {accelerator.mixed_precision}"
        )
        if progress.step and progress.step % evaluation_steps == 0 and progress.evaluated_step < progress.step:
            evaluate()  # the run was asked to stop before it could
        finished, preempted = progress.step >= num_steps or progress.evaluations_since_best >= config.patience, False
        model.train()
        totals = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
        total_loss, total_count, ranks_asked = totals.unbind()  # views
        rows_of_step: list[np.ndarray] = []
        for micro, batch in () if finished else feed:
            heart.beat(micro.step)
            # Gradients are all-reduced after the last micro-batch of a step only, and the totals while that goes backward
            with nullcontext() if micro.is_last_of_step else accelerator.no_sync(model):
                with autocast():
                    loss_sum, count, carried = recipe.step(model, batch, state.carry.take(micro))
                if not micro.idle:
                    total_loss += loss_sum.detach()
                    total_count += count
                    rows_of_step.append(micro.rows)
                    state.carry.put(micro, carried)
                if micro.is_last_of_step:
                    ranks_asked.fill_(bool(stop.asked))
                    own_loss_sum = total_loss.clone()
                    if plan.num_ranks > 1:
                        reduction = torch.distributed.all_reduce(totals, async_op=True)
                # DDP averages over ranks, and a sum is wanted; a rank without a row takes part, and counts for nothing
                state.backward(loss_sum * (0.0 if micro.idle else plan.num_ranks / plan.batch_size))
            if not micro.is_last_of_step:
                continue
            if plan.num_ranks > 1:
                reduction.wait()
            norm_of_sum = state.gradient_norm()
            loss_sum_of_all, count_of_all, num_asked = totals.tolist()
            count_of_all = count_of_all or math.nan  # a batch of nothing is not finite
            # The gradients were divided by the nominal batch size; the true count is known only now
            loss, correction = loss_sum_of_all / count_of_all, plan.batch_size / count_of_all
            norm = float(norm_of_sum) * correction
            step = progress.step = micro.step + 1

            scale = learning_rate_scale(config, progress.updates + 1, num_steps)
            if math.isfinite(loss) and not math.isfinite(norm) and state.may_overflow():
                tracker.event(step, f"skipped: fp16 overflowed at a loss scale of {state.scaler.get_scale():g}")
            elif not math.isfinite(loss + norm):
                own_is_finite = bool(own_loss_sum.isfinite())
                report = guards.report_nonfinite(
                    accelerator, out, step, rows_of_step, partial(rows.gather, epoch=micro.epoch), own_is_finite, loss, norm
                )
                progress.skipped += 1
                if config.nonfinite == "stop" or progress.skipped > config.max_nonfinite:
                    raise UserError(report)
                tracker.event(step, report)
            elif progress.rollback_step and spikes.is_spike(loss):
                progress.rollbacks += 1
                sentence = (
                    f"the loss rose to {loss:.4g} at step {step}, over {config.spike_factor:g} times its recent median"
                )
                if progress.rollbacks > config.max_rollbacks:
                    raise UserError(f"{sentence}, after {config.max_rollbacks} rollbacks: lower learning_rate")
                roll_back()
                tracker.event(step, f"{sentence}: back to the weights of step {progress.rollback_step}")
            else:
                clip = min(1.0, config.clip_norm / (norm + 1e-6)) if config.clip_norm else 1.0
                state.update(correction * clip, scale)
            state.end_step()
            totals.zero_()
            rows_of_step.clear()
            meter.add(plan.length_of(micro.step))
            writer.check()
            profiler.step()
            tracker.advance()
            if step % config.log_every == 0 or step == num_steps:
                rate = peak_learning_rate(config) * scale
                tracker.train(step, {"loss": loss, "learning_rate": rate, "gradient_norm": norm, **meter.read()})

            preempted = num_asked > 0 and step < num_steps
            is_scored = not preempted and (step % evaluation_steps == 0 or step == num_steps)
            if preempted or is_scored or step % checkpoint_steps == 0:
                with meter.paused():
                    if is_scored:
                        evaluate()
                        finished = step == num_steps or progress.evaluations_since_best >= config.patience
                    if preempted or finished or step % checkpoint_steps == 0:
                        save(is_due=step % checkpoint_steps == 0)
            if preempted or finished:
                break
        if not preempted:
            if progress.step < num_steps:
                tracker.say(f"no better {recipe.monitor} in {config.patience} evaluations: stopped")
            with state.averaged_weights():
                keep_weights("final", {})
        writer.wait()
        summary = {
            "kind": "neural",
            "status": "preempted" if preempted else "done",
            "recipe": recipe.name,
            "fingerprint": recipe.fingerprint,
            "parameters": num_parameters,
            "ranks": accelerator.num_processes,
            "device": str(accelerator.device),
            "precision": accelerator.mixed_precision,
            "seconds": progress.seconds,
            "steps": progress.step,
            "skipped": progress.skipped,
            "best_step": progress.best_step,
            f"validation_{recipe.monitor}": progress.best_score,
        }
        if is_main:
            manifest.write_json(out / "summary.json", summary)
            runs.set_status(out, summary["status"])
        accelerator.wait_for_everyone()
    return summary


def predict(
    recipe: Recipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> dict[str, np.ndarray]:
    """The recipe's predictions for each row of a split, once and in order, on every rank: arrays of shape (num_rows, …)."""
    rows = recipe.rows(split)
    pieces = in_order(len(rows), batch_size, accelerator.num_processes, accelerator.process_index)
    model.eval()
    found: list[Batch] = []
    with (
        torch.no_grad(),
        accelerator.autocast(),
        Feed(rows, pieces, device=accelerator.device, num_workers=0, prefetch_factor=1) as feed,
    ):
        for _, batch in feed:
            told = recipe.predict(model, batch).items()
            found.append({name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in told})
    if launch.is_sharded(accelerator):
        from ensemble.neural import sharded

        sharded.reshard(model)  # without a backward pass, the next forward would see these weights again
    merged = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
    return {name: accelerator.gather(tensor)[: len(rows)].cpu().numpy() for name, tensor in merged.items()}
