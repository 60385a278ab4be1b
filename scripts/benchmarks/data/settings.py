"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel(Results):
    """The panel of a large Parquet file, compared with the script of a public project if that is given."""

    num_reviews: int = 4_000_000
    """Reviews in the file."""
    num_products: int = 400_000
    """Products in the file."""
    reference: str = ""
    """build_weekly_dataset_fast.py of LookJohnny/csci653-as01; empty measures this project alone."""
    reference_python: str = "python3"
    """An interpreter with pandas, pyarrow, tqdm and dask[dataframe]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasicPanel:
    """The process that `panel` starts, for the basic columns of the panel; it writes no results of its own."""

    source: str = "???"
    """A Parquet file in the raw schema of Amazon Reviews 2023."""
    out: str = "???"
    """The Parquet file to write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(Results):
    """Peak memory of preparing a large market; needs 25 GB of disk and half an hour."""

    num_reviews: int = 30_000_000
    """Reviews of the larger market; the smaller one has a tenth."""
    num_products: int = 300_000
    """Products of the larger market."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader(Results):
    """Rows per CPU second of the recipe's gather, compared with the torch format of `datasets`."""

    num_batches: int = 200
    """Batches of 256 rows in each of five rounds."""
