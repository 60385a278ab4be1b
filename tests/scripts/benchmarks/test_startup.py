"""The benchmarks of starts and of checkpoints: what they make of their runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import checkpoints, startup


def lines(file: Path, *marks: tuple[str, float, float]) -> None:
    file.write_text("".join(json.dumps(dict(zip(("part", "time_s", "cpu_s"), mark, strict=True))) + "\n" for mark in marks))


def test_parts_are_differences_of_marks(tmp_path: Path) -> None:
    """A part would contain those before it, or the CPU seconds of one rank only."""
    lines(tmp_path / "0.jsonl", ("settings", 101.0, 0.5), ("first step", 104.0, 2.5))
    lines(tmp_path / "1.jsonl", ("settings", 101.5, 0.6), ("first step", 104.5, 2.0))
    parts = startup.parts_of(tmp_path, 100.0)
    assert list(parts) == ["settings", "first step"]
    assert parts["settings"] == pytest.approx({"wall_s": 1.5, "cpu_s": 1.1})
    assert parts["first step"] == pytest.approx({"wall_s": 3.0, "cpu_s": 3.4})


def test_ratios_are_taken_pair_by_pair() -> None:
    """A busy minute would count for one side only; or the launcher for no part."""

    def run(ours: float, empty: float) -> dict[str, Any]:
        parts = {"settings": {"wall_s": 1.0, "cpu_s": 0.25 * ours}, "first step": {"wall_s": 1.0, "cpu_s": 0.5 * ours}}
        return {"ours": {"wall_s": ours, "cpu_s": ours, "parts": parts}, "empty": {"wall_s": empty, "cpu_s": empty}}

    found = startup.compared([run(2.0, 1.0), run(40.0, 20.0), run(6.0, 3.0)])
    assert found["empty"]["cpu_ratio"] == {"median": 2.0, "quartile_1": 2.0, "quartile_3": 2.0}
    assert found["parts"]["launcher"]["cpu_s"] == pytest.approx(1.5)


def test_a_model_larger_than_memory_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine would end other processes; or a size be missing without a reason."""
    found = checkpoints.checkpoints((10**6,), 2)
    assert found["10" + "0" * 5 + " M"]["asynchronous"].startswith("not measured: needs 24,001,500 MB, ")
