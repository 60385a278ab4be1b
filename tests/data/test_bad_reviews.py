"""Bad rows of reviews: each is counted with its line, whatever the size of a block; too many of them are refused."""

import json
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from raw_reviews import NOON_MS, UNTIL_MS, bad_lines, json_lines, read, review, write

from ensemble.data import records
from ensemble.data.reviews import (
    AFTER_UNTIL,
    BAD_ID,
    BAD_RATING,
    MALFORMED,
    NO_PRODUCT,
    NO_TIME,
    NO_USER,
    TOO_NEW,
    TOO_OLD,
    Census,
    Example,
)
from ensemble.errors import UserError

# ------------------------------------------------------------------------------------------------------- bad rows

BAD_REVIEWS = [
    (review(rating=None), BAD_RATING),
    (review(rating=...), BAD_RATING),
    (review(rating=0), BAD_RATING),
    (review(rating=5.5), BAD_RATING),
    (review(timestamp=788_918_399_999), TOO_OLD),
    (review(timestamp=UNTIL_MS + 1), AFTER_UNTIL),
    (review(parent_asin=""), NO_PRODUCT),
    (review(parent_asin=None), NO_PRODUCT),
    (review(user_id=""), NO_USER),
    (review(user_id="a\0b"), BAD_ID),
    (review(timestamp=...), NO_TIME),
]
ODD_REVIEWS = [  # a value of such a type causes a block to be parsed record by record
    (review(rating="five"), BAD_RATING),
    (review(rating=True), BAD_RATING),
    (review(user_id={"id": "U001"}), BAD_ID),
    (review(user_id=True), BAD_ID),
    (review(parent_asin=["P001"]), BAD_ID),
    (review(parent_asin=1.5), BAD_ID),
    (review(timestamp="soon"), NO_TIME),
    (review(timestamp=1e300), NO_TIME),
    (review(timestamp=[NOON_MS], user_id=None), NO_USER),
]
BROKEN_LINES = [
    b"not json\n",
    b'{"rating": 5.0, "title": "cut of\n',
    b"[1, 2]\n",
    b"null\n",
    b'{"user_id": "\xff\xfe"}\n',
    b'{"rating": NaN}\n',
    b'{"a": 1}{"a": 2}\n',
]


@pytest.mark.parametrize("odd", [False, True], ids=["fast", "slow"])
def test_every_kind_of_bad_row_is_counted_with_its_line(tmp_path, odd):
    """A bad row would be kept, dropped in silence, or reported with another line than its own."""
    cases = BAD_REVIEWS + (ODD_REVIEWS if odd else [])
    content, expected = json_lines(review()), {}
    for number, (row, kind) in enumerate(cases):
        content += json_lines(row, review(user_id="good"))
        expected.setdefault(kind, []).append(2 + 2 * number)
    census = Census()
    frame = read(write(tmp_path / "r.jsonl", content), census=census, until_ms=UNTIL_MS)
    assert frame["source_line"].to_list() == list(range(1, 2 * len(cases) + 2, 2))
    assert bad_lines(census) == {kind: lines[:5] for kind, lines in expected.items()}
    assert census.dropped == {kind: len(lines) for kind, lines in expected.items()}
    assert census.examples[AFTER_UNTIL][0].excerpt == f"product_id=P001, user_id=U001, rating=5, time={UNTIL_MS + 1}"


def test_broken_lines_of_json(tmp_path):
    """A broken line would take its whole block with it, or pass as a row."""
    content = json_lines(review())
    for line in BROKEN_LINES:
        content += line + json_lines(review(user_id="good"))
    census = Census()
    frame = read(write(tmp_path / "r.jsonl", content), census=census)
    assert frame["source_line"].to_list() == list(range(1, 2 * len(BROKEN_LINES) + 2, 2))
    assert census.dropped == {MALFORMED: len(BROKEN_LINES)}
    assert bad_lines(census) == {MALFORMED: [2, 4, 6, 8, 10]}
    assert census.examples[MALFORMED][0].excerpt == "not json"


@pytest.mark.parametrize("block_bytes", [1 << 14, 1 << 25])
@pytest.mark.parametrize("key", ['"rating"', '"r\\u0061ting"'])
def test_a_repeated_key_is_refused(tmp_path, key, block_bytes):
    """A parser would use the last of two ratings, without a message; the first 1,000 records may have one each."""
    good = json_lines(*[review(timestamp=NOON_MS + number, images=[]) for number in range(1200)]).decode()
    file = write(tmp_path / "a.jsonl", good + "".join(f"{{{key}: 1.0, {line[1:]}\n" for line in good.splitlines()))
    with pytest.raises(UserError, match=r"a.jsonl, line 1\d{3}: the key 'rating' occurs twice: keep one of them"):
        read(file, block_bytes=block_bytes)


