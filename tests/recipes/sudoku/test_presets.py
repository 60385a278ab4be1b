"""The presets of sudoku: each is read, prepares data by the command in its comment, and makes the published model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from preset_commands import commands

from ensemble import configuration
from ensemble.neural.settings import config_class
from ensemble.recipes.sudoku import training
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.prepare import prepare
from ensemble.recipes.sudoku.puzzles import generate
from ensemble.recipes.sudoku.settings import PrepareConfig

ROOT = Path(__file__).resolve().parents[3]
PRESETS = {file.stem: file for file in (ROOT / "ensemble/recipes/sudoku/presets").glob("*.yaml")}
FEW = ["num_train=20", "num_validation=2", "num_blend=2", "num_test=5"]
MILLIONS = {"sudoku_extreme_hrm": (27.2, 27.4), "sudoku_extreme_trm": (4.5, 7.0)}
"""Weights that the papers give, 27 and 5 million."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_runs_on_the_data_that_it_names(name: str, tmp_path: Path) -> None:
    """Users with the data would discover that the command was never tested."""
    preset, board = PRESETS[name], board_of(9)
    words = commands(preset)
    train = words["scripts/train.py"]
    assert train[:4] == ["--recipe", "sudoku", "--config", str(preset.relative_to(ROOT))]
    assert f"data=runs/{name}/prepared" in train
    assert words["scripts/prepare_data.py"][:2] == ["--recipe", "sudoku"]
    requested = words["scripts/prepare_data.py"][2:]
    assert f"out=runs/{name}/prepared" in requested
    requested = [word for word in requested if not word.startswith(("source=", "test_source=", "out=", "num_"))]
    if name in MILLIONS:
        for file, seed in (("train", 0), ("test", 1)):
            generated = zip(*generate(board, seed=seed, first=0, count=25, clues=30), strict=True)
            texts = [f"x,{''.join(map(str, puzzle))},{''.join(map(str, solution))},4" for puzzle, solution in generated]
            (tmp_path / f"{file}.csv").write_text("\n".join(["source,question,answer,rating", *texts]), encoding="utf-8")
        requested += [f"source=[{tmp_path / 'train.csv'}]", f"test_source=[{tmp_path / 'test.csv'}]"]
    data = str(tmp_path / "prepared")
    prepare(configuration.load(PrepareConfig, None, [*requested, *FEW, f"out={data}"]))
    settings: Any = configuration.load(config_class("sudoku"), preset, [f"data={data}", "out=run"])
    recipe = training.make(settings.recipe, data)
    if name in MILLIONS:
        low, high = MILLIONS[name]
        with torch.device("meta"):  # without their values
            assert low < sum(weight.numel() for weight in recipe.model().parameters()) / 1e6 < high
        return
    model = recipe.model()
    with torch.inference_mode():
        result = recipe.predict(model, recipe.rows("test").gather(np.arange(5)))
    side = recipe.board.side
    assert result["prediction"].shape == (5, side**2, side)


def test_every_preset_names_where_its_figures_are_from() -> None:
    """Readers would take a published figure for one that was measured here."""
    assert set(PRESETS) == {"sudoku_demo", "sudoku_9x9_cpu", *MILLIONS}
    for name, preset in PRESETS.items():
        text = " ".join(preset.read_text(encoding="utf-8").split())
        assert ("not measured here" in text) == (name in MILLIONS)
        assert ("Published: " in text) == (name in MILLIONS)
