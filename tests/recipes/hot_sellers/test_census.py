"""The census of a market: every row of the raw files is kept or counted."""

import datetime
from pathlib import Path

import pytest
from small_market import FIRST_DAY, config_for, review, steady_market

from ensemble.arrow import open_table
from ensemble.data import reviews
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import prepare as panel


def test_every_row_read_is_kept_or_counted(tmp_path: Path) -> None:
    """Reviews would be lost without a message: duplicates, bad rows, and those of the week that is not over."""
    good = steady_market()
    duplicates = [good[3], good[3], good[40] | {"rating": 1.0, "text": "the same again"}]
    late = [review("A", 20, 0.1), review("N", 20, 0.2), review("N", 20, 0.2)]
    bad = [review("A", 2, rating=9.0), review("", 2)]
    content = [*good, *duplicates, *late, *bad, review("A", 1, user_id="late, but in the file before")]
    config = config_for(tmp_path, content[::-1], max_bad_fraction=0.5)
    manifest = panel.prepare(config)
    census = manifest["census"]
    counts = {kind: dropped["count"] for kind, dropped in census["dropped"].items()}
    assert counts == {
        "missing product id": 1,
        "impossible rating": 1,
        "duplicate: the same product, user and time": 3,
        "in the last week, which the data do not cover to its end": 3,
    }
    assert census["rows_read"] == len(content) == census["rows_kept"] + sum(counts.values())
    weeks = open_table(tmp_path / "out" / "weeks").to_pydict()
    assert sum(weeks["reviews"]) == census["rows_kept"] == open_table(tmp_path / "out" / "reviews").num_rows
    assert manifest["products"] == 5
    assert manifest["last_week"] == str((FIRST_DAY + datetime.timedelta(weeks=19)).date())
    # The first of several duplicates in the file is kept, and the file has the content in reverse order
    copies = [number + 1 for number, one in enumerate(content[::-1]) if one in (duplicates[0], good[40], late[1])]
    first = census["dropped"]["duplicate: the same product, user and time"]["first"]
    assert {place["line"] for place in first} <= set(copies)
    assert all(place["file"] == "reviews.jsonl" for place in first)


def test_the_first_of_two_copies_is_kept(tmp_path: Path) -> None:
    """It would depend on chance which of two reviews of a user with the same time is kept."""
    good = steady_market()
    first, second = (review("A", 10, 0.77, user_id="twice", rating=rating) for rating in (1.0, 5.0))
    other = [review("A", 10, 0.77, user_id="once", rating=3.0)]
    panel.prepare(config_for(tmp_path, [*good, first, *other, second]))
    read = open_table(tmp_path / "out" / "reviews").to_pydict()
    assert (read["rating"].count(1.0), read["rating"].count(3.0), read["rating"].count(5.0)) == (1, 1, 0)


def test_a_file_whose_every_row_is_bad(tmp_path: Path) -> None:
    """A wrong `until`, or a file of another kind, would end in a traceback."""
    with pytest.raises(UserError, match="all reviews are dated after until=2001-01-01: give a later day"):
        panel.prepare(config_for(tmp_path, steady_market(), until="2001-01-01"))
    with pytest.raises(UserError, match="rows are bad"):
        panel.prepare(config_for(tmp_path, [review("A", 0, rating=77.0)] * 3, max_bad_fraction=1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_until_cuts_the_reviews_after_a_day(tmp_path: Path) -> None:
    """Reviews of the last day would be left out, or those of the next day kept."""
    last_day = FIRST_DAY + datetime.timedelta(weeks=15, days=-1)
    content = [*steady_market(15), review("A", 14, 0.99999), review("A", 15, 0.0)]
    manifest = panel.prepare(config_for(tmp_path, content, until=str(last_day.date()), max_bad_fraction=0.9))
    assert manifest["last_week"] == str((last_day - datetime.timedelta(days=6)).date())
    assert {kind: dropped["count"] for kind, dropped in manifest["census"]["dropped"].items()} == {reviews.AFTER_UNTIL: 1}
    for until in ("yesterday", "2021-13-01", "2021-12-01T12:00"):
        with pytest.raises(UserError, match=f"until={until} is not a date: write it as in 2023-09-30"):
            panel.prepare(config_for(tmp_path / "other", steady_market(), until=until))
