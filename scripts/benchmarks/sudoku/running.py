"""The commands of this project for sudoku, run on one thread and measured."""

import sys
from pathlib import Path
from typing import Any

from benchmarks.timing import ONE_THREAD, ROOT, script, timed
from ensemble import folders

PRESETS = ROOT / "ensemble" / "recipes" / "sudoku" / "presets"
PRESET = PRESETS / "sudoku_demo.yaml"


def prepare(data: Path, *words: str) -> None:
    timed([*ONE_THREAD, *script("prepare_data", "--recipe", "sudoku", *words, f"out={data}")])


def train(preset: Path, data: Path, member: Path, *words: str) -> dict[str, float]:
    """Wall and CPU seconds, and peak memory, imports and evaluations included."""
    recipe = ("--recipe", "sudoku", "--config", preset, f"data={data}", f"out={member}")
    return timed([*ONE_THREAD, *script("train", *recipe, *words)])


def examine(member: Path, data: Path, *words: str) -> dict[str, Any]:
    """Scores of the test puzzles: see ensemble/recipes/sudoku/examine.py."""
    out = member.with_name(f"{member.name}.scores")
    module = [sys.executable, "-m", "ensemble.recipes.sudoku.examine"]
    timed([*ONE_THREAD, *module, f"member={member}", f"data={data}", f"out={out}", *words, "overwrite=true"])
    scores: dict[str, Any] = folders.read_json(out / "scores.json")
    return scores
