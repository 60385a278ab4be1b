"""Fixtures of the tests of trees."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tree_members import Start, starting

from ensemble.trees import threads
from ensemble.trees.distributed import LIBRARIES


@pytest.fixture(scope="module", autouse=True)
def openmp() -> None:
    """Load OpenMP as `threads.configure` does, which an earlier test in this process may have prevented."""
    threads.provide_openmp()


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts processes, which are killed at the end of the test."""
    with starting() as start:
        yield start


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def rule_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a kind of task to its folder of prepared data, which tests share and must not change."""
    import known_rules

    folders: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = known_rules.prepare(tmp_path_factory.mktemp("data") / kind, kind)
        return folders[kind]

    return of


@pytest.fixture(scope="session")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a kind of task to a prepared table with folds, which tests share and must not change."""
    import copied_members

    result: dict[tuple[str, bool], Path] = {}

    def make(kind: str, is_forward: bool = False) -> Path:
        if (kind, is_forward) not in result:
            folder = tmp_path_factory.mktemp(kind)
            settings = {"time": "day", "num_folds": 3} if is_forward else {"drop": ("day",)}
            result[kind, is_forward] = copied_members.prepared_of(folder, copied_members.frame_of(kind), **settings)
        return result[kind, is_forward]

    return make
