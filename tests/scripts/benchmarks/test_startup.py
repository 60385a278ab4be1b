"""The benchmarks of starts, of checkpoints and of fits: how their results are computed."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import checkpoints, fit_overhead, startup


def test_ratios_are_taken_pair_by_pair() -> None:
    """A busy minute would count for one side only."""

    def run(ours: float, empty: float) -> dict[str, dict[str, float]]:
        return {"ours": {"wall_s": ours, "cpu_s": ours}, "empty": {"wall_s": empty, "cpu_s": empty}}

    result = startup.compared([run(2.0, 1.0), run(40.0, 20.0), run(6.0, 3.0)])
    assert result["empty"]["cpu_ratio"] == {"median": 2.0, "quartile_1": 2.0, "quartile_3": 2.0}
    assert result["ours"]["cpu_s"] == 6.0


def test_scripts_beside_train_py_end_without_the_exit_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would include a second of exit, which train.py, ended after its first step, does not."""
    monkeypatch.setattr(startup, "prepared_market", lambda *_: tmp_path)
    monkeypatch.setattr(startup, "commands_of_job", lambda *_: [])
    startup.prepare(tmp_path)
    stub = "def wait_for_everyone(self): print('step', flush=True)"
    (tmp_path / "accelerate.py").write_text(
        f"import atexit\natexit.register(print, 'exit')\nclass Accelerator:\n    {stub}\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "empty.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "step\n"


def test_seconds_of_overlapping_calls_count_once() -> None:
    """Training in two threads would be longer than the fit, or a gap between two calls would count as training."""
    assert fit_overhead.covered_s([(6.0, 7.0), (1.0, 3.0), (2.0, 2.5), (2.0, 4.0)]) == 4.0


def test_a_model_larger_than_memory_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine would end other processes, or a size would be missing without a reason."""
    result = checkpoints.checkpoints((10**6,), 2)
    assert result["10" + "0" * 5 + " M"]["asynchronous"].startswith("not measured: needs 24,001,500 MB, ")
