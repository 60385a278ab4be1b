"""Settings of scripts/train.py: those of the training, and under `recipe.` those of the recipe.

No large library is imported here, so that `--help` is fast.
"""

import dataclasses
import math
from typing import Any, Literal

from ensemble import configuration, recipe
from ensemble.commands import hooks
from ensemble.errors import UserError
from ensemble.neural.division import check_multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training. The recipe has settings of its own; hardware is chosen by the accelerate YAML."""

    data: str = "???"
    """The folder of prepared data."""
    verify: Literal["changed", "full"] = "changed"
    """Files of the data whose checksums are verified: those changed since they were last read, or all (full)."""
    out: str = "???"
    """The folder of the run."""

    batch_size: int = 512
    """Examples in a global batch, over all ranks and accumulation steps. 0, the default of some recipes, derives it from
    the number of rows."""
    micro_batch_size: int = 0
    """Examples in one forward pass of one rank; 0 for the largest, without accumulation."""
    max_epochs: float = 3.0
    """Passes over the training split. 0, the default of some recipes, derives it from the number of rows."""
    learning_rate: float = 1e-3
    """Peak learning rate; with learning_rate_scaling, that of a batch of base_batch_size. 0, the default of some
    recipes, derives it from batch_size."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the peak rate is scaled by batch_size / base_batch_size."""
    base_batch_size: int = 512
    """The global batch size for which learning_rate was chosen."""
    schedule: Literal["cosine", "linear", "constant", "step"] = "cosine"
    """Learning rate after warm-up: half a cosine to zero, linear to zero, constant, or × decay_factor every decay_steps."""
    warmup_steps: int = 50
    """Optimizer steps of linear warm-up."""
    decay_steps: int = 1000
    """schedule=step: optimizer steps between two multiplications of the rate by decay_factor."""
    decay_factor: float = 0.1
    """schedule=step: factor by which the rate is multiplied every decay_steps."""
    weight_decay: float = 0.01
    """Decoupled weight decay; in most recipes, of parameters of two or more dimensions only."""
    clip_norm: float = 1.0
    """Maximum global gradient norm; 0 for no clipping."""
    ema_decay: float = 0.0
    """Decay per step of the exponential moving average of the weights, used to validate and predict; 0 for no average."""
    seed: int = 0
    """Random seed of the initial weights, the order of rows, and dropout."""

    refit_epochs: float = 0.0
    """Passes over train, validation and blend after the training, for predictions of later splits; 0 for none. Passes over
    train and validation come first; if they do not improve the score on blend, those over all three are left out."""
    evaluations_per_epoch: int = 2
    """Evaluations of the validation split per epoch."""
    patience: int = 4
    """Evaluations without a better score after which training stops."""
    checkpoint_steps: int = 0
    """Optimizer steps between checkpoints; 0 for one at each evaluation."""
    keep_last: int = 2
    """Number of newest checkpoints to keep; with 2 or more, training can resume if the newest is damaged."""
    keep_steps: int = 0
    """Never delete checkpoints whose step is a multiple of this number; 0 for no such checkpoints."""

    precision: Literal["auto", "no", "bf16", "fp16", "fp8"] = "auto"
    """Precision of the forward pass: no for float32, auto for that of the accelerate YAML."""
    deterministic: bool = True
    """On GPUs, use kernels that always give the same bits, so that runs can be repeated and resumed exactly. false allows
    other kernels, which may be faster, and operations that have no such kernel."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do after a loss or gradient that is not finite; the batch is saved in both cases."""
    max_nonfinite: int = 10
    """nonfinite=skip: number of batches that may be skipped; the next one stops the run."""
    spike_factor: float = 0.0
    """Return to the weights of the last checkpoint if the loss exceeds this factor × its recent median; 0 for never."""
    max_rollbacks: int = 3
    """Number of returns to a checkpoint after a loss spike; the next spike stops the run."""
    max_seconds: float = 0.0
    """Time limit of the training in seconds, without the start of the processes; 0 for none. After --resume, the seconds
    until the checkpoint count too. The learning rate decays to the last step that fits, so the result depends on the speed
    of the machine."""
    timeout_s: int = 600
    """Seconds that a rank waits for the others, or for its DataLoader workers, before the job ends."""

    loader: Literal["fixed", "auto"] = "fixed"
    """fixed uses num_workers and prefetch_factor. auto measures several values of both in five seconds, after starting the
    workers of each, and uses the fewest workers within 5 % of the highest speed."""
    num_workers: int = 0
    """DataLoader worker processes per rank; small models need none."""
    prefetch_factor: int = 4
    """Batches that each DataLoader worker prefetches."""
    bucket_batches: int = 0
    """Sort rows by length within this many global batches, which reduces padding; 0 for no bucketing."""

    compile: bool = False
    """Compile the model's repeated blocks with torch.compile; the whole model if it has none."""

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Experiment trackers that plot the metrics, in addition to the log files."""
    log_every: int = 10
    """Optimizer steps between two lines of train.log."""


FREE_TO_CHANGE = (
    "data", "verify", "out", "micro_batch_size", "deterministic", "checkpoint_steps", "keep_last", "keep_steps",
    "max_seconds", "timeout_s", "loader", "num_workers", "prefetch_factor", "trackers", "log_every", "nonfinite",
    "max_nonfinite", "max_rollbacks", "recipe.gradient_checkpointing",
)  # fmt: skip
"""Settings that may differ when a run is resumed: they do not change what is learned from a batch. `max_seconds` can change
the number of steps."""


def check(config: TrainConfig) -> None:
    """Raise `UserError` for an invalid value; whether batch sizes can be divided is checked by `BatchPlan`."""
    configuration.check(
        config,
        seed=(0 <= config.seed < 2**63, "0 or more, and below 2^63"),
        at_least_1="base_batch_size decay_steps evaluations_per_epoch patience keep_last prefetch_factor log_every",
        at_least_0="micro_batch_size weight_decay warmup_steps clip_norm checkpoint_steps keep_steps max_nonfinite "
        "max_rollbacks",
        num_workers=(0 <= config.num_workers <= 1000, "from 0 to 1000"),
        max_epochs=(0 < config.max_epochs < math.inf, "more than 0, and finite"),
        refit_epochs=(0 <= config.refit_epochs < math.inf, "0 or more, and finite"),
        learning_rate=(0 < config.learning_rate < math.inf, "more than 0, and finite"),
        decay_factor=(0 < config.decay_factor <= 1, "more than 0 and at most 1"),
        ema_decay=(0 <= config.ema_decay < 1, "0 or more and below 1"),
        max_seconds=(0 <= config.max_seconds < math.inf, "0 or more, and finite"),
        spike_factor=(config.spike_factor == 0 or config.spike_factor > 1, "more than 1, or 0 for never"),
    )


def check_heads(width: int, num_heads: int) -> None:
    """Raise `UserError` if the width of a recipe's network is no multiple of its number of attention heads."""
    check_multiple("recipe.width", width, num_heads, f"recipe.num_heads={num_heads}")


