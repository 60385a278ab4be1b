"""Candidates of one network and of several, at equal cost of training and of prediction, on 6 × 6 boards with 18 clues.

Trainings are so short that a good part of the test puzzles fails. Of the puzzles that the first candidate does not solve,
the share that another candidate solves is that of failures of selection; the others are failures of search.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from benchmarks.sudoku.running import PRESET, prepare, train
from ensemble.neural.predict import NeuralMember
from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.inference import How, Predicted

NUM_TEST = 2000
DATA = ("side=6", "clues=18", "num_train=1000", "num_validation=200", "num_blend=200", f"num_test={NUM_TEST}")
CANDIDATES = 4
"""Of each way to predict, so that all cost the same: one network with so many starts or images, or two with half as many."""
WINNER_SHARE = 0.6
"""Epochs with two latent starts that cost one epoch with one: a segment without gradient of both is 2/3 of a step more."""
BATCH = 500
JOINED = ("mean", "vote", "surest")
Each = tuple[torch.Tensor, torch.Tensor]
"""Probabilities (B, N, cells, side) and logits of halting (B, N) of N candidates."""


def measured(epochs: int) -> dict[str, Any]:
    """CPU seconds of each training; for each set of candidates the share of puzzles solved, by how they are joined."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        data, members = Path(scratch) / "prepared", Path(scratch)
        prepare(data, *DATA)
        settings: dict[str, tuple[float, tuple[str, ...]]] = {
            "whole": (epochs, ()),
            "two starts": (WINNER_SHARE * epochs, ("recipe.starts=2",)),
            "half, seed 0": (epochs / 2, ()),
            "half, seed 1": (epochs / 2, ("seed=1",)),
        }
        cost = {}
        for name, (length, words) in settings.items():
            words = (f"max_epochs={length}", f"recipe.reveal_epochs={length}", *words)
            cost[name] = train(PRESET, data, members / name, *words)["cpu_s"]
            print(f"{name}: {cost[name]} CPU seconds", flush=True)
        accelerator = Accelerator(cpu=True)
        solvers = {name: _Solver(members / name, data, accelerator) for name in settings}
        solution = solvers["whole"].solution
        halves = [solvers[name].each(votes=CANDIDATES // 2) for name in ("half, seed 0", "half, seed 1")]
        sets: dict[str, Each] = {
            "one": solvers["whole"].each(),
            f"{CANDIDATES} starts": solvers["whole"].each(starts=CANDIDATES),
            f"{CANDIDATES} symmetries": solvers["whole"].each(votes=CANDIDATES),
            "two trained starts": solvers["two starts"].each(starts=2, votes=CANDIDATES // 2),
            "two networks": (torch.cat([of for of, _ in halves], dim=1), torch.cat([of for _, of in halves], dim=1)),
        }
        found = {name: _scores(*each, solution) for name, each in sets.items()}
        for number, name in enumerate(("half, seed 0", "half, seed 1")):
            found[name] = _scores(halves[number][0][:, :1], halves[number][1][:, :1], solution)
        for name, setting in ((f"{CANDIDATES} starts", "starts"), (f"{CANDIDATES} symmetries", "votes")):
            first = solvers["whole"].predicted(select="first", **{setting: CANDIDATES})
            solved = first.probabilities.argmax(dim=-1) + 1 == solution
            found[name]["first"] = float(solved.all(dim=1).double().mean())
            found[name]["calls of first"] = float(first.calls.double().mean())
    return {"settings": list(DATA), "epochs": epochs, "cpu_s": cost, "candidates": found}


def _scores(each: torch.Tensor, halting: torch.Tensor, solution: torch.Tensor) -> dict[str, Any]:
    """By how they are joined; `any`: a candidate solves it; `failures_of_selection`: see the docstring of this file."""
    solved = (each.argmax(dim=-1) + 1 == solution[:, None]).all(dim=-1)
    shares = {}
    for select in JOINED:
        boards = inference.joined(each, halting, select).argmax(dim=-1) + 1
        shares[select] = float((boards == solution).all(dim=1).double().mean())
    fails = ~solved[:, 0]
    return {
        **shares,
        "first candidate": float(solved[:, 0].double().mean()),
        "any": float(solved.any(dim=1).double().mean()),
        "failures": int(fails.sum()),
        "failures_of_selection": float(solved[fails].any(dim=1).double().mean()) if fails.any() else None,
    }


class _Solver:
    """A trained network, and the test puzzles."""

    def __init__(self, member: Path, data: Path, accelerator: Accelerator):
        self.member = NeuralMember(member, accelerator, data)
        self.recipe: Any = self.member.recipe_of(data)
        columns = self.recipe.rows("test").columns
        self.puzzle, self.solution = (
            torch.from_numpy(columns[name].all().astype(np.int64)) for name in ("puzzle", "solution")
        )

    def predicted(self, **words: Any) -> Predicted:
        how = How(segments=self.recipe.config.predict_segments, **words)
        shape = self.recipe.shape_of(self.member.model)
        parts = [
            inference.predict(self.member.model, puzzle, self.recipe.board, shape, how, self.recipe.config.loss)
            for puzzle in self.puzzle.split(BATCH)
        ]
        return Predicted(*(torch.cat(of) for of in zip(*parts, strict=True)))

    def each(self, **words: Any) -> Each:
        found = self.predicted(**words)
        return found.candidates, found.halting
