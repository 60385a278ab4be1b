"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelpTimes(Results):
    """How long each script's --help takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeds(Results):
    """The demo on several generated markets; some three minutes each."""

    num_seeds: int = 5
    """Markets, and initial weights, of different seeds."""
    first_seed: int = 0
    """The others follow it. Seeds that nothing was chosen by are an honest test of what was chosen by some."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real(Results):
    """Real review files, prepare to ensemble."""

    data: str = "../shared/data"
    """The folder that holds amazon/ and movielens/."""


SCHEMAS: dict[str, type] = {
    "help_times": HelpTimes,
    "seeds": Seeds,
    "real": Real,
}
