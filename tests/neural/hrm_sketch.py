"""The HRM recipe in small, on 4×4 sudokus: a sketch which shows that the loop's protocol needs no second one for it.

Of the Hierarchical Reasoning Model (Wang et al. 2025, arXiv:2506.21734; sapientinc/HRM) it has what strains a protocol: two
modules (of one layer of torch's) whose state is carried over optimizer steps, halting row by row, a Q loss, exploration, and
two optimizers, of which one exchanges its own gradients between ranks. A row is used where the place in the batch that it
falls to has halted; any other place goes on with the puzzle it has. Letters of shapes: B rows, L = 17 tokens, D width.
"""

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional as F

Batch = dict[str, torch.Tensor]
NUM_CELLS, NUM_DIGITS, NUM_HEADS, NUM_IDS, WIDTH = 16, 4, 4, 8, 32
TABLE_RATE, EXPLORATION = 0.01, 0.1
CURRENT = ("puzzle", "solution", "puzzle_id")


def every_solution() -> np.ndarray:
    """The 288 solved 4×4 sudokus: digits 1 to 4, (288, 16)."""
    rows = np.array(list(itertools.permutations(range(1, 5))))
    grids = rows[np.indices((24,) * 4).reshape(4, -1).T]
    boxes = grids.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    is_solved = [(np.sort(groups) == np.arange(1, 5)).all((1, 2)) for groups in (grids.swapaxes(1, 2), boxes)]
    return grids[np.all(is_solved, axis=0)].reshape(-1, NUM_CELLS)


