"""Settings of the recipe next_item. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that scripts/prepare_data.py takes for next_item."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files, globs, or hub:Category of Amazon Reviews 2023: who took which item, when."""
    format: Literal["auto", "reviews", "ratings", "times", "pairs", "sequences", "gaps"] = "auto"
    """What a line of text holds; auto looks. ensemble/recipes/next_item/interactions.py shows one of each."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For tables with unknown headers: product_id, user_id, rating and time, each with its column's name."""
    raw: str = ""
    """The folder for downloaded raw files; empty for the name of `out` with -raw."""
    repeats: Literal["keep", "first"] = "keep"
    """first: of the same item taken again by the same user, only the first time."""
    core: int = 5
    """Leave out users and items with fewer interactions, until none is left; 1 keeps all. With split=time those before
    `validation_from` are counted, such users are only not learned from, and all are foretold."""
    split: Literal["leave_one_out", "time"] = "leave_one_out"
    """leave_one_out: each user's last item is test, the one before validation, as published tables have it. time: what
    happens from `test_from` on is test, for all users at once, so that nothing is learned from the future."""
    validation_from: str = "2021-08-11 00:56:54.042"
    """split=time: the first moment (UTC, or with an offset) of validation; the default is that of Amazon Reviews 2023."""
    test_from: str = "2022-07-16 20:18:49.837"
    """split=time: the first moment of test."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the rows is bad."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """The recipe's own settings, under `recipe.` on the command line; the four variants are time_aware × num_streams."""

    time_aware: bool = False
    """TiSASRec, which looks at the time between items; false is SASRec."""
    num_streams: int = 0
    """Streams of manifold-constrained hyper-connections (mHC), 4 in their paper; 0 for plain residuals."""
    max_length: int = 50
    """Items of a history that are looked at, the newest."""
    width: int = 64
    """Width of the model, and of an item's embedding."""
    num_layers: int = 2
    """Blocks of attention and perceptron."""
    num_heads: int = 2
    """Heads of each attention; must divide the width."""
    widening: int = 1
    """Width of the perceptron's middle by the model's."""
    dropout: float = 0.2
    """Dropout on embeddings, attention and after each layer; on CPUs to the nearest 256th, but never more than 2 % off."""
    num_intervals: int = 256
    """time_aware: intervals that are told apart, in units of the user's shortest; longer ones count as the longest."""
    loss: Literal["cross_entropy", "sampled_softmax", "bce", "gbce"] = "cross_entropy"
    """Over all items; over num_negatives drawn for the batch; or of each item against num_negatives drawn for it, as SASRec
    has it (bce) or calibrated for many (gbce, gSASRec)."""
    num_negatives: int = 1
    """Items drawn against each target, or for sampled_softmax against all of a micro-batch."""
    negative_power: float = 0.0
    """sampled_softmax: negatives are drawn by their counts to this power, and corrected for it (logQ); 0 draws all alike."""
    gbce_calibration: float = 0.75
    """gbce: how far the positive is corrected for the few negatives, t of its paper, 0 to 1."""
    num_groups: int = 0
    """Parts of a micro-batch of like length, padded each by itself; 0 for 8 on CPUs and 1 on a GPU."""
