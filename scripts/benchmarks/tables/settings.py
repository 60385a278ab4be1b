"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables(Results):
    """`scripts/fit.py`, AutoGluon and plain LightGBM on eleven public tables; hours without cached results."""

    tables: str = "../shared/data/tables"
    """The folder of the tables, NAME.csv.gz or NAME.csv; ensemble/recipes/table/README.md lists their origins."""
    python: str = ".venv-autogluon/bin/python"
    """The interpreter that has AutoGluon; `make bench-tables` installs it."""
    folder: str = "runs/tables"
    """The folder for the split tables and the results; stored results are not measured again."""
    names: tuple[str, ...] = ()
    """The tables to measure; empty for all."""
    methods: tuple[str, ...] = ("ours", "good_quality", "best_quality", "lightgbm")
    """ours, presets of AutoGluon, lightgbm. A preset with the suffix _by_time validates in blocks of time, on tables with a
    time; one with _date_parts gets hours and other parts of dates, on tables with dates."""
    time_limit: float = 60.0
    """Seconds for a fit."""
    rivals_time_limit: float = 0.0
    """Seconds for a fit of AutoGluon; 0 for `time_limit`. Give more on a machine with other load."""
    seeds: int = 3
    """Each method is fitted with the seeds 0, 1, …; lightgbm with 0 only, since its defaults are not random."""
    again: tuple[str, ...] = ()
    """Methods whose cached results are measured again, as in 'again=[ours]'."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables_300(Tables):
    """The same with five minutes for a fit and one seed."""

    time_limit: float = 300.0
    seeds: int = 1
