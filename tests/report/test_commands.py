"""The commands at the end of the report."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ensemble import configuration, folders
from ensemble.pipeline.settings import config_class
from ensemble.report import commands


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ({}, "accelerate launch --config_file accelerate_configs/single_cpu.yaml"),
        ({"ranks": 1, "device": "cuda:0"}, "accelerate launch --config_file accelerate_configs/single_gpu.yaml"),
        ({"ranks": 4, "device": "cpu"},
         "accelerate launch --config_file accelerate_configs/multi_cpu.yaml --num_processes 4"),
        ({"ranks": 8, "device": "cuda:0"},
         "accelerate launch --config_file accelerate_configs/multi_gpu.yaml --num_processes 8"),
        ({"ranks": 8, "device": "cuda:0", "sharded": True},
         "accelerate launch --config_file accelerate_configs/multi_gpu_sharded.yaml --num_processes 8"),
    ],
)  # fmt: skip
def test_the_launcher_starts_the_ranks_of_the_training(summary: dict[str, Any], words: str) -> None:
    """Two ranks would be started, the number in the file, or each rank would hold all of the weights, which may not fit."""
    assert commands.launcher(summary) == words.split()


def test_the_command_of_a_fit_names_the_same_files(tmp_path: Path) -> None:
    """A file `a, b.csv` would become two files, and the column `price ${` would be refused."""
    settings = {"source": ["raw/a, b.csv", "größe ${x}.csv"], "target": "price ${"}
    folders.write_json(tmp_path / "fit.json", {"written_by": folders.MARK, "recipe": "table", "settings": settings})
    run: Any = SimpleNamespace(
        manifest={}, folder_of={name: tmp_path / name for name in ("data", "ensemble", "predictions")}
    )
    (line,) = commands.commands(run)
    words = shlex.split(line)
    assert words[:4] == ["python", "scripts/fit.py", "--recipe", "table"]
    config = configuration.load(config_class("table"), None, words[4:])
    assert (config.source, config.target) == (("a, b.csv", "größe ${x}.csv"), "price ${")
