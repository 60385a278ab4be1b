"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersLoop(Results):
    """CPU time of a training step: our loop beside Lightning Fabric, Accelerate as in its examples, and plain PyTorch."""

    rounds: int = 5
    """Trainings with our loop, each between two of the other one."""
    packages: str = ""
    """A folder with lightning-fabric (see measure.py)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersLoader(Results):
    """CPU time of an epoch of shuffled batches: our Feed beside PyTorch, `datasets`, torchdata and grain."""

    rounds: int = 5
    """Epochs of our Feed, each between two of the other loader."""
    packages: str = ""
    """A folder with grain (see measure.py)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersNextItem(Results):
    """CPU time and memory of a training step and of ranking all items: next_item beside RecBole and RecTools."""

    rounds: int = 5
    """Measurements of this project, each between two of the other one."""
    packages: str = ""
    """A folder with recbole and rectools (see measure.py)."""
    num_users: int = 6040
    """Users of the generated data, as in MovieLens 1M; the number of items is in proportion."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersPanel(Results):
    """CPU time and memory of the basic columns of the weekly panel: ours beside pandas."""

    rounds: int = 5
    """Panels of ours, each between two of pandas."""
    num_reviews: int = 1_000_000
    """Reviews of the generated market."""
    num_products: int = 100_000
    """Products of the generated market."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersJob(Results):
    """The job of `make demo` by scripts/fit.py, and by a plain script: seconds, lines, average precision."""

    rounds: int = 2
    """Runs of each, alternately."""
    num_reviews: int = 200_000
    """Reviews of the generated market."""
    num_products: int = 3000
    """Products of the generated market."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeersRun:
    """A process that the other commands start; it writes no results of its own."""

    work: str = "???"
    """What it does, a key of WORKS in run.py: AREA.SIDE."""
    folder: str = "???"
    """A folder of data and for temporary files."""
