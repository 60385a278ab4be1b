"""One small fitted ensemble of all kinds of members, and a service that answers for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts_run import NETWORKS, TREES, fork
from service_process import Service


@pytest.fixture(scope="session")
def fitted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `members` and `ensemble`, whose members are an XGBoost, a LightGBM and a neural one."""
    folder = tmp_path_factory.mktemp("fitted")
    members = folder / "members"
    for library in ("xgboost", "lightgbm"):
        fork("train_trees", f"library={library}", f"data={prepared}", f"out={members / library}", "num_rounds=10")
    tiny = ("max_epochs=0.5", "recipe.width=8", "batch_size=128")
    fork("train", f"data={prepared}", f"out={members / 'transformer'}", *tiny, libraries=NETWORKS)
    for member, libraries in (("xgboost", TREES), ("lightgbm", TREES), ("transformer", NETWORKS)):
        words = (f"member={members / member}", f"data={prepared}", f"out={folder / 'predictions'}")
        fork("predict", *words, libraries=libraries)
    fork("ensemble_predictor", "fit", f"predictions={folder / 'predictions'}", f"data={prepared}",
         f"out={folder / 'ensemble'}", "num_draws=5")  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def trees(fitted: Path, prepared: Path) -> Path:
    """The folder of an ensemble of XGBoost and LightGBM, whose processes start fast, since none imports torch."""
    words = (f"predictions={fitted / 'predictions'}", f"data={prepared}", "members=[xgboost,lightgbm]", "num_draws=5")
    fork("ensemble_predictor", "fit", *words, f"out={fitted / 'trees'}")
    return fitted / "trees"


@pytest.fixture(scope="session")
def request_rows(raw_market: tuple[Path, Path]) -> dict[str, list[dict[str, Any]]]:
    """A whole request: the lines of the market's raw files, as they are."""
    reviews, products = ([json.loads(line) for line in file.read_text().splitlines()] for file in raw_market)
    return {"reviews": reviews, "products": products}


@pytest.fixture(scope="session")
def service(fitted: Path) -> Iterator[Service]:
    """A service for all tests, with low limits on the size of requests."""
    running = Service(fitted / "ensemble", "max_reviews=20000", "max_bytes=8000000")
    yield running
    code, output = running.stop()
    assert (code, "Traceback" in output) == (0, False), output
