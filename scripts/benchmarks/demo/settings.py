"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelpTimes(Results):
    """The duration of the --help of each script."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeds(Results):
    """The demo on several generated markets; three minutes each."""

    num_seeds: int = 5
    """Number of seeds, each of a market and of initial weights."""
    first_seed: int = 0
    """The first seed; the others follow it. Seeds that were not used to choose a setting give an unbiased test of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real(Results):
    """The duration and the scores of the commands from prepare_data.py to ensemble_predictor.py on real review files."""

    data: str = "../shared/data"
    """The folder with amazon/ and movielens/."""
