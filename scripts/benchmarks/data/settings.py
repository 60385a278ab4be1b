"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel(Results):
    """The panel of a large Parquet file, beside the public project's script if that is at hand."""

    num_reviews: int = 4_000_000
    """Reviews in the file."""
    num_products: int = 400_000
    """Products in the file."""
    reference: str = ""
    """build_weekly_dataset_fast.py of LookJohnny/csci653-as01; empty measures ours alone."""
    reference_python: str = "python3"
    """An interpreter with pandas, pyarrow, tqdm and dask[dataframe]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasicPanel:
    """One run of the panel's basic columns, which `panel` times; it writes no JSON."""

    source: str = "???"
    """A Parquet file in the raw schema of Amazon Reviews 2023."""
    out: str = "???"
    """The Parquet file to write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(Results):
    """Peak memory of preparing a large market; needs some 25 GB of disk and half an hour."""

    num_reviews: int = 30_000_000
    """Reviews of the larger market; the smaller has a tenth."""
    num_products: int = 300_000
    """Products of the larger market."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader(Results):
    """Rows per CPU second of the recipe's gather, beside the torch format of `datasets`."""

    num_batches: int = 200
    """Batches of 256 rows in each of five rounds."""


SCHEMAS: dict[str, type] = {
    "panel": Panel,
    "basic-panel": BasicPanel,
    "memory": Memory,
    "loader": Loader,
}
