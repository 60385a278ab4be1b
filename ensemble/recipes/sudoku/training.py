"""sudoku: HRM, TRM and a network without recursion, trained with deep supervision: each segment is an optimizer step.

    python scripts/prepare_data.py --recipe sudoku out=runs/sudoku/prepared side=6 clues=18
    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe sudoku \
        data=runs/sudoku/prepared out=runs/sudoku/members/trm

Each slot of the global batch holds a puzzle with its latent states. A step computes one segment of all slots. A slot whose
puzzle has halted, or has had `recipe.segments` segments, takes the puzzle that the next batch has for it; the puzzles for
other slots are skipped. So an epoch offers each image of a puzzle once, but only a part of the images is used; the metric
`used` is this share. The latent states are carried without gradient.

The loss of a puzzle is the mean over its cells of the cross-entropy, plus half of the binary cross-entropy of halting, whose
target is whether every cell is right, and, with `recipe.continue_loss`, half of that of continuing. With `recipe.starts`
above 1, each puzzle has several latent states. A segment without gradient determines the one with the lowest cross-entropy.
Only this one has a segment with gradient, but halting is learned from all.
"""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import parse_flag_from_env

from ensemble import configuration
from ensemble.arrow import Column, open_table
from ensemble.data.splitmix import mixed, uniform
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.optimizers import AdamATan2, SparseSignSGD
from ensemble.neural.prepared import PreparedRecipe, PreparedRows, num_parameters
from ensemble.recipe import Size
from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.layers import reference_inner_width
from ensemble.recipes.sudoku.losses import binary, cross_entropy, is_solved
from ensemble.recipes.sudoku.model import Reasoner, Shape
from ensemble.recipes.sudoku.settings import RecipeConfig
from ensemble.recipes.sudoku.symmetry import symmetries_of

HALTING_WEIGHT = 0.5
"""Weight of the loss of halting."""
OFFERED = ("puzzle", "solution", "patience")
"""The arrays that a slot takes from the batch when its puzzle has halted."""
SEED_OF_IMAGES = 3
DRAWN_SHARE, DRAWN_CELLS, DRAWN_EXPLORATION = range(3)
"""Keys of independent random numbers for a row."""


class PuzzleRows(PreparedRows):
    """The puzzles of one split; training puzzles have other symmetric images in each epoch."""

    def __init__(self, folder: Path, split: str, config: RecipeConfig, board: Board):
        table = open_table(folder / "rows" / split)
        self.columns = {name: Column(table, name) for name in ("row_id", "puzzle", "solution", "clues", "backtracks")}
        self.config, self.board, self.is_train = config, board, split == "train"

    def __len__(self) -> int:
        return super().__len__() * (self.config.images if self.is_train else 1)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """puzzle and solution (B, cells), and patience (the fewest segments of a puzzle) (B,), all int64.

        The training rows are `recipe.images` random symmetric images of each puzzle, in which some blank cells may be given
        too (`recipe.reveal`). All random numbers are a function of row id, epoch and the number of the image.
        """
        image, stored = np.divmod(rows, len(self.columns["row_id"]))
        puzzle, solution, row_id = (self.columns[name].take(stored) for name in ("puzzle", "solution", "row_id"))
        patience = np.zeros(len(rows), np.int64)
        if self.is_train:
            key = mixed(row_id, epoch, image)
            symmetries = symmetries_of(self.board, SEED_OF_IMAGES, 0, key)
            puzzle, solution = symmetries.apply(puzzle), symmetries.apply(solution)
            decision, share = uniform(key, DRAWN_SHARE, np.arange(2)[:, None])
            decrease = max(0.0, 1 - epoch / self.config.reveal_epochs) if self.config.reveal_epochs else 1.0
            least = self.config.reveal_least * decrease
            share = np.where(decision < self.config.reveal * decrease, least + (1 - least) * share, 0.0)
            is_given = uniform(key[:, None], DRAWN_CELLS, np.arange(self.board.cells)) < share[:, None]
            puzzle = np.where(is_given, solution, puzzle)
            decision, segments = uniform(key, DRAWN_EXPLORATION, np.arange(2)[:, None])
            fewest = 2 + np.floor(segments * max(1, self.config.segments - 1)).astype(np.int64)
            patience = np.where(decision < self.config.exploration, fewest, 0)
        arrays = {"puzzle": puzzle, "solution": solution, "patience": patience}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