def test_mistyped_values_are_salvaged(tmp_path):
    """One number written as text would cost its row, or the whole block."""
    odd = review(rating="4.5", timestamp=float(NOON_MS), helpful_vote="1,000", verified_purchase="false", images="[1, 2]")
    frame = read(write(tmp_path / "r.jsonl", json_lines(review(), odd)))
    assert frame.select("rating", "time_ms", "helpful_votes", "verified", "num_images").rows() == [
        (5.0, NOON_MS, 3, True, 1),
        (4.5, NOON_MS, 1000, False, 2),
    ]


def test_broken_lines_of_csv(tmp_path):
    """A line with too few or too many fields, or no UTF-8, would shift columns or stop the run."""
    lines = [
        b"user_id,parent_asin,rating,timestamp,note",
        b"A,P,5,1600000000,",
        b"A,P,5,1600000000",
        b"A,P,5,1600000000,,more",
        b"A,P,5,1600000000,caf\xe9",
        b"A,,5,1600000000,",
        b"A,P,six,1600000000,",
        b"A,P,5,never,",
        b"A,P,5,1600000000,",
    ]
    census = Census()
    frame = read(write(tmp_path / "r.csv", b"\n".join(lines)), census=census)
    assert frame["source_line"].to_list() == [2, 9]
    assert bad_lines(census) == {MALFORMED: [3, 4, 5], NO_PRODUCT: [6], BAD_RATING: [7], NO_TIME: [8]}
    census = Census()
    read(write(tmp_path / "latin1.csv", b"\n".join([lines[0], lines[1], lines[4]])), census=census)
    assert bad_lines(census) == {MALFORMED: [3]}


@pytest.mark.parametrize("longest", [1 << 26, 200])
@pytest.mark.parametrize("block_bytes", [10, 1 << 20])
def test_a_quote_that_is_never_closed_costs_one_line(tmp_path, monkeypatch, block_bytes, longest):
    """A stray quote would swallow the rest of the file as one text, or fill the memory with it."""
    monkeypatch.setattr(records, "LONGEST_RECORD_BYTES", longest)
    lines = ["user_id,parent_asin,rating,timestamp,text", *[f'U{n},P,5,1600000000,"text"' for n in range(100)]]
    lines[41] = 'U40,P,5,1600000000,"text'
    census = Census()
    frame = read(write(tmp_path / "r.csv", "\n".join(lines)), census=census, block_bytes=block_bytes)
    assert bad_lines(census) == {MALFORMED: [42]}
    assert frame.height == 99


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    """A file that is one endless line would be read into memory whole."""
    monkeypatch.setattr(records, "LONGEST_RECORD_BYTES", 2000)
    file = write(tmp_path / "r.jsonl", json_lines(review()) + b"{" + b" " * 10_000)
    with pytest.raises(UserError, match=r"line 2 of .* longer than 2,000 bytes"):
        read(file, block_bytes=500)


def test_the_file_s_end_is_its_modification_time(tmp_path):
    """A review that is later than its file would be used, or `until` would not replace the old time of a copied file."""
    file = write(tmp_path / "r.jsonl", json_lines(review(), review(timestamp=NOON_MS + 2 * 86_400_000)))
    os.utime(file, (NOON_MS / 1000, NOON_MS / 1000))
    census = Census()
    assert read(file, census=census)["source_line"].to_list() == [1]
    assert bad_lines(census) == {TOO_NEW: [2]}
    with pytest.raises(
        UserError, match=r"after the file's modification time: .* `touch` it, or give the last day with until="
    ):
        census.check(0.01)
    assert read(file, until_ms=UNTIL_MS).height == 2


