"""The one training loop, shared by every recipe; it knows nothing but the recipe's protocol.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers data=… out=…

The loss of a step is a sum over its global batch divided by the global count, over ranks and micro-batches: the gradient
does not depend on how the batch was cut. A run leaves in its folder

    config.json  train.log  val.log  metrics.jsonl  tensorboard/  best/  last/  summary.json

where `best` is the checkpoint with the best validation score and `last` the one that --resume goes on from, exactly.
"""

import json
import math
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ensemble import config as configuration
from ensemble.data import manifest
from ensemble.errors import UserError
from ensemble.neural import checkpoint
from ensemble.neural.config import TrainConfig
from ensemble.neural.loader import Batch, BatchPlan, MicroBatch, Rows, make_loader
from ensemble.neural.tracking import Tracker

if TYPE_CHECKING:
    from accelerate import Accelerator


State = dict[str, torch.Tensor] | None
"""What a recipe carries from batch to batch, by name; each rank has its own, and checkpoints hold it."""


class Recipe(Protocol):
    """What the loop asks of a recipe: data, a model, optimizers, and what a batch costs."""

    name: str
    fingerprint: str
    """Of the prepared data."""
    inputs: dict[str, Any]
    """What the model's inputs mean, as JSON: data to predict on must have the same."""
    monitor: str
    """The validation metric, higher is better, that chooses `best` and stops early."""

    def rows(self, split: str) -> Rows: ...

    def model(self) -> torch.nn.Module: ...

    def optimizers(
        self, model: torch.nn.Module, learning_rate: float, weight_decay: float
    ) -> list[torch.optim.Optimizer]: ...

    def step(self, model: torch.nn.Module, batch: Batch, state: State) -> tuple[torch.Tensor, torch.Tensor, State]:
        """The *sum* of the losses, the number of things summed, and the state carried to the next batch (first None)."""

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """What `metrics` needs of each example: tensors whose first dimension is the batch."""

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]: ...

    def describe(self, split: str) -> dict[str, np.ndarray]:
        """row_id, group and cluster of a split's rows, for the prediction file."""