def fitting_batch_size(state: dict[str, Any], config: TrainConfig) -> int:
    """The number of rows of a forward pass that fitted into memory in training.

    state : `state.json` of the weights. Files of earlier versions lack the number; then the settings give it.
    """
    return state.get("micro_batch_size") or config.micro_batch_size or config.batch_size


def resolve(neural_recipe: Any, config: TrainConfig) -> TrainConfig:
    """The settings, in which the method `choose` of the `NeuralRecipe`, if any, replaced those that depend on the data."""
    configuration.check(config, at_least_0="batch_size")
    return neural_recipe.choose(config) if hasattr(neural_recipe, "choose") else config


def config_class(name: str) -> type:
    """`TrainConfig` with the defaults of a recipe, and in `recipe` its settings.

    Raises `UserError` for a recipe without a network, and for one that is neither built in nor named by the user.
    """
    package = recipe.of({"recipe": name})
    settings = hooks.checked_settings(package.require("settings", "RecipeConfig", "has no neural network to train"), name)
    types = {field.name: field.type for field in dataclasses.fields(TrainConfig)}
    defaults = package.get("settings", "TRAINING") or {}
    # A dataclass accepts no list as a default
    defaults = {name: tuple(value) if isinstance(value, list) else value for name, value in defaults.items()}
    if unknown := sorted(defaults.keys() - types.keys()):
        raise UserError(f"TRAINING of the recipe {name} has '{unknown[0]}', which is not a setting of a training")
    return dataclasses.make_dataclass(
        "Config",
        [
            *((name, types[name], dataclasses.field(default=value)) for name, value in defaults.items()),
            ("recipe", settings, dataclasses.field(default_factory=settings)),
        ],
        bases=(TrainConfig,),
        frozen=True,
        kw_only=True,
    )
