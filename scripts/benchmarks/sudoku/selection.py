"""Candidates of one network and of two, at equal cost of training and of prediction, on 6 × 6 boards with 18 clues.

Trainings are so short that many test puzzles are not solved. If the first candidate of a puzzle is wrong and another one is
right, this is a failure of selection; if all are wrong, a failure of search.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from benchmarks.commands import command
from benchmarks.sudoku.training import SUDOKU
from ensemble.neural.predict import NeuralMember
from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.inference import Predicted, PredictOptions

DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=200", "num_blend=200", "num_test=2000")
EPOCHS = 4
"""Epochs of the network that is trained alone; few, so that some puzzles are not solved."""
CANDIDATES = 4
"""Candidates for a puzzle: from starts or symmetric images of one network, or half as many from each of two networks."""
WINNER_SHARE = 0.6
"""Epochs with two latent starts that cost as much as one epoch with one start: with two, a step takes 5/3 of the time."""
BATCH = 500
"""Puzzles that are predicted at once."""
HALVES = ("half, seed 0", "half, seed 1")
Candidates = tuple[torch.Tensor, torch.Tensor]
"""Probabilities (B, N, cells, side) and logits of halting (B, N) of N candidates for each of B puzzles."""


@command
def sudoku_selection() -> dict[str, Any]:
    """Candidates from latent starts, symmetric images or several networks, at equal cost; three CPU minutes."""
    torch.set_num_threads(1)
    trainings: dict[str, tuple[float, list[str]]] = {
        "whole": (EPOCHS, []),
        "two starts": (WINNER_SHARE * EPOCHS, ["recipe.starts=2"]),
        **{name: (EPOCHS / 2, [f"seed={seed}"]) for seed, name in enumerate(HALVES)},
    }
    cost: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        SUDOKU.prepare(data, *DATA)
        for name, (length, words) in trainings.items():
            member = Path(scratch) / name
            cost[name] = SUDOKU.train(
                "sudoku_demo", data, member, f"max_epochs={length}", f"recipe.reveal_epochs={length}", *words
            )["cpu_s"]
            print(f"{name}: {cost[name]} CPU seconds", flush=True)
        accelerator = Accelerator(cpu=True)
        solvers = {name: _Solver(Path(scratch) / name, data, accelerator) for name in trainings}
        whole, solution = solvers["whole"], solvers["whole"].solution
        halves = [solvers[name].candidates(votes=CANDIDATES // 2) for name in HALVES]
        several = {f"{CANDIDATES} starts": {"starts": CANDIDATES}, f"{CANDIDATES} symmetries": {"votes": CANDIDATES}}
        sets: dict[str, Candidates] = {
            "one": whole.candidates(),
            **{name: whole.candidates(**settings) for name, settings in several.items()},
            "two trained starts": solvers["two starts"].candidates(starts=2, votes=CANDIDATES // 2),
            "two networks": tuple(torch.cat(tensors, dim=1) for tensors in zip(*halves, strict=True)),  # type: ignore[dict-item]
            **{name: (first[:, :1], halting[:, :1]) for name, (first, halting) in zip(HALVES, halves, strict=True)},
        }
        results = {name: scores_of(*candidates, solution) for name, candidates in sets.items()}
        for name, settings in several.items():
            first = whole.predict(select="first", **settings)
            solved = (first.probabilities.argmax(dim=-1) + 1 == solution).all(dim=1)
            results[name] |= {"first": _mean(solved), "calls of first": _mean(first.calls)}
    return {"settings": list(DATA), "epochs": EPOCHS, "cpu_s": cost, "candidates": results}


def scores_of(candidates: torch.Tensor, halting: torch.Tensor, solution: torch.Tensor) -> dict[str, Any]:
    """The share of puzzles solved by each way to combine candidates, and that with at least one right candidate, `any`."""
    solved = (candidates.argmax(dim=-1) + 1 == solution[:, None]).all(dim=-1)
    boards = {
        select: inference.combined(candidates, halting, select).argmax(dim=-1) + 1 for select in ("mean", "vote", "surest")
    }
    fails = ~solved[:, 0]
    return {
        **{select: _mean((board == solution).all(dim=1)) for select, board in boards.items()},
        "first candidate": _mean(solved[:, 0]),
        "any": _mean(solved.any(dim=1)),
        "failures": int(fails.sum()),
        "failures_of_selection": _mean(solved[fails].any(dim=1)) if fails.any() else None,
    }


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean())


class _Solver:
    """A trained network, and the test puzzles."""

    def __init__(self, member: Path, data: Path, accelerator: Accelerator):
        self.member = NeuralMember(member, accelerator, data)
        self.recipe: Any = self.member.recipe_of(data)
        columns = self.recipe.rows("test").columns
        self.puzzle, self.solution = (
            torch.from_numpy(columns[name].all().astype(np.int64)) for name in ("puzzle", "solution")
        )

    def predict(self, **settings: Any) -> Predicted:
        options = PredictOptions(segments=self.recipe.config.predict_segments, **settings)
        parts = [
            inference.predict(
                self.member.model, puzzle, self.recipe.board, self.recipe.shape, options, self.recipe.config.loss
            )
            for puzzle in self.puzzle.split(BATCH)
        ]
        return Predicted(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def candidates(self, **settings: Any) -> Candidates:
        predicted = self.predict(**settings)
        return predicted.candidates, predicted.halting