def train(recipe: Recipe, config: TrainConfig, accelerator: "Accelerator", resume: bool) -> dict[str, Any]:
    """Train, and return the summary that is also written to summary.json."""
    out = Path(config.out)
    _check(config)
    plan = BatchPlan.make(
        len(recipe.rows("train")),
        config.batch_size,
        config.micro_batch_size,
        accelerator.num_processes,
        accelerator.process_index,
        config.seed,
    )
    num_steps = math.ceil(config.max_epochs * plan.steps_per_epoch)
    evaluate_every = max(1, plan.steps_per_epoch // config.evaluations_per_epoch)

    torch.manual_seed(config.seed)  # the same initial weights on every rank and number of ranks
    model = recipe.model()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizers = recipe.optimizers(model, config.learning_rate, config.weight_decay)
    peak_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    model, *optimizers = accelerator.prepare(model, *optimizers)
    torch.manual_seed(config.seed * 1_000_003 + accelerator.process_index)  # dropout differs by rank

    _open_run(out, config, accelerator, resume)
    progress: dict[str, Any] = {
        "step": 0,
        "best_score": -math.inf,
        "best_step": 0,
        "evaluations_since_best": 0,
        "seconds": 0.0,
    }
    state: State = None
    if resume:
        progress, state = _restore(out / "last", recipe, model, optimizers, accelerator)
    stopped = progress["evaluations_since_best"] >= config.patience
    first_step = num_steps if stopped else progress["step"]
    micro_batches = plan.micro_batches(first_step, num_steps)
    row_numbers = (micro.rows for micro in plan.micro_batches(first_step, num_steps))
    pin_memory = accelerator.device.type == "cuda"
    batches = make_loader(recipe.rows("train"), row_numbers, config.num_workers, pin_memory)

    model.train()
    began = time.monotonic() - progress["seconds"]
    with closing(Tracker(out, accelerator.is_main_process, num_steps, progress["step"])) as tracker:
        tracker.say(
            f"{recipe.name}: {plan.num_rows:,} rows, {num_parameters:,} parameters, {num_steps} steps of "
            f"{plan.batch_size} = {plan.micro_batch_size} × {plan.num_ranks} ranks × {plan.accumulation} accumulated, "
            f"on {accelerator.device}, precision {accelerator.mixed_precision}"
        )
        loss_sum, count = torch.zeros((), device=accelerator.device), torch.zeros((), device=accelerator.device)
        logged_step, logged_at = progress["step"], time.monotonic()
        for micro, batch in zip(micro_batches, batches, strict=True):
            batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
            micro_sum, micro_count, state = _backward(recipe, model, batch, state, micro, plan, accelerator)
            loss_sum, count = loss_sum + micro_sum, count + micro_count
            if not micro.is_last_of_step:
                continue

            step = progress["step"] = micro.step + 1
            loss_sum, count = accelerator.reduce(torch.stack([loss_sum, count])).unbind()
            loss = (loss_sum / count).item()
            if not math.isfinite(loss):
                raise UserError(f"the loss is {loss} at step {step}: lower learning_rate={config.learning_rate}")
            # The gradients were divided by the nominal batch size; the true count is known only now
            if (correction := plan.batch_size / count.item()) != 1.0:
                torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], correction)
            norm = accelerator.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf)
            scale = learning_rate_scale(step, num_steps, config.warmup_steps)
            for optimizer, rates in zip(optimizers, peak_rates, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * scale
                optimizer.step()
                optimizer.zero_grad()
            tracker.advance()
            if step % config.log_every == 0 or step == num_steps:
                now = time.monotonic()
                speed = (step - logged_step) * plan.batch_size / (now - logged_at)
                rate = config.learning_rate * scale
                tracker.train(
                    step, {"loss": loss, "learning_rate": rate, "gradient_norm": float(norm), "samples_per_s": speed}
                )
                logged_step, logged_at = step, now
            loss_sum, count = torch.zeros_like(loss_sum), torch.zeros_like(count)

            if step % evaluate_every == 0 or step == num_steps:
                found = predict(recipe, model, "validation", config.batch_size, accelerator)
                if not np.isfinite(found["prediction"]).all():
                    raise UserError(
                        f"the predictions are not finite at step {step}: lower learning_rate={config.learning_rate}"
                    )
                scores = recipe.metrics(found)
                tracker.validation(step, scores)
                progress["evaluations_since_best"] += 1
                progress["seconds"] = round(time.monotonic() - began, 1)
                if scores[recipe.monitor] > progress["best_score"]:
                    progress |= {"best_score": scores[recipe.monitor], "best_step": step, "evaluations_since_best": 0}
                    _save(out / "best", recipe, model, optimizers, progress, state, config, accelerator)
                _save(out / "last", recipe, model, optimizers, progress, state, config, accelerator)
                model.train()
                logged_step, logged_at = step, time.monotonic()
                if progress["evaluations_since_best"] >= config.patience:
                    tracker.say(f"no better {recipe.monitor} in {config.patience} evaluations: stopping")
                    break
    summary = {
        "kind": "neural",
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "parameters": num_parameters,
        "ranks": accelerator.num_processes,
        "device": str(accelerator.device),
        "precision": accelerator.mixed_precision,
        "seconds": progress["seconds"],
        "steps": progress["step"],
        "best_step": progress["best_step"],
        f"validation_{recipe.monitor}": progress["best_score"],
    }
    if accelerator.is_main_process:
        manifest.write_json(out / "summary.json", summary)
    accelerator.wait_for_everyone()
    return summary


def learning_rate_scale(step: int, num_steps: int, warmup_steps: int) -> float:
    """The factor of the peak rate at optimizer step 1 … num_steps: linear warm-up, then half a cosine to zero."""
    if step <= warmup_steps:
        return step / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, num_steps - warmup_steps)))


