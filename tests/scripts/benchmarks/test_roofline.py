"""The benchmark of training steps beside the limits of the machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import exchange, roofline

from ensemble.errors import UserError

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "benchmark.py"


@pytest.mark.torture
def test_a_step_is_divided_and_counted(tmp_path: Path) -> None:
    """A part would be missing or counted twice, or the benchmark would end without figures."""
    words = ["recipes=[emulator]", "seconds=0.1", f"folder={tmp_path / 'data'}", f"results={tmp_path}"]
    subprocess.run([sys.executable, SCRIPT, "roofline", *words], check=True, capture_output=True, timeout=300)
    steps = json.loads((tmp_path / "roofline.json").read_text())["steps"]
    figures = steps["emulator, no"]
    parts = [figures[part] for part in ("arithmetic", "memory", "python", "waiting")]
    assert all(0 <= part <= 1 for part in parts), figures
    assert 0.9 <= sum(parts) <= 1.5
    # 7 inputs, three layers of 64: three products for forward and backward, twice for the Jacobian in the loss
    products = 2 * 1000 * (7 * 64 + 2 * 64 * 64 + 64)
    assert 3 * products <= figures["gflops_a_step"] * 1e9 <= 9 * products
    assert figures["gb_a_step"] > 0


@pytest.mark.torture
def test_a_step_on_two_ranks_is_divided(tmp_path: Path) -> None:
    """The exchange would be measured where there is none, or left out of the step that contains it."""
    words = ["recipe=table", "rounds=3", f"folder={tmp_path / 'data'}", f"results={tmp_path}"]
    subprocess.run([sys.executable, SCRIPT, "exchange", *words], check=True, capture_output=True, timeout=300)
    figures = json.loads((tmp_path / "exchange.json").read_text())
    assert (figures["ranks"], figures["batch_size"], figures["step_ms"]["median"] > 0) == (2, 256, True)
    assert figures["work"]["quartile_1"] > 0
    assert figures["waiting_for_the_slowest"]["quartile_1"] >= 0


def test_names_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    """Minutes would pass before a misspelt recipe is noticed."""
    with pytest.raises(UserError, match="'sudoko' is unknown"):
        roofline.roofline(recipes=("sudoko",), folder=str(tmp_path))


def test_without_a_gpu_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a CPU would be written as those of a GPU."""
    monkeypatch.setattr(roofline, "num_gpus", lambda: 0)
    with pytest.raises(UserError, match="no GPU on this machine"):
        roofline.gpu()


def test_settings_are_checked_before_data_are_generated(tmp_path: Path) -> None:
    """A traceback would end the command after a minute, or figures would be stored of which each is an error."""
    for setting in ({"recipe": "sudoko"}, {"ranks": 0}, {"ranks": 1}):
        with pytest.raises(UserError, match=next(iter(setting))):
            exchange.exchange(**setting, folder=str(tmp_path / "data"))
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="seconds="):
            roofline.roofline(seconds=seconds, recipes=("table",), folder=str(tmp_path / "data"))
    (tmp_path / "seeds.json").write_text('{"runs": []}', encoding="utf-8")
    with pytest.raises(UserError, match="has no steps: name a file"):
        roofline.roofline(before=str(tmp_path / "seeds.json"), recipes=("table",), folder=str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()
