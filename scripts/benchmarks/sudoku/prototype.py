"""The research prototype of HRM, rebuilt from its description in plain PyTorch, as a reference for `sudoku_demo`.

The prototype's code was not kept. Its description gives: modules H and L of two layers of width 64, four heads of softmax
attention, two high and two low cycles, one-step gradient, eight segments, batch 128, AdamATan2 (rate 1e-3, weight decay
0.1), a moving average of the weights (0.99), the sum of embeddings of row, column and box, and symmetric images drawn at
each step; no RoPE, no Q-value of continuing, no puzzle embedding. It solved .79 of the boards after 160 CPU seconds and
.953 after 220 to 240, on another machine. The inner width follows from the number of weights. The following is assumed: the
reference's post-norm, SwiGLU, initial weights, stablemax, halting and exploration, and a constant rate.

Data, symmetries and AdamATan2 are those of this project; everything else is plain PyTorch.
"""

import copy
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ensemble.arrow import read_columns
from ensemble.neural.optimizers import AdamATan2
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.symmetry import symmetries_of

SIDE, CELLS = 6, 36
WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 168
HIGH_CYCLES, LOW_CYCLES, SEGMENTS, EXPLORATION = 2, 2, 8, 0.1
BATCH, RATE, WEIGHT_DECAY, AVERAGE = 128, 1e-3, 0.1, 0.99


@dataclasses.dataclass
class Carry:
    """For each slot: its puzzle and solution, its latent states, its number of segments, and whether it has halted."""

    puzzle: torch.Tensor
    solution: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    steps: torch.Tensor
    halted: torch.Tensor


def truncated(tensor: torch.Tensor, std: float) -> torch.Tensor:
    """Fill with normal values of deviation `std`: a distribution that is wider by 1 / 0.88, truncated at two deviations."""
    return nn.init.trunc_normal_(tensor, std=std / 0.88, a=-2 * std / 0.88, b=2 * std / 0.88)


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    truncated(layer.weight.data, inputs**-0.5)
    return layer


