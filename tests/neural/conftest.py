"""What tests of the loop share: the settings of a run of the toy recipe."""

from pathlib import Path

import pytest
from accelerate import Accelerator
from toy import settings

from ensemble.neural import speed
from ensemble.neural.settings import TrainConfig


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
