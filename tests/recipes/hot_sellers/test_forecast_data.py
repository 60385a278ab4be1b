"""Data for a forecast: the same features, categories and text as the data on which the members were trained."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_market import (
    FIRST_WEEK,
    SMALL,
    SUNDAY,
    config_for,
    gather,
    market_config,
    product_metadata,
    review,
    steady_market,
    write_metadata,
    write_raw,
)

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import new_data, requests, weekly
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.prepare import FORECAST
from ensemble.recipes.hot_sellers.settings import PanelConfig, PrepareConfig


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
    with pytest.raises(UserError, match=r"at least panel.min_reviews=1 reviews in the last 4 weeks .* nothing to forecast"):
        panel.prepare(config_for(tmp_path / "new", [review("A", 0), review("B", 0)]), like)


def test_what_reviews_do_not_state_is_noted(tmp_path: Path) -> None:
    """Reviews without the field verified_purchase would all be of purchases that are not verified, without a message."""
    metadata = (write_metadata(tmp_path / "raw", [product_metadata(one) for one in "ABCDE"]),)
    like = panel.prepare(config_for(tmp_path / "old", steady_market(), metadata=metadata))
    assert "unstated" not in like
    hidden = ("verified_purchase", "images")
    fewer = [{name: value for name, value in one.items() if name not in hidden} for one in steady_market()]
    plain = (write_metadata(tmp_path / "plain", [product_metadata(one, "") for one in "ABCDE"]),)
    manifest = panel.prepare(config_for(tmp_path / "new", fewer, metadata=plain), like)
    expected = ["reviews lack a mark of verified purchases", "reviews lack a list of images"]
    expected.append("products with metadata lack a category")
    ending = "more than in the training data: give it, or expect worse predictions"
    assert manifest["notes"] == [f"100.0% of the {what}, {ending}" for what in expected]
    assert panel.prepare(config_for(tmp_path / "same", steady_market(), metadata=metadata), like)["notes"] == []


@pytest.mark.parametrize("as_of_crawl", [True, False])
def test_missing_votes_and_prices_are_noted_if_they_are_features(as_of_crawl: bool, tmp_path: Path) -> None:
    """Unknown votes would be 0 and known prices unknown, without a message; or the message would be of unused columns."""
    settings = PanelConfig(horizon_weeks=2, top_fraction=0.4, as_of_crawl=as_of_crawl)
    priced, plain = (
        (write_metadata(tmp_path / name, [product_metadata(one, "", price=price) for one in "ABCDE"]),)
        for name, price in (("priced", 9.99), ("plain", None))
    )
    like = panel.prepare(config_for(tmp_path / "old", steady_market(), settings, metadata=priced))
    silent = [{name: value for name, value in one.items() if name != "helpful_vote"} for one in steady_market()]
    new = {"source": (write_raw(tmp_path, silent),)}
    notes = new_data.prepare(like, {**new, "metadata": plain, "out": str(tmp_path / "new")})["notes"]
    assert [note.partition(" lack ")[2].partition(",")[0] for note in notes] == (
        ["a number of helpful votes", "a price"] if as_of_crawl else []
    )
    assert requests.facts(like)["products_needed"] is as_of_crawl
    if as_of_crawl:
        with pytest.raises(UserError, match="were trained with product metadata, but none are given"):
            new_data.check(like, source=True, metadata=False)
    else:
        new_data.check(like, source=True, metadata=False)
    same = {"source": (write_raw(tmp_path / "same", steady_market()),), "metadata": priced, "out": str(tmp_path / "again")}
    assert new_data.prepare(like, same)["notes"] == []


def test_metadata_that_the_members_do_not_use_need_not_be_complete(tmp_path: Path) -> None:
    """A forecast by members that learned from reviews alone would be refused, or have warnings about what they never had."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market()))
    metadata = (write_metadata(tmp_path / "raw", [product_metadata("A", title="Ant")]),)
    manifest = panel.prepare(config_for(tmp_path / "new", steady_market(), metadata=metadata), like)
    assert manifest["notes"] == []
    assert open_table(tmp_path / "new" / "out" / "products")["title"].to_pylist() == ["Ant", None, None, None, None]


def test_what_reviews_of_training_do_not_state_is_not_read(tmp_path: Path) -> None:
    """Marks of verified purchases would reach weights of a network that training, on reviews without marks, left random."""
    hidden = ("verified_purchase", "images")
    fewer = [{name: value for name, value in one.items() if name not in hidden} for one in steady_market()]
    like = panel.prepare(config_for(tmp_path / "old", fewer))
    panel.prepare(config_for(tmp_path / "new", [one | {"images": ["a"]} for one in steady_market()]), like)
    assert gather(tmp_path / "new" / "out", FORECAST) == gather(tmp_path / "old" / "out", FORECAST)


