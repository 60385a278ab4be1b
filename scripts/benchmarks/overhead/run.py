"""One rank of a training whose loop a benchmark measures."""

import importlib
from pathlib import Path

from benchmarks.overhead.settings import OverheadRank


def run(settings: OverheadRank) -> None:
    """Measure the blocks of our loop and of the plain one, and write the figures into `settings.out`."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())
    importlib.import_module(f"benchmarks.{settings.module}").measure_rank(accelerator, settings.rounds, Path(settings.out))
