"""Settings of the recipe next_item. No large library is imported here, so that `--help` is fast."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe next_item."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files of interactions, globs, or hub:Category of Amazon Reviews 2023."""
    format: Literal["auto", "reviews", "ratings", "times", "pairs", "sequences", "gaps"] = "auto"
    """Format of the files; auto detects it. ensemble/recipes/next_item/interactions.py has an example of each."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For tables with unknown headers: the column of each of product_id, user_id and time, by name; in a CSV without header,
    by number from 1."""
    raw: str = ""
    """The folder for downloaded raw files; empty for the name of `out` with -raw."""
    repeats: Literal["keep", "first"] = "keep"
    """keep: use all interactions. first: use only the first interaction of a user with each item."""
    core: int = 5
    """Leave out users and items with fewer interactions, repeatedly, until all have enough (k-core); 1 keeps all. With
    split=time, only interactions before `validation_from` are counted, and users with fewer are left out of train only."""
    split: Literal["leave_one_out", "time"] = "leave_one_out"
    """leave_one_out: each user's last item is test and the one before it validation, as in published results. time: for all
    users, events from `validation_from` on are validation and those from `test_from` on test, so that no model is trained
    on later events than it predicts."""
    validation_from: str = "2021-08-11 00:56:54.042"
    """split=time: start of validation (UTC, or with an offset); the default is the published one of Amazon Reviews 2023."""
    test_from: str = "2022-07-16 20:18:49.837"
    """split=time: start of test."""
    max_bad_fraction: float = 0.01
    """Largest fraction of bad rows; the run stops above it."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of the network, under `recipe.` on the command line; time_aware and num_streams select the variant."""

    time_aware: bool = False
    """true: TiSASRec, which uses the time between items; false: SASRec."""
    num_streams: int = 0
    """Number of streams of manifold-constrained hyper-connections (mHC), 4 in the paper; 0 for residual connections."""
    max_length: int = 50
    """Number of most recent items of a history that the model uses."""
    width: int = 64
    """Width of the model and of item embeddings."""
    num_layers: int = 2
    """Number of transformer blocks; at least 1 with time_aware."""
    num_heads: int = 2
    """Number of attention heads; it must divide the width."""
    widening: int = 1
    """Hidden width of the perceptron ÷ width of the model."""
    dropout: float = 0.2
    """Dropout rate of embeddings, attention weights and layer outputs. On CPUs it is rounded to a multiple of 1/256 if this
    changes neither the rate nor 1 − the rate by more than 2 %."""
    num_intervals: int = 256
    """time_aware: number of different time intervals, 0, 1, … times the sequence's shortest gap; longer ones count as the
    longest."""
    loss: Literal["cross_entropy", "sampled_softmax", "bce", "gbce"] = "cross_entropy"
    """cross_entropy: softmax over all items. sampled_softmax: over the target and num_negatives items that a micro-batch
    shares. bce: binary cross-entropy with num_negatives items sampled for each target, as in SASRec. gbce: the same,
    calibrated for the sampling rate, as in gSASRec."""
    num_negatives: int = 1
    """Negatives sampled for each target, or with sampled_softmax for each micro-batch."""
    negative_power: float = 0.0
    """sampled_softmax: sampling probabilities are proportional to counts to this power, with logQ correction; 0: uniform."""
    gbce_calibration: float = 0.75
    """gbce: calibration parameter t of the paper, from 0 to 1."""
    num_groups: int = 0
    """Number of groups of sequences of similar length in a micro-batch, padded separately; 0 for 8 on CPUs and 1 on GPUs."""
