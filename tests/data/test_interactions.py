"""Interactions read from every kind of file, in the order in which they happened."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from ensemble.data import interactions
from ensemble.data.census import Census
from ensemble.errors import UserError

BEAUTY = Path(__file__).resolve().parents[3] / "shared" / "data" / "sequences" / "amazon_beauty_5core_gaps.txt.gz"

SAME = [("7", "31", 1000), ("7", "32", 2000), ("8", "31", 2000)]


def rows(file: Path, format: str = "auto") -> list[tuple[str, str, int]]:
    return interactions.read([file], format, {}, Census())[0].rows()


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("ratings", "7::31::5::978300761\n7::32::3::978300762\n8::31::4::978300762\n"),
        ("ratings", "7\t31\t5\t978300761\n7\t32\t3\t978300762\n8\t31\t4\t978300762\n"),
        ("reviews", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n7\t31\t5\t978300761\n7\t32\t3\t978300762\n"
                    "8\t31\t4\t978300762\n"),
        ("reviews", "user_id,parent_asin,rating,timestamp\n7,31,5,978300761000\n7,32,3,978300762000\n8,31,4,978300762000\n"),
    ],
)  # fmt: skip
def test_every_rating_format_says_the_same(format: str, text: str, tmp_path: Path) -> None:
    """A public file would be read as another kind, and its times as items."""
    file = tmp_path / "raw"
    file.write_text(text)
    assert interactions.recognise(file) == format
    assert rows(file) == [(user, item, 978300760000 + time) for user, item, time in SAME]
    file.write_bytes(gzip.compress(text.encode()))
    assert rows(file) == [(user, item, 978300760000 + time) for user, item, time in SAME]


@pytest.mark.parametrize(
    ("format", "text", "found"),
    [
        ("pairs", "7 31\n7 32\n\n8 31\n", [("7", "31", 1), ("7", "32", 2), ("8", "31", 4)]),
        ("sequences", "7 31 32 30\n8 31\n", [("7", "31", 0), ("7", "32", 1), ("7", "30", 2), ("8", "31", 0)]),
        ("gaps", "7 31 32 30\t0 0 60\n8 31\t0\n", [("7", "31", 0), ("7", "32", 0), ("7", "30", 60000), ("8", "31", 0)]),
    ],
)
def test_lines_of_text(format: str, text: str, found: list[tuple[str, str, int]], tmp_path: Path) -> None:
    """The formats of the published data sets would be taken for each other."""
    file = tmp_path / "raw"
    file.write_text(text)
    assert interactions.recognise(file) == format
    assert rows(file) == found == rows(file, format)


@pytest.mark.parametrize(
    ("format", "text", "sentence"),
    [
        ("gaps", "7 31 32\t0 5\n8 31 32\t0\n", "line 2: 2 items need as many gaps"),
        ("gaps", "7 31 32\t0 -5\n", "line 1: 2 items need as many gaps"),
        ("pairs", "7 31\n7 32 33\n", "line 2: '7 32 33' is not a user and an item"),
        ("ratings", "7::31::5::978300761\n7::31::5\n", "line 2: '7::31::5' is not user, item, rating and seconds"),
        ("auto", "\n", "is empty"),
    ],
)
def test_a_bad_line_is_named(format: str, text: str, sentence: str, tmp_path: Path) -> None:
    """A user would look for one line among millions."""
    file = tmp_path / "raw"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        rows(file, format)


def test_ties_stay_in_the_files_order() -> None:
    """Two in five test items of MovieLens 1M would be others: many ratings are of the same second."""
    raw = pl.DataFrame(
        [("b", "3", 5), ("a", "9", 3), ("b", "1", 5), ("a", "2", 1), ("b", "2", 4), ("a", "1", 3)],
        schema=interactions.SCHEMA,
        orient="row",
    )
    assert interactions.ordered(raw).rows() == [
        ("b", "2", 4), ("b", "3", 5), ("b", "1", 5), ("a", "2", 1), ("a", "9", 3), ("a", "1", 3)
    ]  # fmt: skip


def test_the_core_has_enough_of_each() -> None:
    """Leaving out an item can leave a user with too few: once around would not be enough."""
    pairs = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("c", "2"), ("c", "3"), ("d", "3")]
    raw = pl.DataFrame([(*pair, 0) for pair in pairs], schema=interactions.SCHEMA, orient="row")
    assert set(interactions.core(raw, 2).select("user", "item").rows()) == set(pairs[:4])
    assert interactions.core(raw, 1).height == len(pairs)
    assert interactions.core(raw, 9).is_empty()


@pytest.mark.skipif(not BEAUTY.exists(), reason=f"{BEAUTY.name} is not beside the project")
def test_the_published_counts_of_beauty() -> None:
    """The figures would be of another data set than the published tables'."""
    found, formats = interactions.read([BEAUTY], "auto", {}, Census())
    assert formats == ["gaps"]
    assert (found.height, found["user"].n_unique(), found["item"].n_unique()) == (198_502, 22_363, 12_101)
    assert interactions.core(found, 5).height == 198_502