class Sudoku(PreparedRecipe[RecipeConfig, PuzzleRows]):
    """The methods of `recipe.NeuralRecipe` for sudoku. Raises `UserError` if the settings do not fit the data."""

    name = "sudoku"
    monitor, higher_is_better = "exact", True
    output = "probabilities"

    def __init__(self, config: RecipeConfig, data: str | Path):
        _check(config)
        super().__init__(config, data)
        self.board = board_of(self.manifest["sudoku"]["side"])
        segments = config.predict_segments if config.variant != "direct" else 1
        self.options = inference.PredictOptions(segments=segments, halt_probability=config.halt_probability)
        """The options of predictions; `predicting` changes them."""
        self._used, self._offered = torch.zeros(()), 0

    def open_rows(self, split: str) -> PuzzleRows:
        return PuzzleRows(self.folder, split, self.config, self.board)

    def model(self) -> torch.nn.Module:
        return Reasoner(self.shape)

    @property
    def shape(self) -> Shape:
        config, board = self.config, self.board
        sizes = ("variant", "mixing", "positions", "width", "num_layers", "num_heads", "high_cycles", "low_cycles")
        return Shape(
            **{name: getattr(board, name) for name in ("side", "box_rows", "box_columns")},
            **{name: getattr(config, name) for name in sizes},
            inner_width=config.inner_width or reference_inner_width(config.width),
            num_starts=config.starts,
            has_puzzle_token=config.puzzle_embedding,
        )

    def size(self, num_rows: int) -> Size:
        """A lower bound of the memory: parameters, latent states, and the layers' results that the backward pass needs."""
        shape = self.shape
        one, two = (num_parameters(partial(Reasoner, dataclasses.replace(shape, num_layers=number))) for number in (1, 2))
        num_calls = shape.low_cycles + 1 if shape.variant == "trm" else 2
        per_token = 2 * shape.num_starts * shape.width
        per_token += num_calls * shape.num_layers * (2 * shape.width + 3 * shape.inner_width)
        settings = ("width", "inner_width", "num_layers", "low_cycles", "starts", "images")
        return Size(
            num_parameters=one + (shape.num_layers - 1) * (two - one),
            batch_bytes=4 * num_rows * shape.num_tokens * per_token,
            settings=tuple(f"recipe.{name}" for name in settings),
        )

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        """AdamATan2; with `muon_rate`, Muon for the layers' matrices; and SparseSignSGD for the puzzle embedding, if any.

        The schedule scales all rates.
        """
        assert isinstance(model, Reasoner)
        layers = [layer for layer in (model.low, model.high) if layer is not None and self.config.muon_rate]
        matrices = dict.fromkeys(weight for layer in layers for weight in layer.parameters() if weight.dim() == 2)
        others = [weight for weight in model.parameters() if weight.requires_grad and weight not in matrices]
        optimizers: list[torch.optim.Optimizer] = [AdamATan2(others, learning_rate, weight_decay=weight_decay)]
        if matrices:
            optimizers.append(torch.optim.Muon(list(matrices), self.config.muon_rate, weight_decay))
        if model.puzzles is not None:
            if parse_flag_from_env("ACCELERATE_USE_FSDP"):  # it has no sums of sparse gradients
                raise UserError(
                    "recipe.puzzle_embedding=true does not support FSDP, for which the accelerate YAML asks: use DDP"
                )
            optimizers.append(SparseSignSGD([model.puzzles.table], self.config.puzzle_rate, weight_decay))
        return optimizers

    def step(self, model: torch.nn.Module, batch: Batch, state: Batch | None) -> tuple[torch.Tensor, torch.Tensor, Batch]:
        """One segment of every slot: the sum of the losses of the puzzles, their number, and the new state.

        The state has OFFERED and, for each slot, `halted` (bool), `steps` (segments so far), and the latent states `high`
        and `low`, (B, starts, tokens, width).
        """
        if state is None:
            state = self._all_halted(batch)
        else:
            self._used = self._used.to(state["halted"].device) + state["halted"].sum()
            self._offered += len(state["halted"])
        is_new = state["halted"]
        slot = {name: _where(is_new, batch[name], state[name]) for name in OFFERED}
        steps = torch.where(is_new, 0, state["steps"]) + 1
        loss_B, halting_B2, high, low = self._segment(model, slot, is_new, state["high"], state["low"])
        halt_logit, continue_logit = halting_B2.detach().unbind(1)
        is_last = steps >= self.config.segments
        if self.config.continue_loss:
            with torch.no_grad():
                start, begins = torch.zeros_like(steps), torch.zeros_like(is_new)
                after = model(slot["puzzle"], start, begins, high[:, 0], low[:, 0])
                next_halt, next_continue = after.halting.unbind(1)
                value = torch.where(is_last, next_halt, torch.maximum(next_halt, next_continue)).sigmoid()
            loss_B = loss_B + HALTING_WEIGHT * binary(halting_B2[:, 1], value)
        is_halting = halt_logit > (continue_logit if self.config.continue_loss else 0)
        halted = is_last | (is_halting & (steps >= slot["patience"]))
        count = torch.tensor(float(len(steps)), device=loss_B.device)
        return loss_B.sum(), count, {**slot, "halted": halted, "steps": steps, "high": high, "low": low}

    def _segment(
        self, model: torch.nn.Module, slot: Batch, is_new: torch.Tensor, high: torch.Tensor, low: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Loss (B,) and logits of halting (B, 2) of the best start, with gradient, and the new states of all starts."""
        puzzle, solution = slot["puzzle"], slot["solution"]
        num_puzzles, num_starts = len(puzzle), self.config.starts
        rows, best, others = torch.arange(num_puzzles, device=puzzle.device), torch.zeros_like(puzzle[:, 0]), None
        if num_starts > 1:
            with torch.no_grad():
                all_starts = inference.one_segment(model, puzzle, is_new, high, low)
                expected = solution.repeat_interleave(num_starts, dim=0)
                losses_BK = cross_entropy(all_starts.digits, expected, self.config.loss).view(num_puzzles, num_starts)
                solved_BK = is_solved(all_starts.digits, expected).view(num_puzzles, num_starts)
                best = losses_BK.argmin(dim=1)
            others = all_starts.high[:, 0].view(num_puzzles, num_starts, -1)
        segment = model(puzzle, best, is_new, high[rows, best], low[rows, best], others)
        solved = is_solved(segment.digits, solution)
        halting_loss = binary(segment.halting[:, 0], solved)
        if num_starts > 1:
            # The halting loss of the best start trains all layers, that of the others only the output layer of halting
            is_other = torch.arange(num_starts, device=best.device) != best[:, None]
            others_loss = (binary(segment.others[..., 0], solved_BK) * is_other).sum(dim=1)
            halting_loss = (halting_loss + others_loss) / num_starts
            high, low = (states.unflatten(0, (num_puzzles, num_starts)) for states in (all_starts.high, all_starts.low))
        else:
            high, low = segment.high.detach()[:, None], segment.low.detach()[:, None]
        loss = cross_entropy(segment.digits, solution, self.config.loss) + HALTING_WEIGHT * halting_loss
        return loss, segment.halting, high, low

    def predicting(self, starts: int, votes: int, select: str) -> None:
        """Change the options of predictions, see `inference.PredictOptions`; `UserError` for impossible values."""
        self.options = inference.with_settings(self.options, self.config.variant, starts, votes, select)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """prediction (B, cells, side): probabilities of the digits; target (B, cells): the classes; segments and calls of
        `inference.Predicted`, (B,)."""
        predicted = inference.predict(model, batch["puzzle"], self.board, self.shape, self.options, self.config.loss)
        counts = {"segments": predicted.segments.float(), "calls": predicted.calls.float()}
        return {"prediction": predicted.probabilities, "target": (batch["solution"] - 1).float(), **counts}

    def sums(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """The terms of each puzzle in the metrics."""
        predicted = self.predict(model, batch)
        right = predicted["prediction"].argmax(dim=-1) == predicted["target"]
        is_blank = batch["puzzle"] == 0
        return {
            "puzzles": torch.ones(len(right)),
            "exact": right.all(dim=1),
            "blanks": is_blank.sum(dim=1),
            "right_blanks": (right & is_blank).sum(dim=1),
            "segments": predicted["segments"],
            "not_finite": (~predicted["prediction"].isfinite()).sum(dim=(1, 2)),
        }

    def metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """exact: share of puzzles that are solved; blanks: share of blank cells that are right; segments: mean
        number of segments of a puzzle.

        used: of the training puzzles offered to the slots of this rank since the last call, the share that was taken. The
        counts are not in checkpoints: the first value after a resume is of the steps since then.
        """
        used = float(self._used) / self._offered if self._offered else 1.0
        self._used, self._offered = torch.zeros(()), 0
        is_finite = not sums["not_finite"]
        return {
            "exact": float(sums["exact"] / sums["puzzles"]) if is_finite else float("nan"),
            "blanks": float(sums["right_blanks"] / max(1, sums["blanks"])),
            "segments": float(sums["segments"] / sums["puzzles"]),
            "used": used,
        }

    def columns(self, split: str, predicted: dict[str, np.ndarray]) -> dict[str, Any]:
        """The columns of a prediction file, with one row for each cell; group and cluster are the puzzle."""
        puzzle = np.repeat(self.rows(split).columns["row_id"].all(), self.board.cells)
        row_id = puzzle * self.board.cells + np.tile(np.arange(self.board.cells), len(puzzle) // self.board.cells)
        return {
            "row_id": row_id,
            "group": puzzle,
            "cluster": puzzle,
            "target": predicted["target"].ravel().astype(np.float64),
            "prediction": predicted["prediction"].reshape(-1, self.board.side).astype(np.float64),
            "classes": tuple(self.manifest["task"]["classes"]),
        }

    def _all_halted(self, batch: Batch) -> Batch:
        """The state before the first batch."""
        config, puzzle = self.config, batch["puzzle"]
        latent = torch.zeros(len(puzzle), config.starts, self.shape.num_tokens, config.width, device=puzzle.device)
        halted = torch.ones(len(puzzle), dtype=torch.bool, device=puzzle.device)
        return {**batch, "halted": halted, "steps": halted.long(), "high": latent, "low": latent}


make = Sudoku


def _where(condition_B: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(condition_B if chosen.dim() == 1 else condition_B[:, None], chosen, other)


def _check(config: RecipeConfig) -> None:
    known = ("rope" if config.mixing == "attention" else "none", "learned", "units")
    configuration.check(
        config,
        "recipe.",
        at_least_1="width images num_layers num_heads high_cycles low_cycles segments predict_segments starts",
        at_least_0="inner_width reveal_epochs muon_rate",
        fractions="exploration reveal reveal_least",
        halt_probability=(0 < config.halt_probability < 1, "between 0 and 1"),
        puzzle_rate=(0 < config.puzzle_rate < math.inf, "more than 0, and finite"),
        positions=(config.positions in known, f"one of {', '.join(known)} with recipe.mixing={config.mixing}"),
        continue_loss=(not config.continue_loss or config.starts == 1, f"false with recipe.starts={config.starts}"),
    )
    head_width = config.width // config.num_heads
    if config.mixing != "tokens" and (config.width % config.num_heads or (config.positions == "rope" and head_width % 2)):
        raise UserError(
            f"recipe.width={config.width} cannot be divided into {config.num_heads} heads of "
            f"{'an even' if config.positions == 'rope' else 'equal'} width: choose a multiple of {2 * config.num_heads}"
        )
    if config.variant == "direct" and (config.segments, config.starts) != (1, 1):
        raise UserError(
            f"recipe.variant=direct has one pass and one start: set recipe.segments=1 (it is {config.segments}) and "
            f"recipe.starts=1 (it is {config.starts})"
        )
