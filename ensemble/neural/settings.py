"""What scripts/train.py can be told: how to learn, and each recipe's own settings under `recipe.`.

Nothing heavy is imported here, so that `--help` answers at once.
"""

import dataclasses
import math
from typing import Any, Literal

from ensemble import configuration, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to learn; what to learn is the recipe's, and on what hardware is the accelerate YAML's."""

    data: str = "???"
    """The folder of prepared data."""
    verify: Literal["changed", "full"] = "changed"
    """Prepared data whose checksums are read: files that changed since they were last read, or all files."""
    out: str = "???"
    """The folder of the run."""

    batch_size: int = 512
    """Examples in a global batch, over all ranks and accumulation steps."""
    micro_batch_size: int = 0
    """Examples in one forward pass of one rank; 0 for as many as make accumulation unnecessary."""
    max_epochs: float = 3.0
    """Passes over the training split."""
    learning_rate: float = 1e-3
    """Peak learning rate, at base_batch_size."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the peak rate grows with batch_size / base_batch_size."""
    base_batch_size: int = 512
    """The global batch that learning_rate was chosen for."""
    schedule: Literal["cosine", "linear", "constant", "step"] = "cosine"
    """After warm-up: half a cosine to zero, a line to zero, the peak rate, or steps down."""
    warmup_steps: int = 50
    """Optimizer steps of linear warm-up."""
    decay_steps: int = 1000
    """schedule=step: optimizer steps after which the rate is multiplied by decay_factor, again and again."""
    decay_factor: float = 0.1
    """schedule=step: what the rate is multiplied by."""
    weight_decay: float = 0.01
    """AdamW's decoupled decay, on matrices only."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 for no clipping."""
    ema_decay: float = 0.0
    """Validate and predict with an exponential moving average of the weights that keeps this share a step; 0 for none."""
    seed: int = 0
    """Of the initial weights, the order of rows, and dropout."""

    evaluations_per_epoch: int = 2
    """How often the validation split is scored."""
    patience: int = 4
    """Evaluations without a better score after which training stops."""
    checkpoint_steps: int = 0
    """Optimizer steps between checkpoints; 0 for one at each evaluation."""
    keep_last: int = 2
    """Newest checkpoints to keep; with 2 or more, a damaged one costs only the steps since the one before it."""
    keep_steps: int = 0
    """Keep the checkpoints at multiples of this step for good; 0 for none."""

    precision: Literal["auto", "no", "bf16", "fp16", "fp8"] = "auto"
    """Of the forward pass; auto for what the accelerate YAML says."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a loss or gradient that is not finite; the batch is saved either way."""
    max_nonfinite: int = 10
    """nonfinite=skip: batches to skip before the run stops."""
    spike_factor: float = 0.0
    """Go back to the last checkpoint's weights when the loss exceeds this many times its recent median; 0 for never."""
    max_rollbacks: int = 3
    """Loss spikes after which the run stops."""
    max_seconds: float = 0.0
    """End the training after this time, from the end of its set-up, with the best step so far; 0 for no limit. The learning
    rate decays to the last step that fits. What is learned then depends on the speed of the machine."""
    timeout_s: int = 600
    """Seconds that a rank waits for the others before the job ends."""

    loader: Literal["fixed", "auto"] = "fixed"
    """auto measures num_workers × prefetch_factor on the real data for some seconds, and takes the fastest."""
    num_workers: int = 0
    """DataLoader processes per rank; the gather is fast enough for none on small models."""
    prefetch_factor: int = 4
    """Batches that each DataLoader process holds ready."""
    bucket_batches: int = 0
    """Sort by length within this many global batches, so that ragged rows need little padding; 0 for no bucketing."""

    compile: bool = False
    """Compile the model's repeated blocks with torch.compile."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Who draws the curves, beside the log files."""
    log_every: int = 10
    """Optimizer steps between two lines of train.log."""


FREE_TO_CHANGE = (
    "data", "verify", "out", "micro_batch_size", "checkpoint_steps", "keep_last", "keep_steps", "max_seconds",
    "timeout_s", "loader", "num_workers", "prefetch_factor", "trackers", "log_every", "nonfinite", "max_nonfinite",
    "max_rollbacks", "recipe.gradient_checkpointing",
)  # fmt: skip
"""Settings that may differ when a run is resumed: they change where and how it runs, not what it learns."""


def check(config: TrainConfig) -> None:
    """Raise `UserError` for a setting that no training could have; sizes of batches are checked where they are cut."""
    configuration.check(
        config,
        max_epochs=(0 < config.max_epochs < math.inf, "more than 0, and finite"),
        learning_rate=(config.learning_rate > 0, "more than 0"),
        weight_decay=(config.weight_decay >= 0, "0 or more"),
        base_batch_size=(config.base_batch_size >= 1, "at least 1"),
        warmup_steps=(config.warmup_steps >= 0, "0 or more"),
        decay_steps=(config.decay_steps >= 1, "at least 1"),
        decay_factor=(0 < config.decay_factor <= 1, "more than 0 and at most 1"),
        ema_decay=(0 <= config.ema_decay < 1, "0 or more and below 1"),
        clip_norm=(config.clip_norm >= 0, "0 or more"),
        evaluations_per_epoch=(config.evaluations_per_epoch >= 1, "at least 1"),
        patience=(config.patience >= 1, "at least 1"),
        checkpoint_steps=(config.checkpoint_steps >= 0, "0 or more"),
        keep_last=(config.keep_last >= 1, "at least 1"),
        keep_steps=(config.keep_steps >= 0, "0 or more"),
        max_seconds=(0 <= config.max_seconds < math.inf, "0 or more, and finite"),
        max_nonfinite=(config.max_nonfinite >= 0, "0 or more"),
        spike_factor=(config.spike_factor == 0 or config.spike_factor > 1, "more than 1, or 0 for never"),
        max_rollbacks=(config.max_rollbacks >= 0, "0 or more"),
        num_workers=(config.num_workers >= 0, "0 or more"),
        prefetch_factor=(config.prefetch_factor >= 1, "at least 1"),
        log_every=(config.log_every >= 1, "at least 1"),
        seed=(config.seed >= 0, "0 or more"),
    )


def settle(trained: Any, config: TrainConfig) -> TrainConfig:
    """The settings with those in place that the `NeuralRecipe` chooses by the data, if it has a method `choose`."""
    return trained.choose(config) if hasattr(trained, "choose") else config


def config_class(name: str) -> type:
    """`TrainConfig` with the settings of a recipe in its field `recipe`; `UserError` for a recipe without a network."""
    its = recipe.named(name)
    settings = its.require("settings", "RecipeConfig", "has no neural network to train")
    kinds = {field.name: field.type for field in dataclasses.fields(TrainConfig)}
    defaults = its.get("settings", "TRAINING") or {}
    return dataclasses.make_dataclass(
        "Config",
        [
            *((name, kinds[name], dataclasses.field(default=value)) for name, value in defaults.items()),
            ("recipe", settings, dataclasses.field(default_factory=settings)),
        ],
        bases=(TrainConfig,),
        frozen=True,
        kw_only=True,
    )
