"""Fixtures of the tests of trees."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tree_members import Start, config_of, starting

from ensemble.trees import threads, train
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


@pytest.fixture(scope="session", params=LIBRARIES)
def trained(request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a member, named by its library; tests damage copies of it only."""
    threads.provide_openmp()
    out = tmp_path_factory.mktemp("trees") / request.param
    train.train(config_of(request.param, prepared, out, num_rounds=30, early_stopping_rounds=10, learning_rate=0.1))
    return out


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def rule_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a kind of task to its folder of prepared data, which tests share and must not change."""
    import known_rules

    @functools.cache
    def rule_data(kind: str) -> Path:
        return known_rules.prepare(tmp_path_factory.mktemp("data") / kind, kind)

    return rule_data


@pytest.fixture(scope="session")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a kind of task to a prepared table with folds, which tests share and must not change."""
    import copied_members

    @functools.cache
    def data_of(kind: str, is_forward: bool = False) -> Path:
        settings = {"time": "day", "num_folds": 3} if is_forward else {"drop": ("day",)}
        return copied_members.prepared_of(tmp_path_factory.mktemp(kind), copied_members.frame_of(kind), **settings)

    return data_of
