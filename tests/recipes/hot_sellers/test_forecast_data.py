"""Data for a forecast: the same features, categories and text as the data on which the members were trained."""

from pathlib import Path

import pytest
from small_market import config_for, gather, market_config, product_metadata, review, steady_market, write_metadata

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.prepare import FORECAST
from ensemble.recipes.hot_sellers.settings import PanelConfig


def test_like_gives_the_forecast_of_the_training_data(prepared: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """The ensemble would predict from other features than those its members were trained on."""
    like = folders.read_manifest(prepared)
    manifest = panel.prepare(market_config(raw_market, tmp_path / "out", PanelConfig(**like["config"])), like)
    assert list(manifest["splits"]) == [FORECAST]
    assert manifest["categories"] == like["categories"]
    assert [path.name for path in (tmp_path / "out" / "rows").iterdir()] == [FORECAST]
    assert gather(tmp_path / "out", FORECAST) == gather(prepared, FORECAST)


def test_like_knows_the_old_categories_only(tmp_path: Path) -> None:
    """A new category would get the number of another category of the training data."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market(), metadata=(write_metadata(tmp_path),)))
    assert like["categories"] == ["", "Tools", "Toys"]
    metadata = (write_metadata(tmp_path / "new", [product_metadata("A", "Art"), product_metadata("B", "Toys")]),)
    panel.prepare(config_for(tmp_path / "new", steady_market(), metadata=metadata, min_matched=0.4), like)
    products = open_table(tmp_path / "new" / "out" / "products").to_pydict()
    assert dict(zip(products["product_id"], products["category"], strict=True)) == {"A": 0, "B": 2, "C": 0, "D": 0, "E": 0}
    rows = open_table(tmp_path / "new" / "out" / "rows" / FORECAST).to_pydict()
    assert sorted(rows["category"]) == [0, 0, 0, 0, 2]


@pytest.mark.parametrize("learned_from_text", [True, False])
def test_like_has_text_as_the_training_data_had(tmp_path: Path, learned_from_text: bool) -> None:
    """A model that reads text would fail on new reviews without text, since the data would have no tokens. One that learned
    without text would get tokens whose embeddings it never trained."""
    silent = [one | {"title": "", "text": ""} for one in steady_market()]
    old, new = (steady_market(), silent) if learned_from_text else (silent, steady_market())
    like = panel.prepare(config_for(tmp_path / "old", old))
    assert like["has_text"] == learned_from_text
    manifest = panel.prepare(config_for(tmp_path / "new", new, min_matched=0.0), like)
    assert manifest["has_text"] == learned_from_text
    if learned_from_text:
        with pytest.raises(UserError, match=r"only 0 of .* reviews have text .*but the members learned from .* 100.0% had"):
            panel.prepare(config_for(tmp_path / "again", new), like)
    else:
        assert gather(tmp_path / "new" / "out", FORECAST) == gather(tmp_path / "old" / "out", FORECAST)
    num_reviews = manifest["census"]["rows_kept"] if learned_from_text else 0
    assert open_table(tmp_path / "new" / "out" / "reviews").num_rows == num_reviews


def test_like_without_a_complete_week(tmp_path: Path) -> None:
    """Reviews of a few days would end in a traceback."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market()))
    with pytest.raises(UserError, match=r"no product has panel.min_reviews=1 in the last 4 weeks .* nothing to forecast"):
        panel.prepare(config_for(tmp_path / "new", [review("A", 0), review("B", 0)]), like)
