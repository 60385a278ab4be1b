"""The commands at the end of the report."""

from typing import Any

import pytest

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
    ],
)  # fmt: skip
def test_the_launcher_starts_as_many_ranks_as_the_training_had(summary: dict[str, Any], words: str) -> None:
    """Two ranks would be started, the number in the file, whatever the training had."""
    assert commands.launcher(summary) == words.split()