class Sudokus:
    """Puzzles with one solution; their digits are renamed anew in each epoch. Blank cells are 0."""

    def __init__(self, num_rows: int, seed: int, max_segments: int):
        generator, solutions = np.random.default_rng(seed), every_solution()
        solution = solutions[generator.integers(0, len(solutions), 10 * num_rows)]
        puzzle = np.where(generator.random(solution.shape) < 0.5, solution, 0)
        num_fitting = ((puzzle[:, None] == 0) | (puzzle[:, None] == solutions)).all(2).sum(1)
        self.puzzle, self.solution = (cells[num_fitting == 1][:num_rows] for cells in (puzzle, solution))
        assert len(self.puzzle) == num_rows
        self.ids = generator.integers(0, NUM_IDS, num_rows)
        self.max_segments, self.seed = max_segments, seed

    def __len__(self) -> int:
        return len(self.puzzle)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """`patience` is how many segments the place that a row falls to must go on for, by chance: exploration.

        Drawn here, it belongs to a place in the global batch; drawn in `step`, it would depend on how the batch is cut.
        """
        generator = np.random.default_rng([self.seed, epoch])
        names = generator.permuted(np.tile(np.arange(1, 5), (len(self), 1)), axis=1)
        names = np.pad(names, ((0, 0), (1, 0)))[rows]  # a blank stays a blank
        patience = generator.integers(2, max(2, self.max_segments), len(self), endpoint=True)
        patience = np.where(generator.random(len(self)) < EXPLORATION, patience, 0)
        arrays = {
            "puzzle": np.take_along_axis(names, self.puzzle[rows], axis=1),
            "solution": np.take_along_axis(names, self.solution[rows], axis=1),
            "puzzle_id": self.ids[rows],
            "patience": patience[rows],
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class PuzzleEmbedding(nn.Module):
    """A table whose gradient is sparse and this rank's own: ids and raw gradients of the rows that its batches used.

    The table requires no gradient, so DDP, the gradient norm, clipping and the moving average all leave it alone; its `grad`
    is set by a hook, adds up over micro-batches as others do, and is cleared like others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(NUM_IDS, WIDTH), requires_grad=False)

    def forward(self, ids_B: torch.Tensor) -> torch.Tensor:
        rows_BD = self.table[ids_B]
        if torch.is_grad_enabled():
            rows_BD.requires_grad_().register_hook(partial(self._keep, ids_B))
        return rows_BD

    def _keep(self, ids_B: torch.Tensor, gradient_BD: torch.Tensor) -> None:
        found = torch.sparse_coo_tensor(ids_B[None], gradient_BD.detach(), self.table.shape, check_invariants=False)
        self.table.grad = found if self.table.grad is None else self.table.grad + found


class HRM(nn.Module):
    """H = L = 2 cycles: L, L, H, L without a gradient, then L, H with one."""

    def __init__(self) -> None:
        super().__init__()
        self.puzzle_embedding = PuzzleEmbedding()
        self.cells = nn.Embedding(1 + NUM_DIGITS, WIDTH)
        # Its gradient at place 0 is the sum of those of the table's rows: what is not finite there shows on all ranks
        self.positions = nn.Parameter(torch.randn(1 + NUM_CELLS, WIDTH))
        # Without biases: that of the keys has no gradient but rounding, of which AdamATan2 would make whole steps
        self.high, self.low = (
            nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, bias=False) for _ in "HL"
        )
        self.register_buffer("start", torch.randn(2, WIDTH).clamp(-2, 2))
        self.digits = nn.Linear(WIDTH, NUM_DIGITS, bias=False)
        self.halting = nn.Linear(WIDTH, 2)
        nn.init.zeros_(self.halting.weight)
        nn.init.constant_(self.halting.bias, -5.0)

    def forward(self, inputs: Batch, halted_B: torch.Tensor, state: Batch) -> Batch:
        """One segment; places that have halted begin anew. `next_halting` is what one more segment would say."""
        high = torch.where(halted_B[:, None, None], self.start[0], state["high"])
        low = torch.where(halted_B[:, None, None], self.start[1], state["low"])
        tokens = torch.cat([self.puzzle_embedding(inputs["puzzle_id"])[:, None], self.cells(inputs["puzzle"])], 1)
        x_BLD = tokens + self.positions
        high, low = self.think(x_BLD, high, low)
        found = {"digits": self.digits(high[:, 1:]), "halting": self.halting(high[:, 0])}
        found |= {"high": high.detach(), "low": low.detach()}
        if self.training:
            with torch.no_grad():
                found["next_halting"] = self.halting(self.think(x_BLD, high, low)[0][:, 0])
        return found

    def think(self, x_BLD: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            low = self.low(self.low(low + high + x_BLD) + high + x_BLD)
            high = self.high(high + low)
            low = self.low(low + high + x_BLD)
        low = self.low(low + high + x_BLD)
        return self.high(high + low), low


class AdamATan2(torch.optim.Optimizer):
    """p ← p(1 − rate·decay) − rate / (1 − β1ᵗ) · atan2(m, √(v / (1 − β2ᵗ))): no ε, blind to the gradient's scale."""

    def __init__(self, parameters: Any, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.95)):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                if not state:
                    state.update(t=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
                state["t"] += 1
                state["m"].lerp_(gradient, 1 - beta1)
                state["v"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                direction = torch.atan2(state["m"], (state["v"] / (1 - beta2 ** state["t"])).sqrt())
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.sub_(direction, alpha=rate / (1 - beta1 ** state["t"]))


class SparseSignSGD(torch.optim.Optimizer):
    """w ← w(1 − rate·decay) − rate·sign(g), for those rows of a table that the global batch used.

    The sign is that of the sum over all ranks, so they exchange ids and raw gradients here: `step` is collective.
    """

    def __init__(self, tables: Any, lr: float, weight_decay: float):
        super().__init__(tables, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            rate = group["lr"]
            for table in group["params"]:
                ids, gradients = (gathered(of_rank) for of_rank in (table.grad._indices()[0], table.grad._values()))
                total = torch.sparse_coo_tensor(ids[None], gradients, table.shape, check_invariants=False).coalesce()
                # A row without any gradient was used by nobody but a rank that stands idle in an epoch's ragged tail
                used = total.values().any(1)
                ids, gradients = total.indices()[0][used], total.values()[used]
                table[ids] = table[ids] * (1 - rate * group["weight_decay"]) - rate * gradients.sign()


def gathered(of_rank: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, which may differ in their length, one after another."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return of_rank
    lengths = [torch.empty(1, dtype=torch.long, device=of_rank.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(lengths, torch.full_like(lengths[0], len(of_rank)))
    padded = of_rank.new_zeros(int(max(lengths)), *of_rank.shape[1:])
    padded[: len(of_rank)] = of_rank
    pieces = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(pieces, padded)
    return torch.cat([piece[:length] for piece, length in zip(pieces, lengths, strict=True)])


class Recipe:
    """`ensemble.recipe.NeuralRecipe`."""

    name, fingerprint, monitor = "hrm", "4x4", "cells"
    higher_is_better, output = True, "value"

    def __init__(self, num_rows: int, max_segments: int = 4, dtype: torch.dtype = torch.float32):
        self.inputs: dict[str, Any] = {"digits": NUM_DIGITS}
        self.num_rows, self.max_segments, self.dtype = num_rows, max_segments, dtype

    def rows(self, split: str) -> Sudokus:
        return Sudokus(*((self.num_rows, 0) if split == "train" else (64, 1)), self.max_segments)

    def model(self) -> HRM:
        return HRM().to(self.dtype)

    def optimizers(self, model: Any, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        body = [parameter for parameter in model.parameters() if parameter.requires_grad]
        table = SparseSignSGD([model.puzzle_embedding.table], TABLE_RATE, weight_decay)
        return [AdamATan2(body, learning_rate, weight_decay), table]  # the schedule scales each one's own peak rate

    def all_halted(self, batch: Batch) -> Batch:
        halted = torch.ones_like(batch["puzzle_id"], dtype=torch.bool)
        nothing = torch.zeros(len(halted), 1 + NUM_CELLS, WIDTH, dtype=self.dtype, device=halted.device)
        return {**batch, "high": nothing, "low": nothing, "halted": halted, "steps": halted.long()}

    def step(self, model: nn.Module, batch: Batch, state: Batch | None) -> tuple[torch.Tensor, torch.Tensor, Batch]:
        """One segment of every place, and the state in which it leaves them; the sum of the rows' losses."""
        state = state or self.all_halted(batch)
        halted = state["halted"]
        current = {
            name: torch.where(halted if batch[name].dim() == 1 else halted[:, None], batch[name], state[name])
            for name in CURRENT
        }
        steps = torch.where(halted, 0, state["steps"]) + 1
        found, is_last = model(current, halted, state), steps >= self.max_segments
        halt, go_on = found["halting"].unbind(1)
        with torch.no_grad():
            is_correct = (found["digits"].argmax(-1) == current["solution"] - 1).all(1).to(halt.dtype)
            value = torch.where(is_last, found["next_halting"][:, 0], found["next_halting"].amax(1)).sigmoid()
            halted = is_last | ((halt > go_on) & (steps >= batch["patience"]))
        logits, classes = found["digits"].flatten(0, 1), current["solution"].flatten() - 1
        judge = partial(F.binary_cross_entropy_with_logits, reduction="sum")
        halting_loss = 0.5 * (judge(halt, is_correct) + judge(go_on, value))
        loss_sum = F.cross_entropy(logits, classes, reduction="sum") / NUM_CELLS + halting_loss
        state = {"high": found["high"], "low": found["low"], "halted": halted, "steps": steps, **current}
        return loss_sum, torch.tensor(len(halted)), state

    def predict(self, model: nn.Module, batch: Batch) -> Batch:
        """All segments, whatever the model thinks of halting."""
        state = self.all_halted(batch)
        for _ in range(self.max_segments):
            state |= model(batch, state["halted"], state)
            state["halted"] = torch.zeros_like(state["halted"])
        return {"prediction": state["digits"].argmax(-1) + 1, "solution": batch["solution"]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        is_correct = predictions["prediction"] == predictions["solution"]
        return {"cells": float(is_correct.mean()), "puzzles": float(is_correct.all(1).mean())}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        return {"row_id": np.arange(len(self.rows(split)))}
