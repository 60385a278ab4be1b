"""Read the record of a training (see `Recorder`), and count the rows that it used wrongly."""

import collections
import json
from pathlib import Path
from typing import Any

Step = dict[int, float]
"""The rows of one optimizer step, and the weight of each in the loss."""
TOLERANCE = 1e-3
"""The largest relative error of a weight. Rounding causes 1e-6; a row that is used twice or averaged wrongly, far more."""


def record(folder: Path) -> list[dict[str, Any]]:
    """The lines that `Recorder` wrote. If several processes considered themselves the main one, each has written a file."""
    files = sorted(folder.glob("steps-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def steps(folder: Path) -> list[Step]:
    """The steps in a record."""
    return [dict(zip(line["rows"], line["shares"], strict=True)) for line in record(folder)]


def first_step_s(folder: Path) -> float:
    """The CPU seconds of a process from its start to the end of its first recorded step."""
    return round(record(folder)[0]["cpu_s"], 2)


def misplaced(steps: list[Step], expected: list[Step]) -> int:
    """The number of rows that are missing from the step in which they are expected, or have another weight in it."""
    steps = [*steps, *[{}] * (len(expected) - len(steps))]
    return sum(
        abs(step.get(row, 0.0) - weight) > TOLERANCE * weight
        for step, expected_step in zip(steps, expected, strict=False)
        for row, weight in expected_step.items()
    )


def repeated_and_missing(steps: list[Step], num_rows: int) -> dict[str, list[int]]:
    """The rows in more than one step of an epoch, and the rows in none of its steps."""
    times = collections.Counter(row for step in steps for row in step)
    return {
        "repeated": [row for row in range(num_rows) if times[row] > 1],
        "missing": [row for row in range(num_rows) if not times[row]],
    }
