"""One rank that the benchmark of the loop's overhead launches."""

from pathlib import Path

from benchmarks.overhead.settings import OverheadRank


def run(settings: OverheadRank) -> None:
    """Time the blocks of every model, and write them into `settings.out`."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())

    from benchmarks.overhead import measure

    measure.overhead_rank(accelerator, settings.rounds, Path(settings.out))
