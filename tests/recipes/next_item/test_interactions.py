"""Interactions are read from every format, in the order of events."""

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import written_tables
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from written_tables import in_a_unit, pieces, times_ms, write_one

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.next_item import interactions

BEAUTY = Path(__file__).resolve().parents[4] / "shared" / "data" / "sequences" / "amazon_beauty_5core_gaps.txt.gz"

SAME = [("7", "31", 1000), ("7", "32", 2000), ("8", "31", 2000)]


def rows(file: Path, format: str = "auto") -> list[tuple[str, str, int]]:
    return interactions.read([file], format, {}, Census())[0].rows()


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("ratings", "7::31::5::978300761\n7::32::3::978300762\n8::31::4::978300762\n"),
        ("times", "7 31 978300761\n7 32 978300762\n8 31 978300762\n"),
        ("ratings", "7\t31\t5\t978300761\n7\t32\t3\t978300762\n8\t31\t4\t978300762\n"),
        ("reviews", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n7\t31\t5\t978300761\n7\t32\t3\t978300762\n"
                    "8\t31\t4\t978300762\n"),
        ("reviews", "user_id,parent_asin,rating,timestamp\n7,31,5,978300761000\n7,32,3,978300762000\n8,31,4,978300762000\n"),
        ("reviews", "user_id,parent_asin,rating,timestamp\n7,31,10,978300761\n7,32,0,978300762\n8,31,sold,978300762\n"),
        ("reviews", "user_id,parent_asin,timestamp\n7,31,978300761\n7,32,978300762\n8,31,978300762\n"),
    ],
)  # fmt: skip
def test_every_rating_format_has_the_same_events(format: str, text: str, tmp_path: Path) -> None:
    """A public file would be read in another format, with its times as items."""
    file = tmp_path / "raw"
    file.write_text(text)
    assert interactions.detect_format(file) == format
    assert rows(file) == [(user, item, 978300760000 + time) for user, item, time in SAME]
    file.write_bytes(gzip.compress(text.encode()))
    assert rows(file) == [(user, item, 978300760000 + time) for user, item, time in SAME]


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        ("pairs", "7 31\n7 32\n\n8 31\n", [("7", "31", 0), ("7", "32", 0), ("8", "31", 0)]),
        ("sequences", "7 31 32 30\n9\n8 31\n", [("7", "31", 0), ("7", "32", 0), ("7", "30", 0), ("8", "31", 0)]),
        ("gaps", "7 31 32 30\t0 0 60\n8 31\t0\n", [("7", "31", 0), ("7", "32", 0), ("7", "30", 60000), ("8", "31", 0)]),
        ("pairs", "\n" * interactions.NUM_HEAD_LINES + "7 31\n", [("7", "31", 0)]),
        ("sequences", "7 --16000000\n8 31 32\n", [("7", "--16000000", 0), ("8", "31", 0), ("8", "32", 0)]),
    ],
)
def test_lines_of_text(format: str, text: str, expected: list[tuple[str, str, int]], tmp_path: Path) -> None:
    """One format of the published datasets would be read as another, or detecting it would end in a traceback."""
    file = tmp_path / "raw"
    file.write_text(text)
    assert interactions.detect_format(file) == format
    assert rows(file) == expected == rows(file, format)


LONG = "9999999999999"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LONG}::{LONG}0::5::978300761\n", (LONG, f"{LONG}0", 978300761000)),
        (f"{LONG} {LONG}0 5 978300761\n", (LONG, f"{LONG}0", 978300761000)),
        (f"7 {LONG} {LONG}0 {LONG}1\n", ("7", LONG, 0)),
        ("Ann::süß-1::4.5::978300761.25\n", ("Ann", "süß-1", 978300761250)),
        ("7::31::5::-978300761\n", ("7", "31", -978300761000)),
        (" 07 ::None::5::978300761\n", (" 07 ", "None", 978300761000)),
        (" 7\t31 5 978300761 \n", ("7", "31", 978300761000)),
        (" ::31::5::978300761\n", (" ", "31", 978300761000)),
        (f"007 {LONG} 978300761\n007 8 978300761\n", ("007", LONG, 978300761000)),
    ],
)
def test_ids_of_any_length_and_moments_before_1970(text: str, expected: tuple[str, str, int], tmp_path: Path) -> None:
    """An id beyond 32 bits would change or be read as a time; a negative time would be refused or overflow."""
    file = tmp_path / "raw"
    file.write_text(text)
    assert rows(file)[0] == expected