def predict(
    recipe: Recipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> dict[str, np.ndarray]:
    """The recipe's predictions for each row of a split, once and in order, on every rank: arrays of shape (num_rows, …)."""
    rows = recipe.rows(split)
    ranks, rank = accelerator.num_processes, accelerator.process_index
    share = math.ceil(len(rows) / ranks)
    mine = np.minimum(np.arange(rank * share, (rank + 1) * share), len(rows) - 1)  # the last rank repeats the last row
    pieces = [mine[begin : begin + batch_size] for begin in range(0, share, batch_size)]
    model.eval()
    found: list[Batch] = []
    with torch.inference_mode(), accelerator.autocast():
        for batch in make_loader(rows, pieces, 0, False):
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            found.append({name: tensor.float() for name, tensor in recipe.predict(model, batch).items()})
    merged = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
    return {name: accelerator.gather(tensor)[: len(rows)].cpu().numpy() for name, tensor in merged.items()}


def _backward(
    recipe: Recipe,
    model: torch.nn.Module,
    batch: Batch,
    state: State,
    micro: MicroBatch,
    plan: BatchPlan,
    accelerator: "Accelerator",
) -> tuple[torch.Tensor, torch.Tensor, State]:
    """Forward and backward of one micro-batch; gradients are all-reduced after the last one of the step only."""
    weight = 0.0 if micro.idle else 1.0
    with nullcontext() if micro.is_last_of_step else accelerator.no_sync(model):
        with accelerator.autocast():
            loss_sum, count, new_state = recipe.step(model, batch, state)
        # DDP averages over ranks, and a sum is wanted
        accelerator.backward(loss_sum * (weight * plan.num_ranks / plan.batch_size))
    return loss_sum.detach() * weight, count * weight, state if micro.idle else new_state


def _check(config: TrainConfig) -> None:
    configuration.check(
        config,
        max_epochs=(0 < config.max_epochs < math.inf, "more than 0, and finite"),
        learning_rate=(config.learning_rate > 0, "more than 0"),
        weight_decay=(config.weight_decay >= 0, "0 or more"),
        warmup_steps=(config.warmup_steps >= 0, "0 or more"),
        clip_norm=(config.clip_norm >= 0, "0 or more"),
        evaluations_per_epoch=(config.evaluations_per_epoch >= 1, "at least 1"),
        patience=(config.patience >= 1, "at least 1"),
        num_workers=(config.num_workers >= 0, "0 or more"),
        log_every=(config.log_every >= 1, "at least 1"),
        seed=(config.seed >= 0, "0 or more"),
    )


def _open_run(out: Path, config: TrainConfig, accelerator: "Accelerator", resume: bool) -> None:
    """Make the run's folder, or check that the one to resume was started with the same configuration."""
    settings = json.loads(json.dumps(configuration.to_dict(config)))
    known = out / "config.json"
    problem = None
    if accelerator.is_main_process:
        manifest.recover(out / "last")
        if resume:
            before = manifest.read_json(known) if known.exists() else None
            if before is None or not (out / "last").is_dir():
                delete = "delete it and " if out.exists() else ""
                problem = f"there is no checkpoint to resume from in {out}: {delete}start without --resume"
            elif before != settings:
                changed = [key for key in settings if settings[key] != before.get(key)]
                problem = f"the run in {out} was started with other values of {', '.join(changed)}: give it those again"
        elif out.exists():
            mend = "add --resume to go on from its last checkpoint" if (out / "last").is_dir() else "delete it"
            problem = f"{out} exists already: choose another out=…, or {mend}"
        else:
            try:
                out.mkdir(parents=True)
                manifest.write_json(known, settings)
            except OSError as error:
                problem = f"the folder {out} cannot be created: {error.strerror}"
    problems = [problem]
    if accelerator.num_processes > 1:
        torch.distributed.broadcast_object_list(problems)
    if problems[0]:
        raise UserError(problems[0])


def _save(
    folder: Path,
    recipe: Recipe,
    model: torch.nn.Module,
    optimizers: list[Any],
    progress: dict[str, Any],
    state: State,
    config: TrainConfig,
    accelerator: "Accelerator",
) -> None:
    """Every rank hands over its random generators and its state; the main process writes."""
    from accelerate.utils import gather_object

    own = {"random.cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        own["random.cuda"] = torch.cuda.get_rng_state(accelerator.device)
    own |= {f"state.{name}": tensor.cpu() for name, tensor in (state or {}).items()}
    ranks = gather_object([own])
    if accelerator.is_main_process:
        tensors = {f"rank{rank}.{name}": tensor for rank, of_rank in enumerate(ranks) for name, tensor in of_rank.items()}
        about = []
        for number, optimizer in enumerate(optimizers):
            named, rest = checkpoint.flatten_optimizer(optimizer.optimizer, f"optimizer{number}")
            tensors |= named
            about.append(rest)
        description = {
            "recipe": recipe.name,
            "fingerprint": recipe.fingerprint,
            "inputs": recipe.inputs,
            "progress": progress,
            "ranks": accelerator.num_processes,
            "optimizers": about,
            "config": configuration.to_dict(config),
        }
        checkpoint.save(folder, accelerator.unwrap_model(model), tensors, description)
    accelerator.wait_for_everyone()


def _restore(
    folder: Path, recipe: Recipe, model: torch.nn.Module, optimizers: list[Any], accelerator: "Accelerator"
) -> tuple[dict[str, Any], State]:
    """The progress and the recipe's state; on another number of ranks, random generators and state begin anew."""
    description, tensors = checkpoint.load_state(folder)
    if description["fingerprint"] != recipe.fingerprint:
        raise UserError(f"{folder} was trained on other prepared data: give the data that it was started with")
    checkpoint.load_model(folder, accelerator.unwrap_model(model))
    for number, (optimizer, about) in enumerate(zip(optimizers, description["optimizers"], strict=True)):
        checkpoint.restore_optimizer(optimizer.optimizer, f"optimizer{number}", tensors, about)
    if description["ranks"] != accelerator.num_processes:
        return description["progress"], None
    prefix = f"rank{accelerator.process_index}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    torch.set_rng_state(own["random.cpu"])
    if "random.cuda" in own and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(own["random.cuda"], accelerator.device)
    state = {name.removeprefix("state."): own[name].to(accelerator.device) for name in own if name.startswith("state.")}
    return description["progress"], state or None