LINES = st.lists(
    st.one_of(
        st.sampled_from([(json_lines(row), kind) for row, kind in BAD_REVIEWS + ODD_REVIEWS]),
        st.sampled_from([(line, MALFORMED) for line in BROKEN_LINES]),
        st.sampled_from([(b"\n", "blank"), (b" \r\n", "blank")]),
        st.text(max_size=20).map(lambda text: (json_lines(review(text=text, title="")), "good")),
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, block_bytes=st.integers(1, 3000), last_newline=st.booleans())
def test_rows_are_accounted_for_whatever_the_block(tmp_path, lines, block_bytes, last_newline):
    """A row at the end of a block or beside a bad line would be lost, counted twice or numbered wrongly."""
    lines = [(json_lines(review()), "good"), *lines]
    content = b"".join(line for line, _ in lines)
    file = write(tmp_path / "r.jsonl", content if last_newline else content.rstrip(b"\r\n"))
    results = []
    for size in (block_bytes, records.BLOCK_BYTES):
        census = Census()
        frame = read(file, census=census, until_ms=UNTIL_MS, block_bytes=size)
        results.append((frame.rows(), census.to_dict()))
    assert results[0] == results[1]
    kinds = Counter(kind for _, kind in lines)
    blank, good = kinds.pop("blank", 0), kinds.pop("good")
    assert census.rows_read == len(lines) - blank
    assert census.rows_kept == good
    assert census.dropped == kinds
    assert frame["source_line"].to_list() == [number for number, (_, kind) in enumerate(lines, 1) if kind == "good"]


CSV_LINES = st.lists(
    st.one_of(
        st.sampled_from([("U,P,7,1600000000,x\n", BAD_RATING), (",P,5,1600000000,x\n", NO_USER), ("U,P\n", MALFORMED)]),
        st.sampled_from(
            [("\n", "blank"), ('U,P,5,"x\n', MALFORMED), ("U,P,5,1600000000,a\rU,P,5,1600000000,b\n", MALFORMED)]
        ),
        st.sampled_from([('U,P,5,1600000000,the "best" one\n', MALFORMED)]),
        st.text(st.sampled_from('ab",\r\n')).map(lambda t: ('U,P,5,1600000000,"' + t.replace('"', '""') + '"\n', "good")),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=CSV_LINES, block_bytes=st.integers(1, 400))
@example(lines=[("U,P,5,1600000000,a\rU,P,5,1600000000,b\n", MALFORMED), ("\n", "blank")], block_bytes=400)
def test_csv_rows_are_accounted_for_whatever_the_block(tmp_path, lines, block_bytes):
    """A quoted newline at the end of a block would split a row, or shift the line numbers."""
    stray = sum(line.count('"') % 2 for line, _ in lines)
    content = "user_id,parent_asin,rating,timestamp,text\nU,P,5,1600000000,first\n" + "".join(line for line, _ in lines)
    file = write(tmp_path / "r.csv", content)
    results = []
    for size in (block_bytes, records.BLOCK_BYTES):
        census = Census()
        frame = read(file, census=census, until_ms=UNTIL_MS, block_bytes=size)
        results.append((frame.rows(), census.to_dict()))
    assert results[0] == results[1]
    if stray == 0:  # a stray quote may rightly pair with a later one
        kinds = Counter(kind for _, kind in lines)
        kinds.pop("blank", 0)
        assert census.rows_kept == kinds.pop("good", 0) + 1
        assert census.dropped == kinds
        first, expected = 2, [2]
        for line, kind in [("x\n", "first"), *lines]:
            expected += [first] if kind == "good" else []
            first += line.count("\n")
        assert frame["source_line"].to_list() == expected
        texts = [line[18:-2].replace('""', '"') for line, kind in lines if kind == "good"]
        assert frame["text"].to_list() == ["first", *texts]


# ------------------------------------------------------------------------------------------------------- the census


def test_census_counts_what_later_stages_drop():
    """Duplicates would vanish from the sum, or stop the run as if the file were damaged."""
    census = Census()
    census.read(10)
    census.drop(BAD_RATING, 1, [Example("raw/f", 3, "rating=9")])
    census.drop("duplicate", 6, (Example("f", line, "again") for line in range(6)))
    census.drop("duplicate", 1, [Example("f", 9, "again")])
    assert (census.rows_read, census.rows_kept, census.dropped) == (10, 2, {BAD_RATING: 1, "duplicate": 7})
    assert [example.line for example in census.examples["duplicate"]] == [0, 1, 2, 3, 4]
    assert json.loads(json.dumps(census.to_dict()))["dropped"][BAD_RATING] == {
        "count": 1,
        "first": [{"file": "f", "line": 3, "excerpt": "rating=9"}],
    }
    census.check(0.1)
    with pytest.raises(UserError, match=r"1 of 10 rows are bad \(10.00%, allowed are 9.00%\)[^$]*raw/f:3: rating=9"):
        census.check(0.09)
    with pytest.raises(AssertionError):
        census.drop("duplicate", 3)


def test_control_characters_are_shown():
    """A NUL in an id, for which its row is left out, would be invisible, or an escape sequence change the terminal."""
    census = Census()
    census.read(1)
    census.drop(BAD_ID, 1, [Example("f", 3, "product_id=a\0b, user_id=\x1b[2J")])
    assert r"f:3: product_id=a\x00b, user_id=\x1b[2J" in census.table()


def test_times_that_do_not_count_from_1970():
    """Days or numbers of orders as times would be called bad rows, without the rule and a fix."""
    census = Census()
    census.read(2)
    census.drop(TOO_OLD, 2)
    with pytest.raises(
        UserError, match=r"2 of 2 rows are bad .*: numbers are read as seconds or milliseconds since 1970, so"
    ):
        census.check(1.0)


def test_a_file_with_nothing_good_is_refused():
    """With max_bad_fraction=1, a run would continue without a single row."""
    census = Census()
    census.read(2)
    census.drop(MALFORMED, 2)
    with pytest.raises(UserError, match=r"2 of 2 rows are bad .*: no row is left, so correct them"):
        census.check(1.0)