@pytest.mark.parametrize(
    ("format", "text", "sentence"),
    [
        ("gaps", "7 31 32\t0 5\n8 31 32\t0\n", "line 2: '8 31 32\t0' is not a user and items, a tab, and as many gaps"),
        ("auto", "7 31 32\t0 5\n8 31 32\t0\n", "line 2: '8 31 32\t0' is not a user and items, a tab, and as many gaps"),
        ("gaps", "7 31 32\t0 -5\n", "line 1: .* as many gaps of 0 seconds or more"),
        ("gaps", "7 31 32\t0 soon\n", "line 1: .* as many gaps"),
        ("gaps", f"7 31 32\t0 {LONG}{LONG}\n", "line 1: .* as many gaps"),
        (
            "auto",
            "1 2 3 4 5\t86400 86400 86400\n2 3 4\t60\n",
            "line 1: .* a tab between two groups of numbers. For format=gaps",
        ),
        (
            "auto",
            "1 2 3 4\n" * 1500 + "2 3 4\t60\n",
            "line 1501: .* a tab between .* one gap in seconds for each item, the first 0",
        ),
        ("auto", "7 31 32\t5 60\n", "line 1: '7 31 32\t5 60' has a first gap that is not 0"),
        ("gaps", "7 31\t0\n8 31 32\t5 60\n", "line 2: '8 31 32\t5 60' has a first gap that is not 0"),
        (
            "auto",
            f"7 {'31 ' * 99}\t{'1500000000 ' * 99}\n",
            "has a first gap that is not 0: gaps are seconds since the item",
        ),
        ("gaps", "7 31 32 33\t0 90000000000 90000000000\n", "line 1: .* has gaps of 100,000,000,000 seconds or more in all"),
        ("gaps", "7 31\t0\n8 31\t0\n7 32\t0\n", "line 3: '7 32\t0' is a second line of its user"),
        ("sequences", "7 31 32\n\n7 33 34\n", "line 3: '7 33 34' is a second line of its user"),
        ("auto", "7 31\n7 32 33\n", "line 2: '7 32 33' is a second line of its user"),
        (
            "auto",
            "7 31 4\n8 32 5\n7 33 5\n",
            "line 3: '7 33 5' is a second line of its user; .* format=times has user, item.* in a table with tabs, name"
            ".*; ratings without times: delete them, and give format=pairs if the lines are in order of time",
        ),
        ("times", "7 31 978300761\n7 31\n", "line 2: '7 31' is not user, item and seconds since 1970: correct the line"),
        ("times", f"7 31 {LONG}\n", "line 1: .* has a time in milliseconds or a finer unit, .*: divide the times by 1000"),
        ("auto", "7 31 978300761\n7 32 978300762000\n", "line 2: .* has a time in milliseconds or a finer unit"),
        ("auto", "7::31::5::978300761000\n", "line 1: .* has a time in milliseconds or a finer unit"),
        ("auto", "7 31 3 -1001\n7 32 3 -1000\n", "format=ratings has user, item, a number and seconds"),
        ("auto", "7 31 12345 1400000001\n7 32 12345 1400000002\n", "format=ratings has user, item, a number and seconds"),
        ("auto", "user item\n1 2\n1 3\n", "line 1, 'user item', looks like a header: delete it"),
        *(
            (format, "\nuser\titem\n1\t2\n1\t3\n", "line 2, 'user\titem', looks like a header: delete it")
            for format in ("pairs", "sequences", "times", "ratings", "gaps")
        ),
        (
            "times",
            "1 2 20200131\n1 3 20200201\n",
            "raw: times such as 20200131 are calendar dates: write seconds since 1970",
        ),
        ("auto", "1 2 5 20200131120000\n1 3 4 20200201120000\n", "times such as 20200131120000 are calendar dates"),
        ("auto", "1::2::5::202001311200\n1::3::4::202002011200\n", "times such as 202001311200 are calendar dates"),
        ("auto", "7 31\n8 x32\n", "raw, line 2, '8 x32', .* not whole numbers: .* format=pairs fits"),
        ("auto", "u1 i7 1600000000\n", "^[^ ]*raw, line 1, 'u1 i7 1600000000', .*: name the format .*: format=times fits"),
        ("auto", "u1 i7\nu2 i8\n", "^[^ ]*raw, line 1, .*: format=pairs fits the first lines, user and item"),
        ("auto", "u1\ti7\t1600000000\n", "^[^ ]*raw, line 1, .*: format=times fits"),
        ("auto", "u1 i7 i8\nu2 i8\n", "format=sequences fits the first lines"),
        ("auto", "who,what,when\n1,2,1600000000\n", "^[^ ]*raw has no known format of reviews"),
        ("auto", '{"who": "u", "what": 7}\n', r"^[^ ]*raw has no known .*, also needs parent_asin, user_id, timestamp$"),
        (
            "auto",
            "1\tU7\t11/11/2019 9:05:58 AM\tN1 N2\n2\tU8\t11/12/2019 6:11:30 PM\tN3\n",
            "^[^ ]*raw has no known .*: if that line is a review, name the columns by their numbers",
        ),
        ("auto", "0\t2010-10-19T23:55:27Z\t30.2\t-97.7\t22847\n", "^[^ ]*raw has no known .* name the columns by their num"),
        ("auto", "7 31\n7 3\x002\n", "line 2: this line has a NUL byte"),
        ("auto", "7::31::5::978300761\r7::32::5::978300761\r", "end in carriage returns alone"),
        ("pairs", "7 31\n7 3\x002\n", "line 2: this line has a NUL byte"),
        ("pairs", "PK\x03\x04\x00\n", r"is a zip archive, .*: unpack or convert it to UTF-8 text or gzip"),
        ("pairs", "7 31\n7 32 33\n", "line 2: '7 32 33' is not a user and an item"),
        ("ratings", "7::31::5::978300761\n7::31::5\n", "line 2: '7::31::5' is not user, item, rating and seconds"),
        ("auto", "7::31::5::978300761\n" * 3 + "::31::5::978300761\n", "line 4: '::31::5::978300761' is not user"),
        ("ratings", "\t31\t5\t978300761\n", "line 1: .* is not user, item"),
        *(("ratings", f"7::31::{rating}::978300761\n", "line 1: .* is not user") for rating in ("nan", "inf", "good", "")),
        *(("ratings", f"7::31::5::{time}\n", "seconds since 1970") for time in ("nan", "-inf", "1e300", LONG, "")),
        *((format, "", "is empty: check how it was made") for format in ("auto", *interactions.TEXT_FORMATS)),
        *(("auto", blank, "is empty") for blank in ("\n", "\u00a0\n")),
    ],
)
def test_a_bad_line_is_named(format: str, text: str, sentence: str, tmp_path: Path) -> None:
    """A user would have to search for one line among millions, or the line would be read with another meaning."""
    file = tmp_path / "raw"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        rows(file, format)


