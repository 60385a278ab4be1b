"""The process that the benchmark of the throughput launches."""

from pathlib import Path

from benchmarks.emulator.settings import EmulatorThroughputRank


def run(settings: EmulatorThroughputRank) -> None:
    """Time the blocks of every batch size, and write them into `settings.out`."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())

    from benchmarks.emulator import throughput

    throughput.of_rank(accelerator, settings.rounds, Path(settings.out))
