"""The reader of product metadata: each release to one table, whatever the types of its fields."""

import gzip
import warnings

import polars as pl
import pytest
from raw_reviews import bad_lines, json_lines, real, review, write

from ensemble.data.reviews import MALFORMED, NO_PRODUCT, PRODUCT_SCHEMA, Census, read_products
from ensemble.errors import UserError


def products(file, **options):
    census = Census()
    frame = pl.concat(read_products([file], census, **options))
    assert frame.schema == pl.Schema(PRODUCT_SCHEMA)
    assert census.rows_kept == frame.height
    assert census.rows_read == census.rows_kept + sum(census.dropped.values())
    return frame, census


def test_2023_metadata(tmp_path):
    """A price would be lost or misread, or a product would lose its category."""
    base = {"parent_asin": "P", "title": " T ", "store": None, "main_category": "Toys", "categories": ["A", "B"]}
    prices = [12.99, "12.99", "$1,012.99", "None", None, "from 12.99", "$5.00 - $9.00", "—", "free", 7, True, ""]
    rows = [base | {"price": price} for price in prices]
    rows += [base | {"main_category": None}, base | {"main_category": "", "categories": []}]
    rows += [base | {"parent_asin": None}, base | {"categories": "A", "main_category": None, "store": "S"}, "broken\n"]
    frame, census = products(write(tmp_path / "m.jsonl", json_lines(*rows)), block_bytes=300)
    assert frame["price"].to_list()[:12] == [12.99, 12.99, 1012.99, None, None, 12.99, 5.0, None, None, 7.0, None, None]
    assert frame["title"].unique().to_list() == ["T"]
    assert frame["category"].to_list() == ["Toys"] * 12 + ["B", None, "A"]
    assert frame["store"].to_list() == [None] * 14 + ["S"]
    unread = "note: rows kept with an unreadable price, which is read as if it were empty"
    assert bad_lines(census) == {NO_PRODUCT: [15], MALFORMED: [17], unread: [9, 11]}
    other = ["US$12.00", "CHF 9.90", "12.50 CHF", "¥1,980", "1\u202f299.00 €", "1'299.00", "-5"]
    frame, _ = products(write(tmp_path / "o.jsonl", json_lines(*(base | {"price": price} for price in other))))
    assert frame["price"].to_list() == [12.0, 9.9, 12.5, 1980.0, 1299.0, 1299.0, None]


def test_prices_that_are_not_used_may_have_any_form(tmp_path):
    """A column that no feature needs would stop the preparation."""
    base = {"parent_asin": "P", "title": "T", "store": None, "main_category": "Toys", "categories": []}
    file = write(tmp_path / "m.jsonl", json_lines(*(base | {"price": price} for price in ["12.50", "12,50"] * 9)))
    with pytest.raises(UserError, match="have a decimal point"):
        products(file)
    assert len(products(file, with_price=False)[0]) == 18


def test_metadata_as_parquet(tmp_path):
    """The Parquet release, where prices are text, would be refused."""
    rows = [{"parent_asin": "P", "title": "T", "categories": ["A", "B"], "main_category": None, "price": "None"}]
    pl.DataFrame(rows, schema_overrides={"main_category": pl.String}).write_parquet(tmp_path / "m.parquet")
    frame, _ = products(tmp_path / "m.parquet")
    assert frame.row(0) == ("P", "T", None, "B", None)


def test_numbers_as_categories(tmp_path):
    """Category 0 would be lost, and category 5000 would take a list of 5,000 items for each product."""
    rows = ["P,T,Toys,0", "Q,T,,0", "R,T,,5000", "S,T,,"]
    frame, _ = products(write(tmp_path / "m.csv", "\n".join(["parent_asin,title,main_category,categories", *rows]) + "\n"))
    assert frame["category"].to_list() == ["Toys", "0", "5000", None]


def test_texts_that_only_begin_like_code_are_categories(tmp_path, recwarn):
    """The preparation would end with a traceback, or print a warning of Python for each product; or a missing item would be
    the category None."""
    warnings.simplefilter("always")
    texts = ["{{}}", "{[]}", "{['A']: 1}", "2in1 Laptops", "['Music', 'AC\\DC']", "['Music', None]"]
    rows = [f'{number},T,"{text}"' for number, text in enumerate(texts)]
    frame, _ = products(write(tmp_path / "m.csv", "\n".join(["parent_asin,title,categories", *rows]) + "\n"))
    assert frame["category"].to_list() == [*texts[:-2], "AC\\DC", None]
    assert not recwarn


def test_metadata_of_a_wrong_type_or_format(tmp_path):
    """The error would advise the setting columns, which is for reviews only."""
    rows = [{"parent_asin": "P", "title": True, "categories": ["A", "B"]}]
    pl.DataFrame(rows).write_parquet(tmp_path / "m.parquet")
    with pytest.raises(UserError, match=r"has the type bool, and the title must be text or numbers: convert the column$"):
        products(tmp_path / "m.parquet")
    with pytest.raises(UserError, match=r"has no known format of products .*: convert it; the nearest format, "):
        products(write(tmp_path / "movies.dat", b"1::Toy Story (1995)::Animation\n"))


def test_2018_metadata_whose_types_vary(tmp_path):
    """The rows of a block would be lost if a field is a list in one row and text in another."""
    base = {"asin": "P", "title": "T", "brand": "S", "price": "$3.50", "main_cat": "", "category": ["A", "B"]}
    picture = '<img src="x.png" class="c" alt="AMAZON FASHION"/>'
    rows = [base, base | {"category": "", "rank": []}, base | {"main_cat": picture, "title": ["T"], "rank": "1"}]
    frame, _ = products(write(tmp_path / "m.json.gz", gzip.compress(json_lines(*rows))))
    assert frame["category"].to_list() == ["B", None, "AMAZON FASHION"]
    assert frame["store"].to_list() == ["S"] * 3
    assert frame["price"].to_list() == [3.5] * 3


def test_reviews_given_as_metadata(tmp_path):
    """Reviews taken for metadata would give each product a review's title."""
    with pytest.raises(UserError, match="contains reviews, not product metadata"):
        products(write(tmp_path / "r.jsonl", json_lines(review(categories=[]))))


def test_real_metadata():
    """The real 2018 metadata, whose types vary from row to row, would lose products or prices."""
    frame, census = products(real("amazon/meta_Gift_Cards.json.gz"), block_bytes=100_000)
    assert (frame.height, census.dropped) == (1_547, {})
    assert frame["price"].count() == 358  # 362 rows have one, of which 4 hold the shop page's markup
    assert frame["category"].null_count() == 0
    assert not frame["category"].str.contains("<").any()
