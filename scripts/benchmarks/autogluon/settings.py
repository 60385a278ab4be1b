"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoGluon(Results):
    """The ensemble beside AutoGluon and scikit-learn's stacking: the same rows, cores and time; some twenty minutes."""

    python: str = ".venv-autogluon/bin/python"
    """The interpreter that has AutoGluon; `make bench-autogluon` installs it."""
    data: str = "../shared/data"
    """The folder that holds amazon/ and movielens/; what is not there is left out."""
    folder: str = "runs/beside_autogluon"
    """Where everything lies: a benchmark that was cut short goes on from there."""
    sets: tuple[str, ...] = ()
    """Of the generated markets and the real sets, those to measure; empty for all."""
    methods: tuple[str, ...] = ("good_quality", "stacking")
    """AutoGluon's good_quality, good_quality_by_week (its folds are blocks of weeks) or medium_quality; stacking is
    scikit-learn's."""
    least_s: float = 60.0
    """Seconds that AutoGluon gets at least; else as many as ours took in all."""
    market: tuple[str, ...] = ()
    """Settings of prepare_data.py for the generated markets over the demo's, as in 'market=[market.num_products=800]'."""
    training: tuple[str, ...] = ()
    """Settings of train.py over the demo's, as in 'training=[max_epochs=1]'."""


SCHEMAS: dict[str, type] = {
    "autogluon": AutoGluon,
}
