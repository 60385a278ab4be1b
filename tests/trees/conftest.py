"""What tests of both libraries share."""

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
