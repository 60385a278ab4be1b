"""The project's commands, run as processes on one thread and measured."""

import sys
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, SCRIPTS, timed
from ensemble import folders

PRESETS = ROOT / "ensemble" / "recipes" / "sudoku" / "presets"
PRESET = PRESETS / "sudoku_demo.yaml"
ONE_THREAD = ("env", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE")


def prepare(data: Path, *words: str) -> None:
    timed([*ONE_THREAD, sys.executable, SCRIPTS / "prepare_data.py", "--recipe", "sudoku", *words, f"out={data}"])


def train(preset: Path, data: Path, member: Path, *words: str) -> dict[str, float]:
    """Wall and CPU seconds, and peak memory: imports and evaluations included."""
    chosen = ("--recipe", "sudoku", "--config", preset, f"data={data}", f"out={member}")
    return timed([*ONE_THREAD, sys.executable, SCRIPTS / "train.py", *chosen, *words])


def examined(member: Path, data: Path, *words: str) -> dict[str, Any]:
    """Scores of the test puzzles: see ensemble/recipes/sudoku/examine.py."""
    out = member.with_name(f"{member.name}.scores")
    examine = [sys.executable, "-m", "ensemble.recipes.sudoku.examine", f"member={member}", f"data={data}", f"out={out}"]
    timed([*ONE_THREAD, *examine, *words, "overwrite=true"])
    scores: dict[str, Any] = folders.read_json(out / "scores.json")
    return scores
