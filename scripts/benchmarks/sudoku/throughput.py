"""Training steps of the recipe compared with those of the reference models: puzzles per CPU second on one thread.

The references' source is unchanged. Two packages that it imports are replaced in `sys.modules`: flash_attn, which needs a
GPU, by PyTorch's `scaled_dot_product_attention`, and einops by the two transpositions for which TRM uses it.

Both sides have the same weights, module calls, optimizer (AdamATan2), batch and losses, in float32, and neither has a puzzle
embedding or exploration. The references' vocabularies are reduced to ours: no padding, and no blank as an answer. A step
consists of the segment with its loss, the backward pass and the optimizer.
"""

import importlib
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.commands import command
from benchmarks.runs import enough, measure_alternating, paired_ratios, shown
from benchmarks.timing import cpu_seconds
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.optimizers import AdamATan2
from ensemble.recipes.sudoku import puzzles
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.layers import reference_inner_width
from ensemble.recipes.sudoku.model import Reasoner, Shape
from ensemble.recipes.sudoku.settings import RecipeConfig
from ensemble.recipes.sudoku.training import Sudoku

SIDE, CLUES = 9, 32
HEAD_WIDTH = 32
SEGMENTS = 16
RATE, WEIGHT_DECAY = 1e-4, 1.0
TOLERANCE = 1e-5
"""The largest relative difference of the losses of a step."""
REFERENCES: dict[str, tuple[str, str, dict[str, int]]] = {
    "hrm": (
        "models.hrm.hrm_act_v1",
        "HierarchicalReasoningModel_ACTV1",
        {"num_layers": 4, "high_cycles": 2, "low_cycles": 2},
    ),
    "trm": (
        "models.recursive_reasoning.trm",
        "TinyRecursiveReasoningModel_ACTV1",
        {"num_layers": 2, "high_cycles": 3, "low_cycles": 6},
    ),
}
"""Module and class of each reference, and its published numbers of layers and cycles."""
Step = Callable[[], float]
"""Makes one training step, and returns the mean loss of the puzzles."""


@command
def sudoku_throughput(
    hrm: str = "", trm: str = "", widths: tuple[int, ...] = (64, 128, 256), batch_size: int = 128, rounds: int = 3
) -> dict[str, Any]:
    """Training steps, alternately with those of the reference models, on one thread; ten CPU minutes.

    hrm : a folder with the source of sapientinc/HRM; empty to leave it out
    trm : a folder with the source of SamsungSAILMontreal/TinyRecursiveModels; empty to leave it out
    widths : widths of the latent states; multiples of 32, the width of a head
    batch_size : puzzles in a step
    rounds : measured steps of this project; the reference has one more
    """
    folder_of = {name: folder for name, folder in (("hrm", hrm), ("trm", trm)) if folder}
    if not folder_of:
        raise UserError("hrm= and trm= are both empty: give the folder of at least one reference")
    enough(rounds, 2)
    torch.set_num_threads(1)
    batch = _batch(batch_size)
    results: dict[str, Any] = {}
    for name, folder in folder_of.items():
        results[name] = {}
        for width in widths:
            with imported(Path(folder), name) as (model, losses):
                rates = _compared(*pair(name, width, model, losses, batch), batch_size, rounds)
            results[name][str(width)] = shown(f"{name} {width}", rates)
    return {"batch_size": batch_size, "rounds": rounds, **results}


def _compared(reference: Step, ours: Step, batch_size: int, rounds: int) -> dict[str, Any]:
    """Make a step of each as a warm-up, then steps of both alternately. The losses of the n-th steps must be equal."""
    losses: list[list[float]] = [[], []]

    def timed(side: int) -> float:
        return cpu_seconds(lambda: losses[side].append((reference, ours)[side]()))

    measure = partial(timed, 0), partial(timed, 1)
    for warm_up in measure:
        warm_up()
    seconds = measure_alternating(*measure, rounds)
    difference = max(abs(reference_loss / our_loss - 1) for reference_loss, our_loss in zip(*losses, strict=False))
    if difference > TOLERANCE:
        raise UserError(f"losses differ by {difference:.1e}, more than {TOLERANCE}: the two steps compute different things")
    speeds = [round(batch_size / statistics.median(side), 2) for side in seconds]
    return {
        "reference_puzzles_per_cpu_s": speeds[0],
        "ours_puzzles_per_cpu_s": speeds[1],
        "times_faster": paired_ratios(*seconds).times_faster,
        "steps_compared": rounds + 1,
        "largest_difference_of_losses": float(f"{difference:.1e}"),
    }


def _batch(batch_size: int) -> Batch:
    puzzle, solution = puzzles.generate(board_of(SIDE), seed=0, first=0, count=batch_size, clues=CLUES, threads=1)
    arrays = {"puzzle": puzzle, "solution": solution, "patience": np.zeros(batch_size)}
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def pair(name: str, width: int, model: type, losses: type, batch: Batch) -> tuple[Step, Step]:
    """Steps of the reference and of this project, with equal initial weights."""
    size, (_, _, sizes) = len(batch["puzzle"]), REFERENCES[name]
    torch.manual_seed(0)
    shape = Shape(
        side=SIDE, box_rows=3, box_columns=3, variant=name, mixing="attention", positions="rope", width=width, num_starts=1,
        num_heads=width // HEAD_WIDTH, inner_width=reference_inner_width(width), has_puzzle_token=False, **sizes,
    )  # fmt: skip
    ours = Reasoner(shape)
    wrapped = losses(
        model(
            {
                "batch_size": size, "seq_len": SIDE**2, "puzzle_emb_ndim": 0, "num_puzzle_identifiers": 1,
                "vocab_size": SIDE,
                "H_cycles": shape.high_cycles, "L_cycles": shape.low_cycles, "H_layers": shape.num_layers,
                "L_layers": shape.num_layers, "hidden_size": width, "expansion": 4, "num_heads": shape.num_heads,
                "pos_encodings": "rope", "halt_max_steps": SEGMENTS, "halt_exploration_prob": 0.0,
                "forward_dtype": "float32", "puzzle_emb_len": 0,
            }
        ),
        "stablemax_cross_entropy",
    )  # fmt: skip
    _copy(ours, wrapped.model.inner)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, wrapped)]
    if counts[0] != counts[1]:
        raise UserError(f"ours has {counts[0]} parameters and the reference {counts[1]}: they must be equal")
    return _reference_step(wrapped, batch), _our_step(ours, shape, batch)


