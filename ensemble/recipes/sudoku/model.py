"""Recursive reasoning models for Sudoku: HRM, TRM, and the same modules without recursion.

HRM : Hierarchical Reasoning Model, Wang et al. 2025, arXiv:2506.21734; sapientinc/HRM, `models/hrm/hrm_act_v1.py`.
TRM : Tiny Recursive Model, Jolicoeur-Martineau 2025, arXiv:2510.04871; SamsungSAILMontreal/TinyRecursiveModels.

One call of `Reasoner` is one segment: it takes the latent states of the previous segment, and returns new ones with the
logits of the digits and of halting. The recipe carries the states, detached, from optimizer step to optimizer step.

Shape suffixes: B puzzles, L tokens (the cells, after the token of the puzzle embedding if there is one), D width, C digits
(the side of the board), O other initial states, of which only halting is predicted.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import nn

from ensemble.recipes.sudoku.layers import Blocks, PuzzleEmbedding, truncated_normal

SPREAD = math.sqrt(0.5)
"""The factor of token and position embeddings, so that their sum has variance 1."""
HALT_BIAS = -5.0
"""Initial logits of halting, so that no puzzle halts before the network has learned to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of the weights, and how often each module is applied in a segment."""

    side: int
    box_rows: int
    box_columns: int
    variant: str
    """hrm, trm or direct."""
    mixing: str
    """How a layer exchanges information between cells: attention, heads or tokens; see layers.py."""
    positions: str
    """none, rope, learned (one embedding for each cell) or units (the sum of embeddings of row, column and box)."""
    width: int
    num_layers: int
    num_heads: int
    inner_width: int
    high_cycles: int
    low_cycles: int
    num_starts: int
    num_puzzle_ids: int
    """Rows of the puzzle embedding; 0 for no puzzle token."""

    @property
    def num_cells(self) -> int:
        return self.side**2

    @property
    def num_tokens(self) -> int:
        return self.num_cells + (self.num_puzzle_ids > 0)


class Segment(NamedTuple):
    """The result of a segment."""

    digits: torch.Tensor
    """Logits of the digits 1 … side, (B, cells, C)."""
    halting: torch.Tensor
    """Logits of halting and of continuing, (B, 2)."""
    high: torch.Tensor
    """z_H, (B, L, D)."""
    low: torch.Tensor
    """z_L, (B, L, D)."""
    others: torch.Tensor | None
    """Logits of halting of `others_BOD`, (B, O, 2)."""


class Reasoner(nn.Module):
    """One segment of reasoning.

    hrm    : modules H and L; only the last call of each module has a gradient (one-step gradient).
    trm    : one network for both updates; the last of the `high_cycles` has the full gradient, the others have none.
    direct : z_L = L(start_L + start_H + x), z_H = H(start_H + z_L), both with gradient, without recursion.
    """

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.digits = nn.Embedding(shape.side + 1, shape.width)
        self.puzzles = PuzzleEmbedding(shape.num_puzzle_ids, shape.width) if shape.num_puzzle_ids else None
        counts = {"learned": [shape.num_tokens], "units": [shape.side] * 3}.get(shape.positions, [])
        self.positions = nn.ParameterList(truncated_normal(count, shape.width, std=shape.width**-0.5) for count in counts)
        arguments = shape.num_tokens, shape.width, shape.num_layers, shape.num_heads, shape.inner_width
        blocks: dict[str, Any] = {"mixing": shape.mixing, "has_rope": shape.positions == "rope"}
        self.low = Blocks(*arguments, **blocks)
        self.high = None if shape.variant == "trm" else Blocks(*arguments, **blocks)
        self.to_digits = nn.Linear(shape.width, shape.side, bias=False)
        self.to_halting = nn.Linear(shape.width, 2)
        self.high_start: torch.Tensor
        self.low_start: torch.Tensor
        self.units: torch.Tensor
        # The initial latent states of a puzzle, which are not trained
        self.register_buffer("high_start", truncated_normal(shape.num_starts, shape.width, std=1.0).data)
        self.register_buffer("low_start", truncated_normal(shape.num_starts, shape.width, std=1.0).data)
        rows, columns = torch.arange(shape.num_cells) // shape.side, torch.arange(shape.num_cells) % shape.side
        boxes = rows // shape.box_rows * shape.box_rows + columns // shape.box_columns
        self.register_buffer("units", torch.stack([rows, columns, boxes]), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        width = self.shape.width
        self.digits.weight.data = truncated_normal(*self.digits.weight.shape, std=width**-0.5).data
        self.to_digits.weight.data = truncated_normal(*self.to_digits.weight.shape, std=width**-0.5).data
        nn.init.zeros_(self.to_halting.weight)
        nn.init.constant_(self.to_halting.bias, HALT_BIAS)

    def embed(self, puzzle_BL: torch.Tensor, puzzle_id_B: torch.Tensor) -> torch.Tensor:
        """The input that is added to the latent states in every cycle. puzzle_BL : int64, 0 for a blank cell."""
        x_BLD = self.digits(puzzle_BL)
        if self.shape.positions == "units":
            rows, columns, boxes = self.units.unbind()
            row_embedding, column_embedding, box_embedding = self.positions
            x_BLD = x_BLD + row_embedding[rows] + column_embedding[columns] + box_embedding[boxes]
            x_BLD = x_BLD / 2
        if self.puzzles is not None:
            x_BLD = torch.cat([self.puzzles(puzzle_id_B)[:, None], x_BLD], dim=1)
        if self.shape.positions == "learned":
            x_BLD = SPREAD * (x_BLD + self.positions[0])
        return math.sqrt(self.shape.width) * x_BLD

    def forward(
        self,
        puzzle_BL: torch.Tensor,
        puzzle_id_B: torch.Tensor,
        start_B: torch.Tensor,
        is_new_B: torch.Tensor,
        high_BLD: torch.Tensor,
        low_BLD: torch.Tensor,
        others_BOD: torch.Tensor | None = None,
    ) -> Segment:
        """One segment; where `is_new_B` (bool), it begins with initial state `start_B` instead of the given states.

        others_BOD : the first tokens of O other initial states, for which only halting is predicted.
        """
        x_BLD, is_new = self.embed(puzzle_BL, puzzle_id_B), is_new_B[:, None, None]
        high_BLD = torch.where(is_new, self.high_start[start_B][:, None], high_BLD)
        low_BLD = torch.where(is_new, self.low_start[start_B][:, None], low_BLD)
        reason = {"hrm": self._hrm, "trm": self._trm, "direct": self._direct}[self.shape.variant]
        high_BLD, low_BLD = reason(x_BLD, high_BLD, low_BLD)
        cells = high_BLD if self.puzzles is None else high_BLD[:, 1:]
        return Segment(
            self.to_digits(cells),
            self.to_halting(high_BLD[:, 0]),
            high_BLD,
            low_BLD,
            None if others_BOD is None else self.to_halting(others_BOD),
        )

    def _hrm(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.high is not None
        shape = self.shape
        with torch.no_grad():
            for high_cycle in range(shape.high_cycles):
                is_last = high_cycle == shape.high_cycles - 1
                for _ in range(shape.low_cycles - is_last):
                    low = self.low(low + (high + x))
                if not is_last:
                    high = self.high(high + low)
        return self._direct(x, high, low)

    def _trm(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            for _ in range(self.shape.high_cycles - 1):
                high, low = self._trm_cycle(x, high, low)
        return self._trm_cycle(x, high, low)

    def _trm_cycle(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(self.shape.low_cycles):
            low = self.low(low + (high + x))
        return self.low(high + low), low

    def _direct(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.high is not None
        low = self.low(low + (high + x))
        return self.high(high + low), low
