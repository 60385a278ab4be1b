"""The benchmarks beside other libraries: both sides do the same work, for those that are installed here."""

import inspect
from pathlib import Path

import polars as pl
import pytest
import torch
from benchmarks import overhead
from benchmarks.data import market_parquet
from benchmarks.peers import measure, plain_job, run

from ensemble.errors import UserError
from ensemble.neural.settings import TrainConfig
from ensemble.recipes.hot_sellers import prepare
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def test_pandas_computes_the_same_panel(tmp_path: Path) -> None:
    """The reference would be slower or faster because it computes something else."""
    market_parquet(str(tmp_path), 8000, 300)
    panels = []
    for side in ("ours", "pandas"):
        run.panel(side, tmp_path)()
        panels.append(pl.read_parquet(tmp_path / f"{side}.parquet").sort("product_id", "week"))
    assert len(panels[0]) > 1000
    assert panels[0]["hot"].sum() > 20
    for column in panels[0].columns:
        assert panels[0][column].to_list() == pytest.approx(panels[1][column].to_list()), column


@pytest.mark.parametrize("side", ["ours", *(side for side in measure.LOADERS if side != "grain")])
def test_each_loader_reads_every_row(side: str, tmp_path: Path) -> None:
    """A loader that leaves rows out, as with a sampler that it ignores, would be fast."""
    assert run.loader(side, tmp_path, run.Table(1000))() == 1000


def test_accelerate_trains_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate would be compared on fewer, more or other batches, or without the schedule."""
    from accelerate import Accelerator

    torch.set_num_threads(1)
    monkeypatch.setattr(overhead.Mlp, "num_steps", 30)
    recipe, accelerator = overhead.Regression("mlp"), Accelerator(cpu=True)
    models: list[torch.nn.Module] = []
    monkeypatch.setattr(recipe, "model", lambda: models.append(recipe.kind()) or models[-1])
    for train in (overhead.plain, run.accelerate_loop):
        train(recipe, TrainConfig(data="random", out="unused", batch_size=recipe.kind.batch_size), accelerator)
        assert len(recipe.times) == 30
    plain, other = (torch.nn.utils.parameters_to_vector(model.parameters()).detach() for model in models)
    assert torch.allclose(plain, other, rtol=1e-4, atol=1e-6)


def test_the_plain_job_has_our_rows(raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """Average precision would be compared on other rows or labels."""
    files = [str(file) for file in raw_market]
    out = str(tmp_path / "prepared")
    splits = prepare.prepare(PrepareConfig(out=out, source=(files[0],), metadata=(files[1],)))["splits"]
    reviews, products = plain_job.read(*files)
    first = plain_job.week_of(splits["validation"]["first_week"])
    _, _, hot, week = plain_job.features(reviews, products, first - plain_job.HORIZON)
    for split in ("train", "validation", "blend", "test"):
        begin, end = (plain_job.week_of(splits[split][name]) for name in ("first_week", "last_week"))
        within = (week >= begin) & (week <= end)
        assert (within.sum(), hot[within].sum()) == (splits[split]["rows"], splits[split]["hot"]), split


def test_missing_packages_are_named() -> None:
    """A worker would end with a traceback in the middle of the measurement."""
    with pytest.raises(UserError, match=r"packages= has no lightning-fabric: install them as described"):
        measure.peers_loop(2, "")
    with pytest.raises(UserError, match=r"packages= has no lightning-fabric: install them as described"):
        measure.peers_ranks(3, "")


def test_the_described_command_installs_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error would name a package that the command of the docstring does not install."""
    monkeypatch.setattr(measure.importlib.metadata, "distributions", lambda path: [])
    for name in ("generate", "called"):
        monkeypatch.setattr(measure, name, lambda *_: {})
    requirements = (Path(__file__).resolve().parents[3] / "requirements.txt").read_text(encoding="utf-8")
    installed = {line.partition("==")[0].lower() for line in requirements.splitlines()}
    described = set((measure.__doc__ or "").partition("--target")[2].partition("python scripts")[0].split())
    needed: set[str] = set()
    for compare in (
        measure.peers_loop,
        measure.peers_ranks,
        measure.peers_loader,
        measure.peers_next_item,
        measure.peers_panel,
    ):
        with pytest.raises(UserError, match="install them as described") as caught:
            compare(3, "") if "packages" in inspect.signature(compare).parameters else compare(3)
        needed |= set(str(caught.value).partition("has no ")[2].partition(":")[0].split(", "))
    assert {"torchdata", "recbole", "polars"} < needed
    assert needed <= installed | described
