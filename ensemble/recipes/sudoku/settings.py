"""Settings of the recipe sudoku. No large library is imported here, so that `--help` is fast."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe sudoku."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of puzzles to read; empty to generate puzzles. ensemble/recipes/sudoku/readers.py lists the formats."""
    test_source: tuple[str, ...] = ()
    """Files of the test split, if it is published separately. Puzzles of `source` that are symmetric images of one that was
    drawn for this split are left out."""
    side: int = 9
    """Cells of a row: 4, 6, 9 or 16. Boxes are 2 × 2, 2 × 3, 3 × 3 or 4 × 4."""
    clues: int = 0
    """Given digits of a generated puzzle; with 0, digits are removed until no other can be removed (minimal puzzles)."""
    num_train: int = 1000
    """Puzzles of the train split; -1 for all puzzles of `source` that are in no other split."""
    num_validation: int = 100
    """Puzzles of the validation split, by which networks stop early."""
    num_blend: int = 100
    """Puzzles of the blend split, on which the ensemble is fitted."""
    num_test: int = 300
    """Puzzles of the test split; -1 for all of `test_source`."""
    seed: int = 0
    """The seed of the generator, and of the order in which puzzles of `source` and `test_source` are drawn."""
    max_bad_fraction: float = 0.01
    """Largest fraction of malformed lines, and of puzzles that are not proved to have exactly one solution or whose answer
    in the file is wrong; above it the run stops."""
    threads: int = 0
    """Threads for generating and solving; 0 for all granted cores. The result does not depend on it."""
    overwrite: bool = False
    """Replace `out` if it exists."""


TRAINING = {
    "batch_size": 32,
    "max_epochs": 8.0,
    "learning_rate": 3e-3,
    "weight_decay": 0.1,
    "warmup_steps": 50,
    "clip_norm": 0.0,
    "ema_decay": 0.98,
    "evaluations_per_epoch": 1,
    "patience": 1000,
}
"""Defaults of `TrainConfig` that differ for this recipe, for 6 × 6 boards on one core. The gradient is not clipped, since
the step of AdamATan2 does not depend on the scale of the gradient."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    variant: Literal["hrm", "trm", "direct"] = "trm"
    """hrm: two modules with a one-step gradient. trm: one network with the full gradient of its last cycle. direct: the two
    modules without recursion, as a control; it needs segments=1."""
    mixing: Literal["attention", "heads", "tokens"] = "heads"
    """How a layer exchanges information between cells: softmax attention; sums with learned weights for each head and pair
    of cells; or a perceptron over the cells of each channel."""
    positions: Literal["none", "rope", "learned", "units"] = "units"
    """How cells are distinguished. none: by the weights of `mixing` alone (not with attention). rope: by rotary embeddings
    (with attention only). learned: by an embedding for each cell. units: by the sum of embeddings of row, column and box."""
    width: int = 64
    """Width of the latent states z_H and z_L, which the modules H and L update."""
    num_layers: int = 2
    """Layers of each module."""
    num_heads: int = 4
    """Heads of mixing=attention and mixing=heads; must divide the width."""
    inner_width: int = 96
    """Width of the gated perceptrons' hidden layer; 0 for 8/3 of the width, rounded up to a multiple of 256. That of the
    perceptrons over the tokens (mixing=tokens) is always 8/3 of their number, rounded up in the same way."""
    high_cycles: int = 1
    """Updates of z_H in a segment (H_cycles of HRM, T of TRM)."""
    low_cycles: int = 1
    """Updates of z_L for each update of z_H (L_cycles of HRM, n of TRM)."""
    segments: int = 8
    """The largest number of segments (calls of the network) of a puzzle in training. Each is an optimizer step."""
    predict_segments: int = 8
    """Segments of a prediction; with select=first of scripts/predict.py, the largest number. 1 with variant=direct."""
    halt_probability: float = 0.98
    """With select=first of scripts/predict.py, the smallest probability of halting with which a board is accepted."""
    exploration: float = 0.1
    """Share of training puzzles that have a random least number of segments, from 2 to `segments`, before which they do not
    halt."""
    continue_loss: bool = False
    """Also predict the value of another segment, as HRM does, at the cost of a segment without gradient. A puzzle then halts
    if the logit of halting is higher than the logit of continuing. Without it, a puzzle halts if the logit is positive."""
    loss: Literal["stablemax", "softmax"] = "stablemax"
    """Normalisation of the probabilities of the digits, in float64."""
    images: int = 10
    """Number of symmetric images of each training puzzle in an epoch; the next epoch has other images."""
    reveal: float = 1.0
    """Share of training puzzles in which a random part of the blank cells is given too, in the first epoch. A network learns
    from these easier puzzles long before it solves a puzzle without such cells."""
    reveal_least: float = 0.0
    """The smallest part of the blank cells that is given in such a puzzle, in the first epoch. Training on minimal 9 × 9
    puzzles did not reduce the loss without it."""
    reveal_epochs: float = 8.0
    """Epochs in which `reveal` and `reveal_least` decrease linearly to 0; 0 for constant values."""
    puzzle_embedding: bool = False
    """Put a learned token before the cells, the same for all puzzles, which SparseSignSGD trains."""
    puzzle_rate: float = 0.01
    """Learning rate of the puzzle embedding; its weight decay is that of the other weights."""
    starts: int = 1
    """Number of latent starts (initial values of z_H and z_L) of a puzzle in training. The digits are learned from the best
    one only (winner-take-all)."""
    muon_rate: float = 0.0
    """Learning rate of torch's Muon for the matrices of the layers, such as 0.005; 0 to train them with AdamATan2, like the
    other weights."""
