"""The record of a training, and how many of its rows are wrong."""

import collections
import json
from pathlib import Path
from typing import Any

Step = dict[int, float]
"""The rows of one optimizer step, and the weight of each in the loss."""
TOLERANCE = 1e-3
"""Relative error of a weight. A row that is used twice or averaged wrongly exceeds it by far; rounding is 1e-6."""


def record(folder: Path) -> list[dict[str, Any]]:
    """The lines that `Recorder` wrote, file by file if several processes considered themselves the main one."""
    files = sorted(folder.glob("steps-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def steps(folder: Path) -> list[Step]:
    return [dict(zip(line["rows"], line["shares"], strict=True)) for line in record(folder)]


def first_step_s(folder: Path) -> float:
    """The CPU seconds of the first process up to the end of its first recorded step."""
    return round(record(folder)[0]["cpu_s"], 2)


def misplaced(steps: list[Step], expected: list[Step]) -> int:
    """The number of rows that are missing from their expected step, or have another weight in it."""
    steps = [*steps, *[{}] * (len(expected) - len(steps))]
    return sum(
        abs(step.get(row, 0.0) - weight) > TOLERANCE * weight
        for step, expected_step in zip(steps, expected, strict=False)
        for row, weight in expected_step.items()
    )


def census(steps: list[Step], num_rows: int) -> dict[str, list[int]]:
    """For the steps of one epoch: the rows in more than one step, and the rows in none."""
    times = collections.Counter(row for step in steps for row in step)
    return {
        "repeated": [row for row in range(num_rows) if times[row] > 1],
        "missing": [row for row in range(num_rows) if not times[row]],
    }
