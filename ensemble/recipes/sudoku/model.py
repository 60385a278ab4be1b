"""Recursive reasoning models for Sudoku: HRM, TRM, and the same modules without recursion.

HRM : Hierarchical Reasoning Model, Wang et al. 2025, arXiv:2506.21734; sapientinc/HRM, `models/hrm/hrm_act_v1.py`.
TRM : Tiny Recursive Model, Jolicoeur-Martineau 2025, arXiv:2510.04871; SamsungSAILMontreal/TinyRecursiveModels.

One call of `Reasoner` is one segment: it takes the latent states z_H and z_L of the previous segment, and returns new ones
with the logits of the digits and of halting. The recipe carries the states, detached, from optimizer step to optimizer step.

Shape suffixes: B puzzles, L tokens (the cells, after the token of the puzzle embedding if there is one), D width, C digits
(the side of the board), O latent starts for which only halting is predicted.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import nn

from ensemble.recipes.sudoku.layers import Blocks, PuzzleEmbedding, truncated_normal

SPREAD = math.sqrt(0.5)
"""The factor of the sum of token and position embeddings, so that it has the variance of one of them."""
HALT_BIAS = -5.0
"""Initial logits of halting and continuing, so that no puzzle halts before the network has learned when to halt."""


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
    has_puzzle_token: bool
    """Whether there is a learned token before the cells, the same for all puzzles."""

    @property
    def num_cells(self) -> int:
        return self.side**2

    @property
    def num_tokens(self) -> int:
        return self.num_cells + self.has_puzzle_token


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
    """Logits of halting and of continuing for `others_BOD`, (B, O, 2)."""


class Reasoner(nn.Module):
    """One segment: `high_cycles` cycles of `low_cycles` updates z_L ← L(z_L + z_H + x) and then one z_H ← H(z_H + z_L).

    hrm    : modules H and L; only the last call of each module has a gradient (one-step gradient).
    trm    : H and L are one network; the last cycle has the full gradient, the others have none.
    direct : modules H and L, each called once, with gradient; no recursion.
    """

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.digits = nn.Embedding(shape.side + 1, shape.width)
        self.puzzles = PuzzleEmbedding(1, shape.width) if shape.has_puzzle_token else None
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
        # The latent starts: z_H and z_L before the first segment of a puzzle. They are random, and are not trained
        self.register_buffer("high_start", truncated_normal(shape.num_starts, shape.width, std=1.0).data)
        self.register_buffer("low_start", truncated_normal(shape.num_starts, shape.width, std=1.0).data)
        rows, columns = torch.arange(shape.num_cells) // shape.side, torch.arange(shape.num_cells) % shape.side
        boxes = rows // shape.box_rows * shape.box_rows + columns // shape.box_columns
        self.register_buffer("units", torch.stack([rows, columns, boxes]), persistent=False)
        for layer in (self.digits, self.to_digits):
            layer.weight.data = truncated_normal(*layer.weight.shape, std=shape.width**-0.5).data
        nn.init.zeros_(self.to_halting.weight)
        nn.init.constant_(self.to_halting.bias, HALT_BIAS)

    def embed(self, puzzle_BL: torch.Tensor) -> torch.Tensor:
        """The input x that is added in every update of z_L, (B, L, D). puzzle_BL : (B, cells) int64, 0 for a blank cell."""
        x_BLD = self.digits(puzzle_BL)
        if self.shape.positions == "units":
            rows, columns, boxes = self.units.unbind()
            row_embedding, column_embedding, box_embedding = self.positions
            x_BLD = (x_BLD + row_embedding[rows] + column_embedding[columns] + box_embedding[boxes]) / 2
        if self.puzzles is not None:
            x_BLD = torch.cat([self.puzzles(torch.zeros_like(puzzle_BL[:, 0]))[:, None], x_BLD], dim=1)
        if self.shape.positions == "learned":
            x_BLD = SPREAD * (x_BLD + self.positions[0])
        return math.sqrt(self.shape.width) * x_BLD

    def forward(
        self,
        puzzle_BL: torch.Tensor,
        start_B: torch.Tensor,
        is_new_B: torch.Tensor,
        high_BLD: torch.Tensor,
        low_BLD: torch.Tensor,
        others_BOD: torch.Tensor | None = None,
    ) -> Segment:
        """One segment. Where `is_new_B` (bool) is true, it begins from latent start `start_B` instead of the given states.

        others_BOD : the first tokens of z_H of O latent starts, for which only halting is predicted.
        """
        x_BLD, is_new = self.embed(puzzle_BL), is_new_B[:, None, None]
        high_BLD = torch.where(is_new, self.high_start[start_B][:, None], high_BLD)
        low_BLD = torch.where(is_new, self.low_start[start_B][:, None], low_BLD)
        high_BLD, low_BLD = self._reason(x_BLD, high_BLD, low_BLD)
        cells = high_BLD if self.puzzles is None else high_BLD[:, 1:]
        return Segment(
            self.to_digits(cells),
            self.to_halting(high_BLD[:, 0]),
            high_BLD,
            low_BLD,
            None if others_BOD is None else self.to_halting(others_BOD),
        )

    def _reason(
        self, x_BLD: torch.Tensor, high_BLD: torch.Tensor, low_BLD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """z_H and z_L after all cycles."""
        shape = self.shape
        high_cycles, low_cycles = (1, 1) if shape.variant == "direct" else (shape.high_cycles, shape.low_cycles)
        num_with_gradient = low_cycles if shape.variant == "trm" else 1
        with torch.no_grad():
            for _ in range(high_cycles - 1):
                high_BLD, low_BLD = self._cycle(x_BLD, high_BLD, low_BLD, low_cycles)
            for _ in range(low_cycles - num_with_gradient):
                low_BLD = self.low(low_BLD + (high_BLD + x_BLD))
        return self._cycle(x_BLD, high_BLD, low_BLD, num_with_gradient)

    def _cycle(
        self, x_BLD: torch.Tensor, high_BLD: torch.Tensor, low_BLD: torch.Tensor, low_cycles: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(low_cycles):
            low_BLD = self.low(low_BLD + (high_BLD + x_BLD))
        update_high = self.low if self.high is None else self.high
        return update_high(high_BLD + low_BLD), low_BLD
