"""sudoku: HRM, TRM and a network without recursion, trained by deep supervision; each segment is one optimizer step.

    python scripts/prepare_data.py --recipe sudoku out=runs/sudoku/prepared side=6 clues=18
    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe sudoku \
        data=runs/sudoku/prepared out=runs/sudoku/members/hrm

Each place in the global batch holds a puzzle with its latent states. A step takes all of them through one segment. A place
whose puzzle has halted, or has had `recipe.segments` segments, takes the puzzle that the next batch offers to it; puzzles
that are offered to other places are skipped. So an epoch offers every image of a puzzle once, and uses some of them: their
share is the metric `used`. The latent states are carried without their gradient.

The loss of a puzzle is the mean over its cells of the cross-entropy, plus half of the binary cross-entropy of halting, whose
target is whether every cell is right. With `recipe.starts` above 1, each puzzle has as many latent states. A segment without
gradient finds the one with the lowest cross-entropy, and only that one is trained; halting is predicted for all of them.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ensemble import configuration, folders
from ensemble.arrow import Column, open_table
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.optimizers import AdamATan2, SparseSignSGD
from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.layers import reference_inner_width
from ensemble.recipes.sudoku.losses import binary, cross_entropy, is_solved
from ensemble.recipes.sudoku.model import Reasoner, Shape
from ensemble.recipes.sudoku.settings import RecipeConfig
from ensemble.recipes.sudoku.symmetry import mixed, symmetries_of

HALTING_WEIGHT = 0.5
OFFERED = ("puzzle", "solution", "puzzle_id", "patience")
"""What a place takes from the batch when its puzzle has halted."""
SEED_OF_IMAGES = 3
DRAWN_SHARE, DRAWN_CELLS, DRAWN_EXPLORATION = range(3)
"""Keys of independent draws for a row."""


def make(config: RecipeConfig, data: str) -> "Sudoku":
    """The recipe on a folder of prepared data; `UserError` when the two do not go together."""
    return Sudoku(config, Path(data))


class PuzzleRows:
    """The puzzles of one split; those of train are transformed anew in each epoch."""

    def __init__(self, folder: Path, split: str, config: RecipeConfig, board: Board):
        self.opened_with = folder, split, config, board
        table = open_table(folder / "rows" / split)
        self.columns = {name: Column(table, name) for name in ("row_id", "puzzle", "solution", "clues", "backtracks")}
        self.config, self.board, self.is_learned = config, board, split == "train"

    def __len__(self) -> int:
        return len(self.columns["row_id"]) * (self.config.images if self.is_learned else 1)

    def __reduce__(self) -> tuple[Any, ...]:
        """A DataLoader's worker opens the files itself: a pickled memory map is a copy of the whole file."""
        return PuzzleRows, self.opened_with

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """puzzle and solution (B, cells), puzzle_id and patience (the fewest segments of a puzzle) (B,), all int64.

        Rows of train are `recipe.images` random symmetric images of each puzzle, in which some blank cells may be given too
        (`recipe.reveal`). All that is drawn is a function of row id, epoch and the number of the image.
        """
        image, stored = np.divmod(rows, len(self.columns["row_id"]))
        puzzle, solution, row_id = (self.columns[name].take(stored) for name in ("puzzle", "solution", "row_id"))
        patience = np.zeros(len(rows), np.int64)
        if self.is_learned:
            key = mixed(row_id, epoch, image)
            symmetries = symmetries_of(self.board, SEED_OF_IMAGES, 0, key)
            puzzle, solution = symmetries.apply(puzzle), symmetries.apply(solution)
            draw = partial(_uniform, key[:, None])
            whether, share = draw(DRAWN_SHARE, np.arange(2)).T
            left = max(0.0, 1 - epoch / self.config.reveal_epochs) if self.config.reveal_epochs else 1.0
            least = self.config.reveal_least * left
            share = np.where(whether < self.config.reveal * left, least + (1 - least) * share, 0.0)
            puzzle = np.where(draw(DRAWN_CELLS, np.arange(self.board.cells)) < share[:, None], solution, puzzle)
            whether, segments = draw(DRAWN_EXPLORATION, np.arange(2)).T
            fewest = 2 + np.floor(segments * max(1, self.config.segments - 1)).astype(np.int64)
            patience = np.where(whether < self.config.exploration, fewest, 0)
        arrays = {"puzzle": puzzle, "solution": solution, "puzzle_id": np.zeros(len(rows)), "patience": patience}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


