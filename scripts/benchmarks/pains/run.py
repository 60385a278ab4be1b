"""One process of plain Accelerate that the benchmark `pains` launches."""

import importlib

from benchmarks.pains.settings import PainsRank


def run(settings: PainsRank) -> None:
    """Run the plain side of one complaint."""
    importlib.import_module(f"benchmarks.pains.{settings.complaint}").rank(settings)
