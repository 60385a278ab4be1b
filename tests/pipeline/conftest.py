"""What tests of the whole command share: a table, small members, and scripts in forked children."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fits import people, planned
from script_server import ScriptServer

from ensemble.pipeline import run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a binary target."""
    people().write_csv(tmp_path / "people.csv")
    return tmp_path / "people.csv"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small trees in this process, whatever threads other tests have settled; the page has tests of its own."""
    from ensemble.report import page
    from ensemble.trees import threads

    threads.provide_openmp()
    monkeypatch.setattr(threads, "configure", lambda requested=0: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: planned("lightgbm", "xgboost"))
    monkeypatch.setattr(page, "write", lambda *files: Path(files[-1]).write_text("a page"))


@pytest.fixture(scope="session")
def child() -> Iterator[Callable[..., Any]]:
    """Runs a script in a forked child of a process that has imported what every fit needs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    libraries = (
        "polars",
        "pandas",
        "pyarrow.parquet",
        "scipy.sparse",
        "scipy.optimize",
        "sklearn.base",
        "matplotlib.figure",
    )
    server = ScriptServer(environment, *libraries)
    yield server.run
    server.stop()