@pytest.mark.parametrize("line", ["160840{} 7 31", "160840{} 7 31 5", "7 160840{}000 31"])
def test_times_in_another_place_are_not_items(line: str, tmp_path: Path) -> None:
    """Each time would be a user with two items, and the rating the item to predict."""
    file = tmp_path / "raw"
    file.write_text("".join(f"{line.format(number)}\n" for number in range(4600, 4700)))
    with pytest.raises(UserError, match=r"numbers on a line, of which number [12] may be a time, as in '.*160840"):
        interactions.read([file], "auto", {}, Census())
    events, _ = interactions.read([file], "sequences", {}, Census()) if line[0] == "1" else (None, None)
    assert events is None or len(events) == 100 * (len(line.split()) - 1)


@pytest.mark.parametrize(
    "line", ["A{0}\tB001\t13697{0}00\t5", "0 1 88133{0} 5.0", "A{0} B001 1 50.00", "A{0}::B001::13697{0}00::5"]
)
def test_a_rating_is_not_a_time(line: str, tmp_path: Path) -> None:
    """Ratings and prices behind a time would be the times of the events, with other items to predict."""
    file = tmp_path / "raw"
    file.write_text("".join(f"{line.format(number)}\n" for number in range(5000, 5100)))
    with pytest.raises(UserError) as raised:
        interactions.read([file], "auto", {}, Census())
    assert "format=ratings" not in str(raised.value).split("(all formats")[0]


