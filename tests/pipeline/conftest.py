"""Fixtures of the tests of scripts/fit.py: a table, small members, and scripts in forked children."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fits import people, planned
from script_server import ScriptServer

from ensemble import folders
from ensemble.pipeline import run

SCRIPT = """
import functools, os, signal, sys, time
sys.path.insert(0, {scripts!r})

def send_at(module, name, number, which):
    whole, calls = getattr(module, name), []
    @functools.wraps(whole)
    def call(*arguments, **named):
        calls.append(1)
        if len(calls) == number:
            os.kill(os.getpid(), which)
            time.sleep(0.5)  # a thread reads signals that ask to stop
        return whole(*arguments, **named)
    setattr(module, name, call)

{statements}
import fit
from ensemble import errors
if __name__ == "__main__":
    errors.run(fit.main)
"""


@pytest.fixture
def fit_after(tmp_path: Path, child: Callable[..., Any]) -> Callable[..., Any]:
    """Runs scripts/fit.py after statements, which may call `send_at`: it sends a signal at the n-th call of a function."""

    def fit_after(statements: str, *words: str) -> Any:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(scripts=str(Path(__file__).resolve().parents[2] / "scripts"), statements=statements))
        return child(str(script.with_suffix("")), *words, folder=tmp_path)

    return fit_after


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a binary target."""
    people().write_csv(tmp_path / "people.csv")
    return tmp_path / "people.csv"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small trees, on one thread whatever other tests in this process have configured; the page has tests of its own."""
    from ensemble.report import page
    from ensemble.trees import threads

    threads.provide_openmp()
    monkeypatch.setattr(threads, "configure", lambda requested=0: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: planned("lightgbm", "xgboost"))
    monkeypatch.setattr(page, "write", lambda *files: Path(files[-1]).write_text(folders.MARK))


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
