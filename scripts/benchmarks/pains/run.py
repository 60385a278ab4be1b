"""A process of plain Accelerate that the benchmark `pains` launches."""

import importlib

from benchmarks.pains.settings import PainsRank


def run(settings: PainsRank) -> None:
    """Run the plain side of one complaint: the function `rank` of its module, or the training of plain.py."""
    module = importlib.import_module(f"benchmarks.pains.{settings.complaint}")
    if hasattr(module, "rank"):
        module.rank(settings)
    else:
        importlib.import_module("benchmarks.pains.plain").train(settings)
