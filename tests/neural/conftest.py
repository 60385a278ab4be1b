"""What tests of the loop share: the settings of a run of the toy recipe."""

from pathlib import Path

import pytest
from toy import settings

from ensemble.neural.settings import TrainConfig


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Four epochs of three steps, in a folder that does not exist yet."""
    return settings(tmp_path / "run")
