"""What tests of the loop share: the settings of a run of the toy recipe."""

from pathlib import Path

import pytest
from accelerate import Accelerator
from toy import settings

from ensemble.neural import preflight, speed
from ensemble.neural.settings import TrainConfig


@pytest.fixture(autouse=True)
def only_the_passes_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests count the passes of a training; those of this check, which test_preflight.py tests, would be counted too."""
    monkeypatch.setattr(preflight, "mean_instead_of_sum", lambda *arguments: "")


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Four epochs of three steps, in a folder that does not exist yet."""
    return settings(tmp_path / "run")


@pytest.fixture
def in_fp16(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """The accelerator of the other tests, which trains in fp16 until the end of the test."""
    monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
    monkeypatch.setattr(accelerator, "native_amp", False)
    monkeypatch.setattr(accelerator, "scaler", None)
    speed.use_fp16_on_cpu(accelerator)
    return accelerator