def test_reviews_that_end_before_those_of_training_are_noted(tmp_path: Path) -> None:
    """An old file would give a forecast of weeks that the members have learned, without a message."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market(30)))
    (note,) = panel.prepare(config_for(tmp_path / "new", steady_market(20)), like)["notes"]
    assert note.startswith(
        "these reviews end in the week of 2021-05-17, but the members learned from reviews to that of 2021-07-26"
    )


def test_a_stray_review_is_among_the_notes_and_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A forecast by Python or over HTTP would rank one product of all, and the command would refuse the advised setting."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market()))
    source = (write_raw(tmp_path, [*steady_market(), review("A", 40, SUNDAY)]),)
    settings = {"source": source, "out": str(tmp_path / "new")}
    note = new_data.prepare(like, settings)["notes"][0]
    assert "if these are errors or incomplete, leave them out with until=2021-05-" in note
    assert capsys.readouterr().err.count("errors or incomplete") == 1
    manifest = new_data.prepare(like, {**settings, "out": str(tmp_path / "cut"), "until": "2021-05-23"})
    assert (manifest["notes"], manifest["splits"]) == ([], {FORECAST: like["splits"][FORECAST]})


def test_the_last_day_may_have_no_reviews(tmp_path: Path) -> None:
    """A whole week would be left out as incomplete, although the file goes on after it."""
    content = [one for one in steady_market(30) if one["timestamp"] != review("A", 19, 0.999)["timestamp"]]
    until = str(weekly.sunday(FIRST_WEEK + 18))
    sunday = [one for one in content if not 0 <= one["timestamp"] - review("A", 18, 6 / 7)["timestamp"] < weekly.WEEK_MS / 7]
    for name, reviews in (("all", content), ("without", sunday)):
        manifest = panel.prepare(config_for(tmp_path / name, reviews, until=until))
        assert manifest["last_week"] == str(weekly.monday(FIRST_WEEK + 18))


@pytest.mark.parametrize(("day", "last_week"), [("", 17), ("2021-05-15", 17), ("2021-05-16", 18), ("2031-05-18", 18)])
def test_the_last_week_is_complete_if_until_states_it(day: str, last_week: int, tmp_path: Path) -> None:
    """A file that ends on a Thursday would lose its last week; or weeks after its end would count as without reviews."""
    content = [one for one in steady_market() if one["timestamp"] < review("A", 19, 0)["timestamp"]]
    manifest = panel.prepare(config_for(tmp_path, content, until=day))
    assert manifest["last_week"] == str(weekly.monday(FIRST_WEEK + last_week))


def test_new_files_are_read_with_the_settings_of_training(tmp_path: Path) -> None:
    """A forecast of the file that was fitted would be refused, or by Python impossible."""
    rows = [f"{one['parent_asin']},{one['user_id']},{one['rating']},{one['timestamp']}" for one in steady_market()]
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(["item,who,stars,at", *rows, *["A,user,five,1609718400000"] * (len(rows) // 40)]) + "\n")
    columns = {"product_id": "item", "user_id": "who", "rating": "stars", "time": "at"}
    config = PrepareConfig(
        out=str(tmp_path / "out"), source=(str(file),), panel=SMALL, columns=columns, max_bad_fraction=0.05
    )
    like = panel.prepare(config)
    settings = {"source": (str(file),), "out": str(tmp_path / "new")}
    assert new_data.prepare(like, settings)["splits"] == {FORECAST: like["splits"][FORECAST]}
    known = {"source": (write_raw(tmp_path, steady_market()),), "out": str(tmp_path / "known")}
    assert new_data.prepare(like, known)["splits"] == {FORECAST: like["splits"][FORECAST]}


def test_the_columns_of_training_come_before_those_of_a_known_format(tmp_path: Path) -> None:
    """A forecast of the file that was fitted would be of other products: of parent_asin, although columns named asin. So
    would one of the same reviews in a request."""
    rows = [{**one, "asin": one["parent_asin"], "parent_asin": "P"} for one in steady_market()]
    file, request = write_raw(tmp_path, rows), str(tmp_path / "request.parquet")
    columns = {"product_id": "asin", "user_id": "user_id", "rating": "rating", "time": "timestamp"}
    like = panel.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(file,), panel=SMALL, columns=columns))
    pq.write_table(requests.review_table(rows), request)
    for source in (file, request):
        out = tmp_path / f"of_{Path(source).name}"
        assert new_data.prepare(like, {"source": (source,), "out": str(out)})["splits"] == {
            FORECAST: like["splits"][FORECAST]
        }
        assert gather(out, FORECAST) == gather(tmp_path / "out", FORECAST)


def test_a_request_without_images_states_none() -> None:
    """The warning that all reviews lack images would be missing, since each would have a list of none."""
    plain, with_two = review("A", FIRST_WEEK), review("B", FIRST_WEEK, images=["a", "b"])
    del plain["images"]
    assert "images" not in requests.review_table([plain]).column_names
    assert requests.review_table([plain, with_two])["images"].to_pylist() == [[], ["", ""]]


def test_columns_by_number_are_not_those_of_a_table_with_a_known_header(tmp_path: Path) -> None:
    """Users would be read as products if the new table has another order of columns than the one of training."""
    rows = [(one["user_id"], one["parent_asin"], one["rating"], one["timestamp"]) for one in steady_market()]
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("".join(f"{user},{item},{stars},{time}\n" for user, item, stars, time in rows))
    new.write_text("ProductId,UserId,Rating,Timestamp\n" + "".join(f"{b},{a},{c},{d}\n" for a, b, c, d in rows))
    columns = {"user_id": "1", "product_id": "2", "rating": "3", "time": "4"}
    like = panel.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(old),), panel=SMALL, columns=columns))
    for name in ("old", "new"):
        settings = {"source": (str(tmp_path / f"{name}.csv"),), "out": str(tmp_path / f"of_{name}")}
        assert new_data.prepare(like, settings)["splits"] == {FORECAST: like["splits"][FORECAST]}
    mixed = {"source": (str(old), write_raw(tmp_path, steady_market())), "out": str(tmp_path / "mixed")}
    with pytest.raises(
        UserError, match=r"reviews.jsonl has no column '1'.* columns was {.*} for the training data: give only"
    ):
        new_data.prepare(like, mixed)
