"""Measure what the README states, and write it to slurm/results/NAME.json with hardware, versions, date and command.

python scripts/benchmark.py help_times | seeds | real | panel | memory | loader
"""

import dataclasses
from pathlib import Path
from typing import Any

from ensemble import config, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelpTimes:
    """How long each script's --help takes."""

    results: str = "slurm/results"
    """The folder for the JSON file; the same for every benchmark."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeds:
    """The demo on several generated markets; some three minutes each."""

    num_seeds: int = 5
    """Markets, and initial weights, of different seeds."""
    results: str = "slurm/results"
    """The folder for the JSON file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real:
    """Real review files, prepare to ensemble."""

    data: str = "../shared/data"
    """The folder that holds amazon/ and movielens/."""
    results: str = "slurm/results"
    """The folder for the JSON file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """The panel of a large Parquet file, beside the public project's script if that is at hand."""

    num_reviews: int = 4_000_000
    """Reviews in the file."""
    num_products: int = 400_000
    """Products in the file."""
    reference: str = ""
    """build_weekly_dataset_fast.py of LookJohnny/csci653-as01; empty measures ours alone."""
    reference_python: str = "python3"
    """An interpreter with pandas, pyarrow, tqdm and dask[dataframe]."""
    results: str = "slurm/results"
    """The folder for the JSON file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasicPanel:
    """One run of the panel's basic columns, which `panel` times; it writes no JSON."""

    source: str = "???"
    """A Parquet file in the raw schema of Amazon Reviews 2023."""
    out: str = "???"
    """The Parquet file to write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory of preparing a large market; needs some 25 GB of disk and half an hour."""

    num_reviews: int = 30_000_000
    """Reviews of the larger market; the smaller has a tenth."""
    num_products: int = 300_000
    """Products of the larger market."""
    results: str = "slurm/results"
    """The folder for the JSON file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader:
    """Rows per CPU second of the recipe's gather, beside the torch format of `datasets`."""

    num_batches: int = 200
    """Batches of 256 rows in each of five rounds."""
    results: str = "slurm/results"
    """The folder for the JSON file."""


SCHEMAS = {
    "help_times": HelpTimes,
    "seeds": Seeds,
    "real": Real,
    "panel": Panel,
    "basic-panel": BasicPanel,
    "memory": Memory,
    "loader": Loader,
}


def main() -> None:
    name, settings = config.from_subcommands(SCHEMAS, __doc__)

    from ensemble import benchmark
    from ensemble.data import manifest

    if name == "basic-panel":
        benchmark.basic_panel(settings.source, settings.out)
        return
    arguments: dict[str, Any] = dataclasses.asdict(settings)
    results = Path(arguments.pop("results"))
    about = benchmark.environment()
    found = getattr(benchmark, name)(**arguments)
    results.mkdir(parents=True, exist_ok=True)
    manifest.write_json(results / f"{name}.json", {"environment": about, **found})
    print(f"written to {results / f'{name}.json'}")


if __name__ == "__main__":
    errors.run(main)
