"""The record of a training, and how many of its rows are wrong."""

import json
from pathlib import Path
from typing import Any

Step = dict[int, float]
"""The rows of one optimizer step, and the weight of each in the loss."""
TOLERANCE = 1e-3
"""Relative; a row that came twice or was averaged wrongly is off by far more, rounding in float32 by 1e-6."""


def record(folder: Path) -> list[dict[str, Any]]:
    """The lines that `Recorder` wrote; of several processes that each take themselves for the main one, in turn."""
    lines: list[dict[str, Any]] = []
    for file in sorted(folder.glob("steps-*.jsonl")):
        lines += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return lines


def steps(folder: Path) -> list[Step]:
    return [dict(zip(line["rows"], line["shares"], strict=True)) for line in record(folder)]


def misplaced(found: list[Step], expected: list[Step]) -> int:
    """Rows of the expected steps that are not in their step, or have another weight in it."""
    found = [*found, *[{}] * (len(expected) - len(found))]
    return sum(
        abs(got.get(row, 0.0) - weight) > TOLERANCE * weight
        for got, step in zip(found, expected, strict=False)
        for row, weight in step.items()
    )


def census(found: list[Step], num_rows: int) -> dict[str, list[int]]:
    """Of the steps of one epoch: the rows in more than one step, and the rows in none."""
    times = [0] * num_rows
    for step in found:
        for row in step:
            times[row] += 1
    return {
        "repeated": [row for row, count in enumerate(times) if count > 1],
        "missing": [row for row, count in enumerate(times) if not count],
    }
