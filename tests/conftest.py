"""What tests of several folders share: a stage for each, one small generated market, and the folders prepared from it."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import stages
from hypothesis import HealthCheck, settings

from ensemble.recipes.hot_sellers.settings import MarketConfig, PanelConfig, PrepareConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All collected tests, also those that a `-m` leaves out."""

# Without deadlines, for busy machines. `make test` draws the same examples each time, `make torture` new ones
settings.register_profile(
    "test", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, print_blob=True
)
settings.register_profile("torture", settings.get_profile("test"), derandomize=False, database=None)
LONG = bool(os.environ.get("TORTURE_LONG"))
settings.load_profile("torture" if LONG else "test")

MARKET = MarketConfig(num_products=150, num_reviews=12_000, num_weeks=110)
PANEL = PanelConfig(top_fraction=0.1)  # with so few products a week, a twentieth would often be no product


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A stage imports no file of another stage, which would take a quarter of a minute."""
    return stages.leaves_out(config.option.markexpr, collection_path) or None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(stages.of(item.path))
        if item.get_closest_marker("torture") and not LONG:
            item.add_marker(pytest.mark.skip(reason="make torture"))
    config.stash[COLLECTED] = list(items)


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup() -> None:
    """Draw the same weights in each order of the tests. Otherwise, they would depend on the tests before in the process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def collected(pytestconfig: pytest.Config) -> list[pytest.Item]:
    """All collected tests, also those that a `-m` leaves out."""
    return pytestconfig.stash[COLLECTED]


@pytest.fixture(scope="module")
def accelerator() -> "Accelerator":
    """Accelerate on the CPU, one for each file, since test_speed.py makes others, with a precision of their own."""
    from accelerate import Accelerator

    return Accelerator(cpu=True)


@pytest.fixture(scope="session")
def raw_market(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Reviews and metadata of a generated market: about 12,000 reviews of 150 products in 110 weeks."""
    from ensemble.recipes.hot_sellers import market

    return market.write_market(tmp_path_factory.mktemp("market"), MARKET)


@pytest.fixture(scope="session")
def prepared(raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of prepared data of that market. It is shared: tests that damage it use `prepared_copy`."""
    from ensemble.recipes.hot_sellers import prepare

    review_file, product_file = raw_market
    folder = tmp_path_factory.mktemp("prepared") / "market"
    config = PrepareConfig(out=str(folder), source=(str(review_file),), metadata=(str(product_file),), panel=PANEL)
    prepare.prepare(config)
    return folder


@pytest.fixture
def prepared_copy(prepared: Path, tmp_path: Path) -> Path:
    """A copy of `prepared` for one test."""
    return Path(shutil.copytree(prepared, tmp_path / "prepared"))


@pytest.fixture(scope="session")
def folded(raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That market prepared with four folds. It is shared."""
    from ensemble.recipes.hot_sellers import prepare

    review_file, product_file = raw_market
    folder = tmp_path_factory.mktemp("folded") / "market"
    with_folds = dataclasses.replace(PANEL, folds=4)
    prepare.prepare(
        PrepareConfig(out=str(folder), source=(str(review_file),), metadata=(str(product_file),), panel=with_folds)
    )
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB of its own; skips where it cannot be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
