"""The process that `emulator_throughput` launches."""

from pathlib import Path

from benchmarks.emulator.settings import EmulatorThroughputRank


def run(settings: EmulatorThroughputRank) -> None:
    """Measure the blocks of every batch size, and write the figures into `settings.out`."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())

    from benchmarks.emulator import throughput

    throughput.measure(accelerator, settings.rounds, Path(settings.out))