@pytest.mark.parametrize("line", ["7::8", "u1 i2 5 0", "UserID::MovieID::Rating::Timestamp"])
def test_one_damaged_line_does_not_change_the_format(line: str, tmp_path: Path) -> None:
    """A traceback, or the advice to read ratings as items, would follow from one line."""
    separator = "::" if "::" in line else " "
    file, rest = tmp_path / "raw", separator.join(["u{0}", "i{1}", "5", "97830{0}"])
    lines = [rest.format(number, number % 7) for number in range(1000, 1099)]
    file.write_text("\n".join([*lines[:5], line, *lines[5:]]))
    if line.startswith("u1"):
        assert len(interactions.read([file], "auto", {}, Census())[0]) == 100
    else:
        with pytest.raises(UserError, match=r"line 6: .* is not user, item, rating and seconds"):
            interactions.read([file], "auto", {}, Census())


def test_the_format_of_lines_that_may_be_times_is_named(tmp_path: Path) -> None:
    """A log of long item numbers, one line for each user, would be refused with the advice to write it as it is."""
    file = tmp_path / "raw"
    file.write_text("".join(f"{user} {10**8 + user % 7} {1_600_000_000 + user}\n" for user in range(50)))
    with pytest.raises(UserError, match=r"number 3 may be a time.*: give format=times if they are user, item and seconds"):
        interactions.read([file], "auto", {}, Census())
    events, _ = interactions.read([file], "times", {}, Census())
    assert events.row(1) == ("1", "100000001", 1_600_000_001_000)


def test_bad_rows_of_reviews_are_counted(tmp_path: Path) -> None:
    """Rows without a user or an item would be used in training."""
    file, census = tmp_path / "raw", Census()
    lines = ["7,31,5,978300761", ",31,5,978300762", "7,,1,978300763", "7,,2,978300764", "7,,,978300765"]
    file.write_text("\n".join(["user_id,parent_asin,rating,timestamp", *lines, f"7,35,5,{LONG}{LONG}"]))
    events, _ = interactions.read([file], "auto", {}, census)
    assert events.rows() == [("7", "31", 978300761000)]
    assert census.dropped == {"missing user id": 1, "missing product id": 3, "missing time": 1}
    with pytest.raises(UserError, match="5 of 6 rows are bad"):
        census.check(max_bad_fraction=0.5)


TEXTS = {
    "times": "7 31 978300761\n8 31 978300762\n",
    "ratings": "7::31::5::978300761\n8::31::4::978300762\n",
    "pairs": "7 31\n8 32\n",
    "sequences": "7 31 32 33\n8 31\n",
    "gaps": "7 31 32\t0 60\n8 31\t0\n",
    "reviews": "user_id,parent_asin,rating,timestamp\n7,31,5,978300761\n8,32,3,978300762\n",
}


@pytest.mark.parametrize("format", TEXTS)
def test_files_from_windows_have_the_same_events(format: str, tmp_path: Path) -> None:
    """The byte order mark would be part of the first user id, or the carriage return of the last item id."""
    file = tmp_path / "raw"
    file.write_text(TEXTS[format])
    expected = rows(file)
    file.write_bytes(b"\xef\xbb\xbf" + TEXTS[format].replace("\n", "\r\n").encode())
    assert interactions.detect_format(file) == format
    assert rows(file) == expected
    assert len(expected) > 1