class Layer(nn.Module):
    """Attention and SwiGLU, each followed by RMSNorm without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.join = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.widen, self.narrow = linear(WIDTH, 2 * INNER), linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = F.rms_norm(x + self.join(mixed), (WIDTH,), eps=1e-5)
        gate, up = self.widen(x).chunk(2, dim=-1)
        return F.rms_norm(x + self.narrow(F.silu(gate) * up), (WIDTH,), eps=1e-5)


class Prototype(nn.Module):
    """A call is one segment: two high cycles of two low cycles; only the last call of each module has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.high = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.digits = nn.Embedding(SIDE + 1, WIDTH)
        self.rows, self.columns, self.boxes = (nn.Embedding(SIDE, WIDTH) for _ in range(3))
        for table in (self.digits, self.rows, self.columns, self.boxes):
            truncated(table.weight.data, WIDTH**-0.5)
        self.to_digits, self.to_halting = linear(WIDTH, SIDE), nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.to_halting.weight)
        nn.init.constant_(self.to_halting.bias, -5.0)
        self.start: torch.Tensor
        self.register_buffer("start", truncated(torch.empty(2, WIDTH), 1.0))
        row, column = torch.arange(CELLS) // SIDE, torch.arange(CELLS) % SIDE
        self.places = row, column, row // 2 * 2 + column // 3

    def forward(self, puzzle: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row, column, box = self.places
        x = WIDTH**0.5 * (self.digits(puzzle) + self.rows(row) + self.columns(column) + self.boxes(box)) / 2
        with torch.no_grad():
            for number in range(HIGH_CYCLES * LOW_CYCLES - 1):
                low = self.low(low + high + x)
                if (number + 1) % LOW_CYCLES == 0:
                    high = self.high(high + low)
        low = self.low(low + high + x)
        high = self.high(high + low)
        return self.to_digits(high), self.to_halting(high[:, 0])[:, 0], high, low


def losses(digits: torch.Tensor, halting: torch.Tensor, solution: torch.Tensor) -> torch.Tensor:
    """The mean stablemax cross-entropy over all cells, plus half of the mean loss of halting over the puzzles."""
    logits = digits.double()
    # clamp, since 1 / 0 in the branch that is not used would make the gradient NaN
    score = torch.where(logits < 0, 1 / (1 - logits.clamp(max=0)), logits + 1)
    chosen = (score / score.sum(dim=-1, keepdim=True)).gather(-1, solution[..., None] - 1)
    solved = (digits.argmax(dim=-1) + 1 == solution).all(dim=1)
    return -chosen.log().mean() + 0.5 * F.binary_cross_entropy_with_logits(halting, solved.float())


class Data:
    """The training puzzles of a folder of prepared data, of which random symmetric images are drawn at each step."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed, self.random = folder, seed, np.random.default_rng(seed)
        self.puzzle, self.solution = self.split("train")

    def split(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        puzzle, solution = read_columns(self.folder / "rows" / name, ("puzzle", "solution")).values()
        return puzzle.astype(np.int64), solution.astype(np.int64)

    def draw(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random symmetric images of a batch of random puzzles, and of their solutions."""
        rows = self.random.integers(len(self.puzzle), size=BATCH)
        symmetries = symmetries_of(board_of(SIDE), self.seed, step, np.arange(BATCH))
        puzzle, solution = (torch.from_numpy(symmetries.apply(boards[rows])) for boards in (self.puzzle, self.solution))
        return puzzle, solution


@torch.no_grad()
def exact(model: Prototype, puzzle: np.ndarray, solution: np.ndarray) -> float:
    """The share of puzzles that are solved after all segments."""
    high, low = (start.expand(len(puzzle), CELLS, WIDTH) for start in model.start)
    for _ in range(SEGMENTS):
        digits, _, high, low = model(torch.from_numpy(puzzle), high, low)
    return float((digits.argmax(dim=-1).numpy() + 1 == solution).all(axis=1).mean())


def advance(model: Prototype, carry: Carry, data: Data, step: int) -> tuple[torch.Tensor, Carry]:
    """The loss of one segment of all slots, after halted puzzles have been replaced; and the next carry."""
    new, (puzzle, solution) = carry.halted[:, None], data.draw(step)
    puzzle, solution = torch.where(new, puzzle, carry.puzzle), torch.where(new, solution, carry.solution)
    high, low = (
        torch.where(new[..., None], start, old) for start, old in zip(model.start, (carry.high, carry.low), strict=True)
    )
    steps = torch.where(carry.halted, 0, carry.steps) + 1
    digits, halting, high, low = model(puzzle, high, low)
    fewest = torch.where(torch.rand(BATCH) < EXPLORATION, torch.randint(2, SEGMENTS + 1, (BATCH,)), 0)
    halted = (steps >= SEGMENTS) | ((halting > 0) & (steps >= fewest))
    return losses(digits, halting, solution), Carry(puzzle, solution, high.detach(), low.detach(), steps, halted)


def train(folder: str | Path, seed: int, total_s: float = 400.0, every_s: float = 25.0) -> dict[str, Any]:
    """Train for `total_s` CPU seconds, imports included. Returns the share of test puzzles solved, and a learning curve.

    The curve has the share of validation puzzles solved after every `every_s` CPU seconds. The CPU time of these
    evaluations does not count, which favours the prototype.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data, model = Data(Path(folder), seed), Prototype()
    optimizer, average = AdamATan2(model.parameters(), RATE, weight_decay=WEIGHT_DECAY), copy.deepcopy(model)
    blank, latent = torch.zeros(BATCH, CELLS, dtype=torch.int64), torch.zeros(BATCH, CELLS, WIDTH)
    carry = Carry(blank, blank, latent, latent, torch.zeros(BATCH, dtype=torch.int64), torch.ones(BATCH, dtype=torch.bool))
    step, not_counted, validation = 0, 0.0, data.split("validation")
    curve: list[list[float]] = []
    while len(curve) * every_s < total_s:
        loss, carry = advance(model, carry, data, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - AVERAGE)
        cpu_s = time.process_time() - not_counted
        if cpu_s >= every_s * (len(curve) + 1):
            curve.append([round(cpu_s, 2), exact(average, *validation)])
            not_counted = time.process_time() - cpu_s
            print(f"step {step}: {curve[-1]}", flush=True)
    scores = {"exact": exact(average, *data.split("test"))}
    return {"cpu_s": curve[-1][0], "steps": step, "curve": curve, **scores}
