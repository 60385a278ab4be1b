"""What tests of both libraries share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ensemble.trees import threads
from ensemble.trees.distributed import LIBRARIES


@pytest.fixture(scope="module", autouse=True)
def openmp() -> None:
    """What `threads.configure` does once per process, for a process in which other tests have settled already."""
    threads.provide_openmp()


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def rule_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of prepared data for a kind of task; it is shared, and not to be changed."""
    import known_rules

    folders: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = known_rules.prepare(tmp_path_factory.mktemp("data") / kind, kind)
        return folders[kind]

    return of
