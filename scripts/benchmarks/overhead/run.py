"""One rank of `overhead_rank`, which the benchmark of the loop's overhead launches."""

from pathlib import Path

from benchmarks.overhead.settings import OverheadRank


def run(settings: OverheadRank) -> None:
    """Measure the blocks of every model, and write the figures into `settings.out`."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())

    from benchmarks.overhead import measure

    measure.overhead_rank(accelerator, settings.rounds, Path(settings.out))