@pytest.mark.parametrize("format", ["auto", "ratings"])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_a_file_that_breaks_off_is_named(part: float, format: str, tmp_path: Path) -> None:
    """A truncated download would cause a traceback, or the last events of all users would be missing."""
    generator = np.random.default_rng(0)
    lines = [f"{user}::{item}::5::{978300760 + time}" for user, item, time in generator.integers(1, 10**6, (20_000, 3))]
    whole = gzip.compress("\n".join(lines).encode())
    file = tmp_path / "raw.gz"
    file.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(UserError, match=r"the gzip stream of .*raw\.gz ends early near byte .*: get the file again"):
        rows(file, format)


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    """The user would see a traceback after minutes of reading."""
    file = tmp_path / "raw"
    for num_lines in (1, 60_000):  # among the lines from which the format is detected, and after them
        file.write_bytes(b"7::31::5::978300761\n" * num_lines + b"7::caf\xe9::5::978300761\n")
        sentence = f"line {num_lines + 1}: this is not text in UTF-8 .byte 0xe9 after '7::caf'.: .* from Latin-1"
        with pytest.raises(UserError, match=sentence):
            rows(file)


def test_a_user_a_tab_and_items_are_a_sequence(tmp_path: Path) -> None:
    """The tab after the user would be refused as a tab between two groups of numbers."""
    file = tmp_path / "raw"
    file.write_text("7\t31 32 30\n8\t31\n")
    assert interactions.detect_format(file) == "sequences"
    assert rows(file)[:2] == [("7", "31", 0), ("7", "32", 0)]
    file.write_text("1 2 3 4 5\t86400 86400 86400\n")
    assert len(rows(file, "sequences")) == 7  # named by the user, all of them are items


def test_files_are_read_together_where_they_have_a_common_clock(tmp_path: Path) -> None:
    """Times would be sorted together with line numbers, or two histories of one user would be mixed."""
    files = {name: tmp_path / name for name in (*TEXTS, "more")}
    for name, text in TEXTS.items():
        files[name].write_text(text)
    both, _ = interactions.read([files["ratings"], files["reviews"]], "auto", {}, Census())
    assert both.height == 3  # one of them is the same in both
    for one, other in (("ratings", "pairs"), ("gaps", "ratings"), ("sequences", "gaps"), ("pairs", "reviews")):
        with pytest.raises(UserError, match=f"has format {one} and .* has {other}, whose times cannot be compared"):
            interactions.read([files[one], files[other]], "auto", {}, Census())
    for name in ("gaps", "sequences"):
        files["more"].write_text(TEXTS[name])
        with pytest.raises(UserError, match=f"a user is in two files of the format {name}"):
            interactions.read([files[name], files["more"]], "auto", {}, Census())
    files["more"].write_text("7 30\n")
    events, _ = interactions.read([files["pairs"], files["more"]], "auto", {}, Census())
    assert interactions.ordered(events)["item"].to_list() == ["31", "30", "32"]


