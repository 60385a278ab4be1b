"""What tests of the loop share: Accelerate's state on the CPU, and the settings of a run of the toy recipe."""

from pathlib import Path

import pytest
from accelerate import Accelerator
from toy import settings

from ensemble.neural.config import TrainConfig


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    """One for each file, since test_speed.py makes others, with a precision of their own."""
    return Accelerator(cpu=True)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Four epochs of three steps, in a folder that does not exist yet."""
    return settings(tmp_path / "run")