def _copy(ours: Reasoner, inner: Any) -> None:
    """Copy our weights into the reference."""
    with torch.no_grad():
        inner.embed_tokens.embedding_weight = torch.nn.Parameter(ours.digits.weight.clone())
        inner.lm_head.weight.copy_(ours.to_digits.weight)
        inner.q_head.weight.copy_(ours.to_halting.weight)
        inner.q_head.bias.copy_(ours.to_halting.bias)
        inner.H_init.copy_(ours.high_start[0])
        inner.L_init.copy_(ours.low_start[0])
        levels: list[tuple[Any, Any]] = [(inner.L_level, ours.low), (getattr(inner, "H_level", None), ours.high)]
        for level, module in levels:
            if level is None or module is None:
                continue
            for layer, mixer, perceptron in zip(level.layers, module.mixers, module.perceptrons, strict=True):
                layer.self_attn.qkv_proj.weight.copy_(_in_reference_order(mixer.project.weight))
                layer.self_attn.o_proj.weight.copy_(mixer.join.weight)
                layer.mlp.gate_up_proj.weight.copy_(perceptron.widen.weight)
                layer.mlp.down_proj.weight.copy_(perceptron.narrow.weight)


def _in_reference_order(weight: torch.Tensor) -> torch.Tensor:
    """The weights of queries, keys and values, with queries and keys in the order of the reference.

    Its RoPE rotates pairs of one value from each half of a head; ours rotates pairs of neighbours.
    """
    width = len(weight) // 3
    reordered = weight[: 2 * width].view(-1, HEAD_WIDTH // 2, 2, width).transpose(1, 2).reshape(2 * width, width)
    return torch.cat([reordered, weight[2 * width :]])


def _reference_step(wrapped: torch.nn.Module, batch: Batch) -> Step:
    """As in `train_batch` of the reference's pretrain.py."""
    ids = torch.zeros_like(batch["patience"])
    inputs = {"inputs": batch["puzzle"], "labels": batch["solution"] - 1, "puzzle_identifiers": ids}
    optimizer = AdamATan2(wrapped.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    carry = wrapped.initial_carry(inputs)  # type: ignore[operator]

    def step() -> float:
        nonlocal carry
        carry, loss, _, _, _ = wrapped(carry=carry, batch=inputs, return_keys=[])
        return _update(loss / len(batch["puzzle"]), optimizer)

    return step


def _our_step(model: Reasoner, shape: Shape, batch: Batch) -> Step:
    """As in the loop of ensemble.neural, with the recipe's own `step`."""
    recipe = Sudoku.__new__(Sudoku)  # without a folder of data
    network: dict[str, Any] = {name: getattr(shape, name) for name in ("variant", "mixing", "positions", "width")}
    recipe.config = RecipeConfig(**network, segments=SEGMENTS, continue_loss=shape.variant == "hrm")
    recipe.board, recipe._used, recipe._offered = board_of(SIDE), torch.zeros(()), 0
    (optimizer,) = recipe.optimizers(model, RATE, WEIGHT_DECAY)
    state: Batch | None = None

    def step() -> float:
        nonlocal state
        loss, count, state = recipe.step(model, batch, state)
        return _update(loss / count, optimizer)

    return step


def _update(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Make the backward pass and the step of the optimizer; returns the loss."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


@contextmanager
def imported(folder: Path, name: str) -> Iterator[tuple[type, type]]:
    """The reference's model and its loss head. Both references have a package `models`, which is removed afterwards."""
    module, model, _ = REFERENCES[name]
    if not (folder / f"{module.replace('.', '/')}.py").is_file():
        raise UserError(f"{name}={folder} has no {module.replace('.', '/')}.py: give a folder with the reference's source")
    flash, einops = types.ModuleType("flash_attn"), types.ModuleType("einops")
    flash.flash_attn_func, einops.rearrange = _attention, _rearranged  # type: ignore[attr-defined]
    replaced = {"flash_attn": flash, "einops": einops}
    before = {name: sys.modules[name] for name in replaced if name in sys.modules}
    sys.modules |= replaced
    sys.path.insert(0, str(folder))
    try:
        yield getattr(importlib.import_module(module), model), importlib.import_module("models.losses").ACTLossHead
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name in replaced or name.split(".")[0] == "models"]:
            del sys.modules[name]
        sys.modules |= before


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Replaces the function of flash_attn; all tensors are (B, L, heads, width)."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2).contiguous()


def _rearranged(tensor: torch.Tensor, pattern: str) -> torch.Tensor:
    """Replaces the function of einops for the two patterns of TRM."""
    assert pattern in ("B S H D -> B H S D", "B H S D -> B S H D")
    return tensor.transpose(1, 2)