@pytest.mark.parametrize("order", [["ratings.dat", "reviews.csv"], ["reviews.csv", "ratings.dat"]])
def test_the_same_events_in_two_files_count_once(
    order: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each event would count twice, so that the item before the target would be the target itself; or with the coarser time
    if that file comes first, in another order than by the finer times."""
    (tmp_path / "ratings.dat").write_text("7::33::5::978300761\n7::31::5::978300761\n8::32::4::978300762\n")
    rows = ["7,31,5,978300761234", "7,33,5,978300761321", "8,32,4,978300762000", "8,32,4,978300763000"]
    (tmp_path / "reviews.csv").write_text("\n".join(["user_id,parent_asin,rating,timestamp", *rows]))
    census = Census()
    events, _ = interactions.read([tmp_path / name for name in order], "auto", {}, census)
    last = [("8", "32", 978300762000), ("8", "32", 978300763000)]
    assert events.rows() == [("7", "31", 978300761234), ("7", "33", 978300761321), *last]
    assert census.dropped == {interactions.COPY: 3}
    printed = capsys.readouterr().out
    assert "ratings.dat in seconds" in printed
    assert "reviews.csv in milliseconds" in printed


def test_ties_stay_in_the_files_order() -> None:
    """Two in five test items of MovieLens 1M would differ, since many ratings are of the same second."""
    raw = pl.DataFrame(
        [("b", "3", 5), ("a", "9", 3), ("b", "1", 5), ("a", "2", 1), ("b", "2", 4), ("a", "1", 3)],
        schema=interactions.SCHEMA,
        orient="row",
    )
    assert interactions.ordered(raw).rows() == [
        ("b", "2", 4), ("b", "3", 5), ("b", "1", 5), ("a", "2", 1), ("a", "9", 3), ("a", "1", 3)
    ]  # fmt: skip


def test_the_core_has_enough_of_each() -> None:
    """Leaving out an item can leave a user with too few interactions, so one pass is not enough."""
    pairs = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("c", "2"), ("c", "3"), ("d", "3")]
    raw = pl.DataFrame([(*pair, 0) for pair in pairs], schema=interactions.SCHEMA, orient="row")
    assert set(interactions.core(raw, 2).select("user", "item").rows()) == set(pairs[:4])
    assert interactions.core(raw, 1).height == len(pairs)
    assert interactions.core(raw, 9).is_empty()


@pytest.mark.skipif(not BEAUTY.exists(), reason=f"{BEAUTY.name} is not beside the project")
def test_the_published_counts_of_beauty() -> None:
    """Scores would be of another dataset than those of published tables."""
    events, formats = interactions.read([BEAUTY], "auto", {}, Census())
    assert formats == ["gaps"]
    assert (events.height, events["user"].n_unique(), events["item"].n_unique()) == (198_502, 22_363, 12_101)
    assert interactions.core(events, 5).height == 198_502


NUM_EVENTS = 60


@settings(max_examples=25, phases=(Phase.generate,))
@given(data=st.data())
def test_events_are_read_as_written(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A user, an item or a time would depend on the format, or on the number of files."""
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    name = (written_tables.TEXTS | written_tables.DIGITS).filter(lambda text: ":" not in text)
    names = data.draw(st.lists(name, min_size=2, max_size=9))
    frame = pl.DataFrame(
        {
            "user_id": generator.choice(np.array(names, object), NUM_EVENTS),
            "parent_asin": generator.choice(np.array(names, object), NUM_EVENTS),
            "rating": [1.0, 4.5, 5.0] * (NUM_EVENTS // 3),
            "timestamp": times_ms(generator, NUM_EVENTS),
        },
        schema={"user_id": pl.String, "parent_asin": pl.String, "rating": pl.Float64, "timestamp": pl.Int64},
    )
    folder, census, files = tmp_path_factory.mktemp("events"), Census(), []
    for begin, end in pieces(data, NUM_EVENTS):
        piece = frame[begin:end]
        if data.draw(st.booleans()):
            files.append(folder / f"{begin}.dat")
            lines = (f"{user}::{item}::{rating}::{time / 1000}\n" for user, item, rating, time in piece.iter_rows())
            files[-1].write_text("".join(lines), "utf-8")
        else:
            files.append(write_one(data, in_a_unit(data, piece, "timestamp"), folder / str(begin)))
    events, _ = interactions.read(files, "auto", {}, census)
    assert events.rows() == frame.select("user_id", "parent_asin", "timestamp").rows()
    assert (census.rows_read, census.rows_kept) == (NUM_EVENTS, NUM_EVENTS)


def test_columns_of_a_format_without_a_header_are_refused(tmp_path: Path) -> None:
    """The names of columns would be ignored, without a message."""
    (tmp_path / "raw").write_text("196\t242\t3\t881250949\n")
    with pytest.raises(UserError, match="columns is for tables with a header, and format=ratings has fixed columns"):
        interactions.read([tmp_path / "raw"], "ratings", {"product_id": "a", "rating": "b"}, Census())


def test_a_first_line_of_ids_is_no_header(tmp_path: Path) -> None:
    """A file of ids of a named format would be refused because its first line has no number."""
    (tmp_path / "raw").write_text("ann x\n2 6\nbob y\n")
    assert rows(tmp_path / "raw", "pairs") == [("ann", "x", 0), ("2", "6", 0), ("bob", "y", 0)]
    (tmp_path / "raw").write_text("\n" * interactions.NUM_HEAD_LINES + "u1 6\n2 6\n")
    assert len(rows(tmp_path / "raw", "pairs")) == 2
    (tmp_path / "raw").write_text("1 2 20200131\n1 3 1400000001\n")  # one time may look like a date
    assert rows(tmp_path / "raw", "times")[0] == ("1", "2", 20200131000)
