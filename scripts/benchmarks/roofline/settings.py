"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline(Results):
    """A training step of each recipe beside the limits of the machine, on one thread; four minutes."""

    folder: str = "runs/roofline"
    """The folder of prepared data, which are generated if they are not there."""
    recipes: tuple[str, ...] = ()
    """The recipes to measure; empty for all."""
    precisions: tuple[str, ...] = ("no",)
    """no (float32), tf32, bf16 or fp16."""
    compiled: tuple[bool, ...] = (False,)
    """Whether blocks are compiled."""
    seconds: float = 10.0
    """Seconds of training of each measurement, after the warm-up."""
    before: str = ""
    """The JSON file of an earlier version of the code, whose steps are written beside these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu(Roofline):
    """The same on an NVIDIA GPU, in each precision, with and without torch.compile; ten minutes."""

    precisions: tuple[str, ...] = ("no", "tf32", "bf16", "fp16")
    """As above."""
    compiled: tuple[bool, ...] = (False, True)
    """As above."""
    seconds: float = 3.0
    """As above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RooflineRun:
    """One training that `roofline` starts in a process; it writes no results of its own."""

    recipe: str = "???"
    """The recipe to train."""
    words: tuple[str, ...] = ()
    """Settings of train.py."""
    tf32: bool = False
    """Multiply float32 matrices in TF32."""
    seconds: float = 10.0
    """Seconds of training after the warm-up."""
    out: str = "???"
    """The JSON file to write; the run is written to a folder beside it."""
