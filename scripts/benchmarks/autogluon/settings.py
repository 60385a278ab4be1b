"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Autogluon(Results):
    """The ensemble, AutoGluon and scikit-learn's stacking, with the same rows, cores and time; twenty minutes."""

    python: str = ".venv-autogluon/bin/python"
    """The interpreter that has AutoGluon; `make bench-autogluon` installs it."""
    data: str = "../shared/data"
    """The folder with amazon/ and movielens/; sets that are not there are left out."""
    folder: str = "runs/beside_autogluon"
    """The folder of all files; an interrupted benchmark continues with them."""
    sets: tuple[str, ...] = ()
    """The generated markets and real sets to measure; empty for all."""
    methods: tuple[str, ...] = ("good_quality", "stacking")
    """AutoGluon's good_quality, good_quality_by_week (its folds are blocks of weeks) or medium_quality; stacking is
    scikit-learn's."""
    least_s: float = 60.0
    """AutoGluon gets as many seconds as our commands took, but at least these."""
    market: tuple[str, ...] = ()
    """Settings of prepare_data.py that replace the demo's for generated markets: 'market=[market.num_products=800]'."""
    training: tuple[str, ...] = ()
    """Settings of train.py that replace the demo's, as in 'training=[max_epochs=1]'."""
