"""What tests of both libraries share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The prepared table of a kind, made once; it is shared, and not to be changed."""
    import copied_members

    result: dict[tuple[str, bool], Path] = {}

    def make(kind: str, is_forward: bool = False) -> Path:
        if (kind, is_forward) not in result:
            folder = tmp_path_factory.mktemp(kind)
            settings = {"time": "day", "num_folds": 3} if is_forward else {"drop": ("day",)}
            result[kind, is_forward] = copied_members.prepared_of(folder, copied_members.frame_of(kind), **settings)
        return result[kind, is_forward]

    return make
