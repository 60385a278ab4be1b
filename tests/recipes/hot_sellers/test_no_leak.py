"""No feature, week or text of the future is in a row, and no row depends on how the work is divided."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_market import (
    SUNDAY,
    config_for,
    gather,
    market_config,
    prepare_every_week,
    product_metadata,
    review,
    steady_market,
    write_metadata,
)

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.data.census import Census
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers import spills
from ensemble.recipes.hot_sellers.prepare import FORECAST
from ensemble.recipes.hot_sellers.settings import PanelConfig, PrepareConfig

T, HORIZON = 70, 4


def some_reviews(weeks: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.builds(
        review,
        product=st.sampled_from("ABCD"),
        week=weeks,
        part_of_week=st.sampled_from([0.0, 0.3, SUNDAY]),
        user_id=st.sampled_from(["ann", "bob"]),
        rating=st.integers(2, 10).map(lambda halves: halves / 2),
        text=st.sampled_from(["", "great product", "awful", "it broke in a week, refund!"]),
        helpful_vote=st.integers(0, 5),
        verified_purchase=st.booleans(),
        images=st.sampled_from([[], [{}], [{}, {}]]),
    )
    return st.lists(one, max_size=25)


PAST = some_reviews(st.one_of(st.integers(T - 14, T), st.integers(0, T)))
FUTURE = some_reviews(st.integers(T + 1, T + 14))
# The first week, a product that was hot for certain, and the last Sunday of week T
BACKGROUND = [review("X", 0), review("Y", 0), *(review("X", 1, user_id=f"{n}") for n in range(30)), review("Y", T, SUNDAY)]


@settings(max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(past=PAST, future=FUTURE, other_future=FUTURE, end=st.integers(T + 14, T + 18), data=st.data())
def test_nothing_after_t_is_seen_at_t(
    tmp_path_factory: pytest.TempPathFactory,
    past: list[dict[str, Any]],
    future: list[dict[str, Any]],
    other_future: list[dict[str, Any]],
    end: int,
    data: st.DataObject,
) -> None:
    """A feature, a week or a text of the future would be in a row, and every score on test would be too good."""
    folder = tmp_path_factory.mktemp("leak")
    known = BACKGROUND + past
    one = [*known, *future, review("Z", T + 15, SUNDAY)]
    # The same past in the same order, between reviews of another future, which are also of new products and end elsewhere
    other = [*other_future, review(data.draw(st.sampled_from("AZ")), end, SUNDAY, rating=1.0, text="bad")]
    other = [*other[::2], *known, *other[1::2], review("0", T + 1), review("ZZ", T + 2)]
    with_metadata: dict[str, Any] = {"metadata": (write_metadata(folder / "meta"),), "min_matched": 0.0}
    settings_of_panel = PanelConfig(horizon_weeks=HORIZON, top_fraction=0.5)
    manifests = {
        name: prepare_every_week(config_for(folder / name, content, settings_of_panel, **with_metadata))
        for name, content in (("one", one), ("other", other))
    }
    for last_week, with_targets in ((T, False), (T - HORIZON, True)):
        seen, also_seen = (
            {key: row for key, row in gather(folder / name / "out", "train", with_targets).items() if key[1] <= last_week}
            for name in ("one", "other")
        )
        assert seen == also_seen
    # Data that end with week t, such as a forecaster has at t, give the same rows
    alone = config_for(folder / "alone", known, PanelConfig(horizon_weeks=HORIZON), **with_metadata)
    panel.prepare(alone, training=manifests["one"])
    forecast = gather(folder / "alone" / "out", FORECAST)
    assert forecast == {key: row for key, row in gather(folder / "one" / "out", "train").items() if key[1] == T}
    assert forecast


@pytest.mark.parametrize(
    "limits", [{"REVIEWS_PER_SPILL": 300}, {"ROWS_PER_BLOCK": 70}, {"REVIEWS_PER_SPILL": 50, "LEAST_PRODUCT_SPILLS": 3}]
)
def test_how_the_work_is_cut_changes_no_row(
    limits: dict[str, int], prepared: Path, raw_market: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products at the boundary of two files would lose reviews, or the totals of a category would lack a file."""
    for name, value in limits.items():
        monkeypatch.setattr(spills if hasattr(spills, name) else panel, name, value)
    settings = PanelConfig(**folders.read_manifest(prepared)["config"])
    manifest = panel.prepare(market_config(raw_market, tmp_path / "out", settings))
    assert manifest["splits"] == folders.read_manifest(prepared)["splits"]
    for split in manifest["splits"]:
        assert gather(tmp_path / "out", split, True) == gather(prepared, split, True)
    products, others = (open_table(folder / "products").to_pylist() for folder in (prepared, tmp_path / "out"))
    assert sorted(map(str, products)) == sorted(map(str, others))


@pytest.mark.parametrize(("suffix", "num_spills"), [(".csv", 10), (".csv.gz", 10), (" of gz", 10), (".jsonl", 1)])
def test_short_lines_are_divided_too(suffix: str, num_spills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spill file would have more ratings than fit into memory: their lines are short, or the name does not show gzip."""
    monkeypatch.setattr(spills, "RATINGS_PER_SPILL", 1000)
    lines = ["user_id,parent_asin,rating,timestamp\n"]
    bits = random.Random(0).getrandbits
    lines += [f"A{bits(44):013},B{bits(36):011},5.0,{1_600_000_000_000 + bits(32)}\n" for _ in range(10_000)]
    if suffix == ".jsonl":
        lines = [json.dumps(review(f"B{n}", n % 99, text="fine " * 60)) + "\n" for n in range(500)]
    data, source = "".join(lines).encode(), tmp_path / f"ratings{suffix}"
    source.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    (tmp_path / "spill").mkdir()
    config = PrepareConfig(source=(str(source),))
    spills.spill_reviews([source], tmp_path / "spill", Census(), config)
    assert num_spills <= len(list((tmp_path / "spill").iterdir())) <= 3 * num_spills


def test_metadata_are_read_once_for_all_reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All metadata would be read again for each file of a million reviews: ten times the data, a hundred times the work."""
    monkeypatch.setattr(spills, "REVIEWS_PER_SPILL", 30)
    products = [f"{letter}{number}" for letter in "ABCDE" for number in range(60)]
    content = [one | {"parent_asin": products[number]} for number, one in enumerate(steady_market(40)[: len(products)])]
    metadata = write_metadata(tmp_path / "raw", [product_metadata(product) for product in products])
    read_spill, num_read = pl.read_ipc_stream, 0

    def counted(path: Path) -> pl.DataFrame:
        nonlocal num_read
        frame = read_spill(path)
        num_read += len(frame) if path.name.startswith("products") else 0
        return frame

    monkeypatch.setattr(pl, "read_ipc_stream", counted)
    config = config_for(tmp_path, [*steady_market(40), *content], metadata=(metadata,))
    assert panel.prepare(config)["product_census"]["rows_read"] == len(products)
    assert len(products) < num_read <= 2 * len(products), "once to count copies, once for the reviews"