class Sudoku:
    """The recipe; see `ensemble.recipe.NeuralRecipe` for what each method owes."""

    name = "sudoku"
    monitor, higher_is_better = "exact", True
    output = "probabilities"

    def __init__(self, config: RecipeConfig, folder: Path):
        self.config, self.folder = _checked(config), folder
        self.about = folders.read_manifest(folder)
        if self.about["recipe"] != self.name:
            raise UserError(f"{folder} was prepared for the recipe {self.about['recipe']}, not for {self.name}")
        self.board = board_of(self.about["sudoku"]["side"])
        self.fingerprint, self.inputs = self.about["fingerprint"], inputs.meaning(self.about)
        segments = config.predict_segments if config.variant != "direct" else 1
        self.how = inference.How(segments=segments, halt_probability=config.halt_probability)
        """How predictions are made: see `predicting`."""
        self._rows: dict[str, PuzzleRows] = {}
        self._used, self._offered = torch.zeros(()), 0

    def rows(self, split: str) -> PuzzleRows:
        if split not in self._rows:
            if split not in self.about["splits"]:
                raise UserError(f"{self.folder} has no split '{split}': it has {', '.join(self.about['splits'])}")
            self._rows[split] = PuzzleRows(self.folder, split, self.config, self.board)
        return self._rows[split]

    def model(self) -> torch.nn.Module:
        config, board = self.config, self.board
        return Reasoner(
            Shape(
                side=board.side,
                box_rows=board.box_rows,
                box_columns=board.box_columns,
                variant=config.variant,
                mixing=config.mixing,
                positions=config.positions,
                width=config.width,
                num_layers=config.num_layers,
                num_heads=config.num_heads,
                inner_width=config.inner_width or reference_inner_width(config.width),
                high_cycles=config.high_cycles,
                low_cycles=config.low_cycles,
                num_starts=config.starts,
                num_puzzle_ids=int(config.puzzle_embedding),
            )
        )

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        """AdamATan2, and SparseSignSGD of the puzzle embedding if there is one; the schedule scales each one's own rate."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizers: list[torch.optim.Optimizer] = [AdamATan2(trained, learning_rate, weight_decay=weight_decay)]
        puzzles = getattr(model, "puzzles", None)
        if puzzles is not None:
            optimizers.append(SparseSignSGD([puzzles.table], self.config.puzzle_rate, weight_decay))
        return optimizers

    def step(self, model: torch.nn.Module, batch: Batch, state: Batch | None) -> tuple[torch.Tensor, torch.Tensor, Batch]:
        """One segment of every place: the sum of the puzzles' losses, their number, and the state in which it leaves them.

        The state has OFFERED and, for each place, `halted` (bool), `steps` (segments so far), and the latent states `high`
        and `low`, (B, starts, tokens, width).
        """
        if state is None:
            state = self._all_halted(batch)
        else:
            self._used = self._used.to(state["halted"].device) + state["halted"].sum()
            self._offered += len(state["halted"])
        is_new = state["halted"]
        place = {name: _where(is_new, batch[name], state[name]) for name in OFFERED}
        steps = torch.where(is_new, 0, state["steps"]) + 1
        loss_B, halting_B2, high, low = self._segment(model, place, is_new, state["high"], state["low"])
        halt, go_on = halting_B2.detach().unbind(1)
        is_last = steps >= self.config.segments
        if self.config.continue_loss:
            with torch.no_grad():
                winner = torch.zeros_like(steps)
                after = model(place["puzzle"], place["puzzle_id"], winner, torch.zeros_like(is_new), high[:, 0], low[:, 0])
                next_halt, next_go_on = after.halting.unbind(1)
                value = torch.where(is_last, next_halt, torch.maximum(next_halt, next_go_on)).sigmoid()
            loss_B = loss_B + HALTING_WEIGHT * binary(halting_B2[:, 1], value)
        wants_to_halt = halt > (go_on if self.config.continue_loss else 0)
        halted = is_last | (wants_to_halt & (steps >= place["patience"]))
        count = torch.tensor(float(len(steps)), device=loss_B.device)
        return loss_B.sum(), count, {**place, "halted": halted, "steps": steps, "high": high, "low": low}

    def _segment(
        self, model: torch.nn.Module, place: Batch, is_new: torch.Tensor, high: torch.Tensor, low: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Loss (B,) with its gradient and halting (B, 2) of the best start, and the new states of all starts."""
        puzzle, puzzle_id, solution = (place[name] for name in ("puzzle", "puzzle_id", "solution"))
        num_puzzles, num_starts = len(puzzle), self.config.starts
        rows, best, others = torch.arange(num_puzzles, device=puzzle.device), torch.zeros_like(puzzle_id), None
        if num_starts > 1:
            with torch.no_grad():
                each = inference.one_segment(model, puzzle, puzzle_id, is_new, high, low)
                expected = solution.repeat_interleave(num_starts, dim=0)
                losses_BK = cross_entropy(each.digits, expected, self.config.loss).view(num_puzzles, num_starts)
                solved_BK = is_solved(each.digits, expected).view(num_puzzles, num_starts)
                best = losses_BK.argmin(dim=1)
            others = each.high[:, 0].view(num_puzzles, num_starts, -1)
        found = model(puzzle, puzzle_id, best, is_new, high[rows, best], low[rows, best], others)
        solved = is_solved(found.digits, solution)
        judged = binary(found.halting[:, 0], solved)
        if num_starts > 1:
            # The best start trains the network to be sure of what it has solved; the others train the head alone
            is_other = torch.arange(num_starts, device=best.device) != best[:, None]
            judged = (judged + (binary(found.others[..., 0], solved_BK) * is_other).sum(dim=1)) / num_starts
            high, low = (of.view(num_puzzles, num_starts, *of.shape[1:]) for of in (each.high, each.low))
        else:
            high, low = found.high.detach()[:, None], found.low.detach()[:, None]
        loss = cross_entropy(found.digits, solution, self.config.loss) + HALTING_WEIGHT * judged
        return loss, found.halting, high, low

    def predicting(self, starts: int, votes: int, select: str) -> None:
        """How predictions are made from now on: see `inference.How`. `UserError` for what is impossible."""
        self.how = inference.checked(self.how, self.config.variant, starts, votes, select)

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """prediction (B, cells, side): probabilities of the digits; target (B, cells): the classes; segments and calls (B,).

        See `inference.Predicted`.
        """
        found = inference.predict(model, batch["puzzle"], self.board, self.shape_of(model), self.how, self.config.loss)
        target = (batch["solution"] - 1).float()
        return {
            "prediction": found.probabilities,
            "target": target,
            "segments": found.segments.float(),
            "calls": found.calls.float(),
        }

    def sums(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """What each puzzle adds to the metrics."""
        found = self.predict(model, batch)
        right = found["prediction"].argmax(dim=-1) == found["target"]
        is_blank = batch["puzzle"] == 0
        return {
            "puzzles": torch.ones(len(right)),
            "exact": right.all(dim=1),
            "blanks": is_blank.sum(dim=1),
            "right_blanks": (right & is_blank).sum(dim=1),
            "segments": found["segments"],
            "not_finite": (~found["prediction"].isfinite()).sum(dim=(1, 2)),
        }

    def metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """exact: share of puzzles that are solved; blanks: share of blank cells that are right; segments: their mean number.

        used: since the last call, the share of the training puzzles offered to this rank's places that were taken.
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

    def describe(self, split: str) -> dict[str, np.ndarray]:
        row_id = self.rows(split).columns["row_id"].all()
        return {"row_id": row_id, "group": row_id, "cluster": row_id}

    def columns(self, split: str, found: dict[str, np.ndarray]) -> dict[str, Any]:
        """A prediction file with one row for each cell, whose group and cluster are the puzzle."""
        puzzle = np.repeat(self.rows(split).columns["row_id"].all(), self.board.cells)
        row_id = puzzle * self.board.cells + np.tile(np.arange(self.board.cells), len(puzzle) // self.board.cells)
        return {
            "row_id": row_id,
            "group": puzzle,
            "cluster": puzzle,
            "target": found["target"].ravel().astype(np.float64),
            "prediction": found["prediction"].reshape(-1, self.board.side).astype(np.float64),
            "classes": tuple(self.about["task"]["classes"]),
        }

    def shape_of(self, model: torch.nn.Module) -> Shape:
        """That of a model, also inside DDP."""
        of: Any = getattr(model, "module", model)
        return of.shape

    def _all_halted(self, batch: Batch) -> Batch:
        """The state before the first batch."""
        config, puzzle = self.config, batch["puzzle"]
        num_tokens = self.board.cells + config.puzzle_embedding
        latent = torch.zeros(len(puzzle), config.starts, num_tokens, config.width, device=puzzle.device)
        halted = torch.ones(len(puzzle), dtype=torch.bool, device=puzzle.device)
        return {**batch, "halted": halted, "steps": halted.long(), "high": latent, "low": latent}


def _where(condition_B: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(condition_B if chosen.dim() == 1 else condition_B[:, None], chosen, other)


def _uniform(*keys: Any) -> np.ndarray:
    """Numbers from [0, 1) for keys that are broadcast: see `symmetry.mixed`."""
    return (mixed(*keys) >> np.uint64(11)) * 2.0**-53


def _checked(config: RecipeConfig) -> RecipeConfig:
    configuration.check(
        config,
        "recipe.",
        width=(config.width >= 1, "at least 1"),
        images=(config.images >= 1, "at least 1"),
        num_layers=(config.num_layers >= 1, "at least 1"),
        num_heads=(config.num_heads >= 1, "at least 1"),
        inner_width=(config.inner_width >= 0, "0 or more"),
        high_cycles=(config.high_cycles >= 1, "at least 1"),
        low_cycles=(config.low_cycles >= 1, "at least 1"),
        segments=(config.segments >= 1, "at least 1"),
        predict_segments=(config.predict_segments >= 1, "at least 1"),
        halt_probability=(0 < config.halt_probability < 1, "between 0 and 1"),
        exploration=(0 <= config.exploration <= 1, "between 0 and 1"),
        reveal=(0 <= config.reveal <= 1, "between 0 and 1"),
        reveal_least=(0 <= config.reveal_least <= 1, "between 0 and 1"),
        reveal_epochs=(config.reveal_epochs >= 0, "0 or more"),
        puzzle_rate=(config.puzzle_rate > 0, "more than 0"),
        starts=(config.starts >= 1, "at least 1"),
    )
    of_heads = config.width // config.num_heads
    if config.width % config.num_heads or (config.positions == "rope" and of_heads % 2):
        raise UserError(
            f"recipe.width={config.width} cannot be cut into {config.num_heads} heads of "
            f"{'an even' if config.positions == 'rope' else 'one'} width: choose a multiple of {2 * config.num_heads}"
        )
    if config.positions == "rope" and config.mixing != "attention":
        raise UserError(
            f"recipe.positions=rope needs recipe.mixing=attention, not {config.mixing}: choose learned or units instead"
        )
    if config.positions == "none" and config.mixing == "attention":
        raise UserError(
            "recipe.positions=none leaves recipe.mixing=attention without positions: choose rope, learned or units"
        )
    if config.variant == "direct" and (config.segments, config.starts) != (1, 1):
        raise UserError(
            f"recipe.variant=direct has one pass and one start: set recipe.segments=1 (it is {config.segments}) and "
            f"recipe.starts=1 (it is {config.starts})"
        )
    if config.continue_loss and config.starts > 1:
        raise UserError(f"recipe.continue_loss=true is for one start, not for recipe.starts={config.starts}: leave it out")
    return config
