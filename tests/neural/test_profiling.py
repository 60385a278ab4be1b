"""Traces of training steps."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ensemble.neural.profiling import profile


def train(folder: Path, num_steps: int, **options: Any) -> list[str]:
    messages: list[str] = []
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with profile(folder, log=messages.append, **options) as profiler:
        for _ in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            profiler.step()
    return messages


def test_the_trace_has_the_operations_of_the_requested_steps(tmp_path: Path) -> None:
    """Perfetto would reject the file, or it would have other steps or no backward pass."""
    messages = train(tmp_path, 9, enabled=True, rank=1, steps=(2, 1, 3))
    file = tmp_path / "profile" / "rank1.json.gz"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert messages == [f"the trace is in {file}: open it in https://ui.perfetto.dev"]
    with gzip.open(file, "rt") as content:
        events = [event for event in json.load(content)["traceEvents"] if event.get("ph") == "X"]
    names = [event["name"] for event in events]
    assert sorted({name for name in names if name.startswith("ProfilerStep#")}) == [f"ProfilerStep#{n}" for n in (3, 4, 5)]
    assert names.count("aten::linear") == 3 * 2
    assert names.count("AddmmBackward0") == 3 * 2
    assert all({"ts", "dur", "pid", "tid"} <= event.keys() for event in events)


def test_training_that_ends_too_soon_is_reported(tmp_path: Path) -> None:
    """A user would look for a file that does not exist."""
    assert train(tmp_path, 2, enabled=True, steps=(2, 1, 3)) == [
        "no trace was written: this command made fewer than 3 steps, after which the trace begins"
    ]
    (message,) = train(tmp_path, 4, enabled=True, steps=(2, 1, 3))
    assert "the trace is in" in message


def test_the_trace_of_an_earlier_command_is_kept(tmp_path: Path) -> None:
    """`--profile` with the resume of a run that is almost complete would delete the trace, and write none."""
    train(tmp_path, 4, enabled=True, steps=(2, 1, 3))
    before = (tmp_path / "profile/rank0.json.gz").read_bytes()
    (message,) = train(tmp_path, 2, enabled=True, steps=(2, 1, 3))
    assert message.startswith("no trace was written")
    assert (tmp_path / "profile/rank0.json.gz").read_bytes() == before


def test_without_the_option_nothing_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training would be slowed down by a profiler."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a profiler was started")

    monkeypatch.setattr(torch.profiler, "profile", refuse)
    assert train(tmp_path, 9, enabled=False) == []
    assert not list(tmp_path.iterdir())
