"""The readers: every format to one table, every bad row counted, whatever the size of a block."""

import gzip
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from written_tables import DIGITS, TEXTS, in_a_unit, pieces, times_ms, write_one

from ensemble.data import records
from ensemble.data.reviews import (
    AFTER_UNTIL,
    BAD_ID,
    BAD_RATING,
    MALFORMED,
    NO_PRODUCT,
    NO_TIME,
    NO_USER,
    PRODUCT_SCHEMA,
    REVIEW_SCHEMA,
    TOO_NEW,
    TOO_OLD,
    Census,
    Example,
    expand_sources,
    read_products,
    read_reviews,
)
from ensemble.errors import UserError

SHARED = Path(__file__).parents[3] / "shared" / "data"
NOON_MS = 1_600_000_000_000  # 13 September 2020
UNTIL_MS = 1_700_000_000_000


def review(**changes):
    """A row of Amazon Reviews 2023; a change to `...` leaves the field out."""
    row = {
        "rating": 5.0,
        "title": "Fine",
        "text": 'Works, as "new"\nand é',
        "images": [{"small_image_url": "s", "attachment_type": "IMAGE"}],
        "asin": "B001",
        "parent_asin": "P001",
        "user_id": "U001",
        "timestamp": NOON_MS,
        "helpful_vote": 3,
        "verified_purchase": True,
    } | changes
    return {name: value for name, value in row.items() if value is not ...}


def json_lines(*rows):
    return "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows).encode()


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(*files, census=None, **options):
    """All blocks as one frame, after checking what holds for every read."""
    census = Census() if census is None else census
    frames = list(read_reviews(files, census, **options))
    for frame in frames:
        assert frame.schema == pl.Schema(REVIEW_SCHEMA)
        assert frame.height > 0  # callers take its minimum
    assert census.rows_read == census.rows_kept + sum(census.dropped.values())
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=REVIEW_SCHEMA)
    assert frame.height == census.rows_kept
    return frame


def bad_lines(census):
    return {kind: [example.line for example in examples] for kind, examples in census.examples.items()}


# ------------------------------------------------------------------------------------------------------- formats


def test_2023_json_lines(tmp_path):
    """A field of the 2023 release would land in the wrong column, unit or type."""
    rows = [review(), review(title="", text="", images=[], helpful_vote=2**40, verified_purchase=False, rating=1)]
    frame = read(write(tmp_path / "r.jsonl", json_lines(*rows)))
    assert frame.to_dicts() == [
        {
            "product_id": "P001",
            "user_id": "U001",
            "time_ms": NOON_MS,
            "rating": 5.0,
            "text": 'Fine\nWorks, as "new"\nand é',
            "helpful_votes": 3,
            "verified": True,
            "num_images": 1,
            "source_file": 0,
            "source_line": 1,
        },
        {
            "product_id": "P001",
            "user_id": "U001",
            "time_ms": NOON_MS,
            "rating": 1.0,
            "text": "\n",
            "helpful_votes": 2**31 - 1,
            "verified": False,
            "num_images": 0,
            "source_file": 0,
            "source_line": 2,
        },
    ]


def test_gzip_and_parquet_give_the_same_rows(tmp_path):
    """The same reviews would differ with the container that they come in, or be told by its name."""
    rows = [review(user_id=f"U{number}", timestamp=NOON_MS + number) for number in range(50)]
    plain = write(tmp_path / "a.jsonl", json_lines(*rows))
    packed = write(tmp_path / "b.dat", gzip.compress(json_lines(*rows[:20])) + gzip.compress(json_lines(*rows[20:])))
    pl.DataFrame(rows).write_parquet(tmp_path / "c.pq")
    expected = read(plain)
    assert read(packed).equals(expected)
    assert read(tmp_path / "c.pq", block_bytes=7 * records.PARQUET_ROW_BYTES).equals(expected)


def test_parquet_with_dates_and_struct_of_lists(tmp_path):
    """Parquet as other tools write it (a timestamp with zone, a struct of lists) would lose times or images."""
    frame = pl.DataFrame([review(images={"large": ["a", "b"]}), review(images={"large": []})]).with_columns(
        pl.from_epoch("timestamp", time_unit="ms").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
    )
    frame.write_parquet(tmp_path / "r.parquet")
    frame = read(tmp_path / "r.parquet")
    assert frame["time_ms"].to_list() == [NOON_MS, NOON_MS]
    assert frame["num_images"].to_list() == [2, 0]


def test_2018_json_lines(tmp_path):
    """Seconds, votes with thousands separators, or what the 2018 release leaves out would be misread."""
    base = {"overall": 4.0, "unixReviewTime": NOON_MS // 1000, "reviewerID": "U", "asin": "0001", "verified": True}
    rows = [
        base | {"summary": "Sum", "reviewText": "Text", "vote": "1,234", "image": ["a", "b"]},
        base | {"summary": "Sum"},
        base | {"vote": 7},
    ]
    frame = read(write(tmp_path / "r.json.gz", gzip.compress(json_lines(*rows))))
    assert frame["product_id"].to_list() == ["0001"] * 3
    assert frame["time_ms"].to_list() == [NOON_MS] * 3
    assert frame["text"].to_list() == ["Sum\nText", "Sum", None]
    assert frame["helpful_votes"].to_list() == [1234, 0, 7]
    assert frame["num_images"].to_list() == [2, 0, 0]


def test_fields_that_are_not_recorded_are_null(tmp_path):
    """Absent votes, purchases, images and text would be reported as zero, false and empty."""
    ratings = [review(title=..., text=..., images=..., helpful_vote=..., verified_purchase=...)]
    table = "user_id,parent_asin,rating,timestamp,history\nU,P,5.0,1600000000000,A B C\n"
    for file in (write(tmp_path / "r.jsonl", json_lines(*ratings)), write(tmp_path / "r.csv", table)):
        frame = read(file)
        assert frame.select("text", "helpful_votes", "verified", "num_images").row(0) == (None, None, None, None)
        assert frame["time_ms"].to_list() == [NOON_MS]


def test_beauty_csv_with_its_trailing_comma_and_last_line(tmp_path):
    """The Beauty ratings' empty fifth column or junk last line would be an error, or be dropped in silence."""
    text = "UserId,ProductId,Rating,Timestamp,\r\nA,1,5,1369699200,\r\nB,130414089X,3,1355443200,Delete\r\nDelete"
    census = Census()
    frame = read(write(tmp_path / "r.csv.gz", gzip.compress(text.encode())), census=census)
    assert frame["product_id"].to_list() == ["1", "130414089X"]
    assert frame["source_line"].to_list() == [2, 3]
    assert census.examples == {MALFORMED: [Example(str(tmp_path / "r.csv.gz"), 4, "Delete")]}
    assert "Amazon ratings, time in seconds" in census.table()


def test_movielens_inter_has_no_quoting(tmp_path):
    """The typed, tab-separated header would not be known, half stars be refused, or a quote mark swallow rows."""
    text = 'user_id:token\titem_id:token\trating:float\ttimestamp:float\n"1\t9\t0.5\t881250949\n2\t9\t3.5\t881250949\n'
    frame = read(write(tmp_path / "x.inter", text))
    assert frame["user_id"].to_list() == ['"1', "2"]
    assert frame["rating"].to_list() == [0.5, 3.5]
    assert frame["time_ms"].to_list() == [881250949000] * 2


def test_csv_with_quoted_newlines_and_dates(tmp_path):
    """Line numbers would drift after a text of several lines, or a date be read as something else."""
    header = "rating,title,text,parent_asin,timestamp,verified_purchase,helpful_vote,images,user_id\n"
    rows = (
        '5.0,Fine,"two\nlines, ""quoted""\n\nand four",P1,2020-09-13 12:26:40.5,True,2,"[{\'a\': 1}, {\'b\': 2}]",U1\n'
        "4.0,Fine,short,P1,2020-09-13T12:26:40Z,False,0,[],U2\n"
        '9.0,Fine,"bad\nrating",P1,2020-09-13,,0,,U3\n'
        "3.0,Fine,short,P1,2020-09-13,,0,,U4\n"
    )
    for block_bytes in (5, 60, 1 << 20):
        census = Census()
        frame = read(write(tmp_path / "r.csv", header + rows), census=census, block_bytes=block_bytes)
        assert frame["text"][0] == 'Fine\ntwo\nlines, "quoted"\n\nand four'
        assert frame["source_line"].to_list() == [2, 6, 9]
        assert frame["time_ms"].to_list() == [NOON_MS + 500, NOON_MS, NOON_MS - (12 * 3600 + 26 * 60 + 40) * 1000]
        assert frame["verified"].to_list() == [True, False, None]
        assert frame["num_images"].to_list() == [2, 0, 0]
        assert bad_lines(census) == {BAD_RATING: [7]}
        assert census.files[0]["time"] == "dates"


def test_columns_by_name_and_by_number(tmp_path):
    """A user's own file would need converting, or its first row be lost as a header."""
    named = write(tmp_path / "a.csv", "\ufeffwho,what,stars,when,words\nU,P,4,1600000000,good\n")
    columns = {"user_id": "who", "product_id": "what", "rating": "stars", "time": "when"}
    frame = read(named, columns=columns | {"text": "words"})
    assert frame.select("user_id", "product_id", "time_ms", "text").row(0) == ("U", "P", NOON_MS, "good")
    bare = write(tmp_path / "b.csv", "P,U,4.0,1600000000\nQ,U,3.0,1600000000\n")
    frame = read(bare, columns={"product_id": "1", "user_id": "2", "rating": "3", "time": "4"})
    assert frame["product_id"].to_list() == ["P", "Q"]
    assert frame["source_line"].to_list() == [1, 2]
    lines = write(tmp_path / "c.jsonl", json_lines({"who": 7, "what": "P", "stars": 4, "when": "2020-09-13"}))
    assert read(lines, columns=columns)["user_id"].to_list() == ["7"]


def test_several_files_are_numbered(tmp_path):
    """A row could not be traced to its file, or files of two formats not be read at once."""
    first = write(tmp_path / "a.jsonl", json_lines(review()))
    second = write(tmp_path / "b.csv", "userId,movieId,rating,timestamp\n1,2,3.0,881250949\n3,4,5.0,881250949\n")
    frame = read(first, second)
    assert frame["source_file"].to_list() == [0, 1, 1]
    assert frame["source_line"].to_list() == [1, 2, 3]


def test_text_is_left_out_on_request(tmp_path):
    """Callers that use no text would pay for it, or lose rows by leaving it out."""
    file = write(tmp_path / "r.jsonl", json_lines(review(), "broken\n", review(text=5)))
    with_text, without = read(file), read(file, with_text=False)
    assert without["text"].null_count() == 2
    assert without.drop("text").equals(with_text.drop("text"))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_byte_order_mark_blank_lines_and_no_last_newline(tmp_path, ending):
    """Harmless oddities of text files would count as bad rows or shift the line numbers."""
    lines = ["", json.dumps(review(user_id="A")), "  ", "", json.dumps(review(user_id="B"))]
    assert read(write(tmp_path / "r.jsonl", "\ufeff" + ending.join(lines)))["source_line"].to_list() == [2, 5]
    lines = ["", "user_id,parent_asin,rating,timestamp", "A,P,5,1600000000", "", "B,P,5,1600000000"]
    assert read(write(tmp_path / "r.csv", "\ufeff" + ending.join(lines)))["source_line"].to_list() == [3, 5]


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
ODD_REVIEWS = [  # values whose type alone sends a block the slow way
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
    """A review newer than its file would be believed; or a copied file's old time could not be overruled."""
    file = write(tmp_path / "r.jsonl", json_lines(review(), review(timestamp=NOON_MS + 2 * 86_400_000)))
    os.utime(file, (NOON_MS / 1000, NOON_MS / 1000))
    census = Census()
    assert read(file, census=census)["source_line"].to_list() == [1]
    assert bad_lines(census) == {TOO_NEW: [2]}
    with pytest.raises(UserError, match=r"modification time, unless until= of prepare_data.py gives it"):
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
    """A row would be lost, counted twice or numbered wrongly where a block ends or a bad line stands."""
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
    """A quoted newline at the end of a block would tear a row, or its line number would drift."""
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


NUM_ROWS = 60


@settings(max_examples=25, phases=(Phase.generate,))
@given(data=st.data())
def test_reviews_are_read_as_written(data, tmp_path_factory):
    """An id, a rating, a time or a count would be another one in one format than in another, or in two files than in one."""
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))

    def chosen(values):
        """NUM_ROWS of a few values."""
        pool = data.draw(st.lists(values, min_size=1, max_size=8))
        return [pool[place] for place in generator.integers(0, len(pool), NUM_ROWS)]

    ids = data.draw(st.sampled_from([TEXTS | DIGITS, st.integers(0, 2**62)]))
    frame = pl.DataFrame(
        {
            "parent_asin": chosen(ids),
            "user_id": chosen(ids),
            "rating": generator.integers(1, 11, NUM_ROWS) / 2,
            "timestamp": times_ms(generator, NUM_ROWS),
            "title": chosen(TEXTS),
            "text": chosen(TEXTS),
            "helpful_vote": chosen(st.integers(0, 2**31 - 1)),
            "verified_purchase": generator.integers(0, 2, NUM_ROWS) == 1,
        }
    )
    folder, census = tmp_path_factory.mktemp("reviews"), Census()
    cuts = pieces(data, NUM_ROWS)
    files = [write_one(data, in_a_unit(data, frame[a:b], "timestamp"), folder / str(a)) for a, b in cuts]
    result = read(*files, census=census, block_bytes=data.draw(st.sampled_from([300, records.BLOCK_BYTES])))
    assert (census.rows_read, census.rows_kept) == (NUM_ROWS, NUM_ROWS)
    assert result.select("product_id", "user_id", "rating", "time_ms", "helpful_votes", "verified").rows() == [
        (str(product), str(user), *row)
        for product, user, *row in frame.select(
            "parent_asin", "user_id", "rating", "timestamp", "helpful_vote", "verified_purchase"
        ).iter_rows()
    ]
    assert result["text"].to_list() == [f"{title}\n{text}" for title, text in frame.select("title", "text").iter_rows()]
    assert result["source_file"].to_list() == [number for number, (a, b) in enumerate(cuts) for _ in range(a, b)]


# ------------------------------------------------------------------------------------------------------- the census


def test_census_counts_what_later_stages_drop():
    """Duplicates would vanish from the sum, or stop the run as if the file were damaged."""
    census = Census()
    census.read(10)
    census.drop(BAD_RATING, 1, [Example("f", 3, "rating=9")])
    census.drop("duplicate", 6, (Example("f", line, "again") for line in range(6)))
    census.drop("duplicate", 1, [Example("f", 9, "again")])
    assert (census.rows_read, census.rows_kept, census.dropped) == (10, 2, {BAD_RATING: 1, "duplicate": 7})
    assert [example.line for example in census.examples["duplicate"]] == [0, 1, 2, 3, 4]
    assert json.loads(json.dumps(census.to_dict()))["dropped"][BAD_RATING] == {
        "count": 1,
        "first": [{"file": "f", "line": 3, "excerpt": "rating=9"}],
    }
    census.check(0.1)
    with pytest.raises(UserError, match=r"1 of 10 rows are bad \(10.00%, allowed are 9.00%\)[^$]*f:3: rating=9"):
        census.check(0.09)
    with pytest.raises(AssertionError):
        census.drop("duplicate", 3)


def test_a_file_with_nothing_good_is_refused():
    """A run would go on with not one row where every bad row is allowed."""
    census = Census()
    census.read(2)
    census.drop(MALFORMED, 2)
    with pytest.raises(UserError, match="2 of 2 rows are bad"):
        census.check(1.0)


# ------------------------------------------------------------------------------------------------------- bad files


def test_a_truncated_gzip_names_file_and_offset(tmp_path):
    """A half-downloaded file would pass as a short one, or raise a traceback."""
    noise = random.Random(0)
    rows = [review(user_id=f"{noise.random()}") for _ in range(20_000)]
    packed = gzip.compress(json_lines(*rows))
    file = write(tmp_path / "r.jsonl.gz", packed[: len(packed) // 2])
    frames = []
    with pytest.raises(
        UserError, match=rf"{file} ends early near byte {len(packed) // 2:,}, after ([\d,]+) decomp"
    ) as error:
        frames.extend(read_reviews([file], Census(), block_bytes=1_000_000))
    offset = int(str(error.value).split("after ")[1].split()[0].replace(",", ""))
    assert 0.9 < offset / (len(json_lines(*rows)) / 2) < 1.1
    assert len(frames) > 1  # what came before the damage was read


def test_a_damaged_gzip_names_file_and_offset(tmp_path):
    """A flipped byte would pass, or raise a traceback."""
    packed = bytearray(gzip.compress(json_lines(*[review(user_id=f"U{n}") for n in range(20_000)])))
    packed[-6] ^= 1  # the checksum
    with pytest.raises(UserError, match=r"is damaged \(CRC check failed.*near byte [\d,]+, after [\d,]+ decompressed"):
        read(write(tmp_path / "r.gz", bytes(packed)))
    packed[len(packed) // 2] ^= 255
    with pytest.raises(UserError, match=r"r\.gz is damaged \("):
        read(write(tmp_path / "r.gz", bytes(packed)))


def test_a_damaged_parquet_is_refused(tmp_path):
    """A Parquet file without its end, or with text that is no UTF-8, would raise a traceback."""
    pl.DataFrame([review(user_id="Gustav")] * 100).write_parquet(tmp_path / "r.parquet", compression="uncompressed")
    content = (tmp_path / "r.parquet").read_bytes()
    for damaged in (content[:-100], content.replace(b"Gustav", b"Gu\xfftav")):
        with pytest.raises(UserError, match=r"damaged\.parquet is not a valid Parquet file"):
            read(write(tmp_path / "damaged.parquet", damaged))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"UserId,ProductId,Rating,Timestamp,\n", "has no valid row"),
        (b"[{}]", "is one JSON list: write one object per line, as `jq -c '.\\[\\]'` does"),
        (b'[\n {"a": 1},\n {"a": 2}\n]\n', "is one JSON list"),
        (
            b'["a", "b"]\n\n{"a": 1, "b": 2}\n',
            r"the first line of .* is a JSON list, '\[\"a\", \"b\"\]', .* objects: remove it",
        ),
        (
            b"[1, 2]\n[3, 4]\n",
            r"each line of .* is a JSON list, such as '\[1, 2\]': .* `jq -c '\{id: \.\[0\], x: \.\[1\]\}'`",
        ),
        (b'[{"a": 1}, {"a": 2}]\n[{"a": 3}]\n', r"each line of .* as `jq -c '\.\[\]'` does"),
        (b"[1, 2]\nand so on\n", "is a JSON list, .* and the lines below it are not: write one JSON object per line"),
        (b"[who],[what]\n1,2\n", r"has no known format of reviews \(its columns are \[who\], \[what\]\)"),
        (b"{\n  'rating': 5\n}", r"begins with '\{\\n .*', which is not a JSON object"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"\xff\xfeU\x00", "is text in UTF-16"),
        (b"\x28\xb5\x2f\xfdrest", "is compressed with zstd"),
        (b"\n\x16\xcb", "is not UTF-8 text"),
        (b"who,what\n1,2\n", r"has no known format of reviews \(its columns are who, what\): name with columns"),
        (json_lines({"a": 1, "b": 2}), r"has no known format of reviews \(its columns are a, b\)"),
        (json_lines({"parent_asin": "P", "title": "T", "categories": []}), "contains product metadata, not reviews"),
        (json_lines(review(timestamp="soon")), r"no time in its column 'timestamp', as in 'soon'"),
        (json_lines(review(timestamp=None)), "no time in its column 'timestamp': it must"),
        (b"user_id,parent_asin,rating,rating,timestamp\na,b,1,2,1600000000\n", "two columns 'rating'"),
    ],
)
def test_files_that_are_something_else(tmp_path, content, message):
    """A file of another kind would be guessed at, or fail without saying what was seen."""
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "file", content))


def test_all_files_are_recognised_before_the_first_is_read(tmp_path):
    """A wrong second file would stop the run only after the first was read to its end."""
    files = [write(tmp_path / "a.jsonl", json_lines(review())), write(tmp_path / "b.txt", "hello")]
    with pytest.raises(UserError, match=r"b\.txt has no known format"):
        read_reviews(files, Census())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user_id": "who", "product_id": "what", "rating": "stars"}, "does not name the column of the time: add time="),
        ({"user": "who"}, "columns maps 'user', which is not a field of a review; did you mean 'user_id'"),
        (
            {"user_id": "who", "product_id": "what", "rating": "stars", "time": "then"},
            "has no column 'then', which columns names: its columns are who, what, stars, when",
        ),
    ],
)
def test_wrong_columns(tmp_path, columns, message):
    """A mistyped mapping would end in a traceback or in a table of nulls."""
    file = write(tmp_path / "a.csv", "who,what,stars,when\nU,P,4,1600000000\n")
    with pytest.raises(UserError, match=message):
        read(file, columns=columns)


# ------------------------------------------------------------------------------------------------------- metadata


def products(file, **options):
    census = Census()
    frame = pl.concat(read_products([file], census, **options))
    assert frame.schema == pl.Schema(PRODUCT_SCHEMA)
    assert census.rows_kept == frame.height
    assert census.rows_read == census.rows_kept + sum(census.dropped.values())
    return frame, census


def test_2023_metadata(tmp_path):
    """A price would be lost or invented, or a product go without its category."""
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
    assert bad_lines(census) == {NO_PRODUCT: [15], MALFORMED: [17]}


def test_metadata_as_parquet(tmp_path):
    """The Parquet release, where prices are text, would be refused."""
    rows = [{"parent_asin": "P", "title": "T", "categories": ["A", "B"], "main_category": None, "price": "None"}]
    pl.DataFrame(rows, schema_overrides={"main_category": pl.String}).write_parquet(tmp_path / "m.parquet")
    frame, _ = products(tmp_path / "m.parquet")
    assert frame.row(0) == ("P", "T", None, "B", None)


def test_2018_metadata_whose_types_vary(tmp_path):
    """A field that is a list in one row and text in the next would cost the block."""
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


# ------------------------------------------------------------------------------------------------------- sources


def test_sources_are_files_and_globs(tmp_path):
    """A file would be left out, read twice, or come in an order that changes from run to run."""
    for name in ("b.jsonl", "a.jsonl", "c.csv", "odd[1].csv"):
        write(tmp_path / name, name)
    paths = expand_sources([str(tmp_path / "c.csv"), f"{tmp_path}/*.jsonl", f"{tmp_path}/a*", tmp_path / "odd[1].csv"], "")
    assert [path.name for path in paths] == ["c.csv", "a.jsonl", "b.jsonl", "odd[1].csv"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "no reviews are given"),
        (["https://nowhere.org/a.csv"], r"https://nowhere\.org/a\.csv is a URL, .* download it, and give the file"),
        (["nowhere.jsonl"], "the file nowhere.jsonl does not exist"),
        (["nowhere*.jsonl"], r"no file matches 'nowhere\*.jsonl'"),
        (["."], r"\. is a folder: name its files"),
    ],
)
def test_wrong_sources(tmp_path, monkeypatch, sources, message):
    """A mistyped path would end in a traceback or an empty table."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        expand_sources(sources, tmp_path)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one download needs."""

    content = json_lines(review())

    def do_HEAD(self):
        known = self.path == "/datasets/McAuley-Lab/Amazon-Reviews-2023/resolve/main/raw/review_categories/All_Beauty.jsonl"
        self.send_response(200 if known else 404)
        if known:
            self.send_header("ETag", '"1234"')
            self.send_header("Content-Length", str(len(self.content)))
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_):
        pass


HUB_SCRIPT = """
import sys
from ensemble.data.reviews import expand_sources
from ensemble.errors import UserError
for source in sys.argv[2:]:
    try:
        print(*expand_sources([source], sys.argv[1]))
    except UserError as error:
        print("error:", error)
"""


def run_hub_script(cache, *sources, **environment):
    command = [sys.executable, "-c", HUB_SCRIPT, str(cache), *sources]
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=clean | environment, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hub_source(tmp_path):
    """A category would not be found on the hub, or a mistyped one end in a traceback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        path, unknown = run_hub_script(
            tmp_path, "hub:All_Beauty", "hub:All_Booty", HF_ENDPOINT=address, HF_HOME=str(tmp_path)
        )
        run_hub_script(tmp_path / "new", "hub:All_Booty", HF_ENDPOINT=address, HF_HOME=str(tmp_path))
        assert not (tmp_path / "new").exists()
    finally:
        server.shutdown()
        server.server_close()
    assert read(Path(path)).height == 1
    assert unknown.startswith("error: there is no category 'All_Booty'")


def test_hub_source_without_a_network(tmp_path):
    """A machine without a network would show the hub's traceback and not what to do."""
    (line,) = run_hub_script(tmp_path, "hub:All_Beauty", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert line.startswith("error: hub:All_Beauty cannot be downloaded (")
    assert "download raw/review_categories/All_Beauty.jsonl of the data set" in line


# ------------------------------------------------------------------------------------------------------- real files


def real(name):
    if not (SHARED / name).exists():
        pytest.skip(f"the real file {name} is not in ../shared/data beside this checkout")
    return SHARED / name


@pytest.mark.parametrize(
    ("name", "rows", "format"),
    [
        ("amazon/Gift_Cards_5.json.gz", 2_972, "Amazon Reviews 2018"),
        ("amazon/AMAZON_FASHION_5.json.gz", 3_176, "Amazon Reviews 2018"),
        ("amazon/ratings_Beauty.csv.gz", 29_999, "Amazon ratings"),
        ("movielens/ml-100k.inter.gz", 100_000, "RecBole .inter"),
        ("amazon/All_Beauty_2023_joined_sample.csv.gz", 999, "Amazon Reviews 2023"),
    ],
)
def test_real_reviews(name, rows, format):
    """A real file would lose rows, or its times, ratings and texts be misread."""
    census = Census()
    frame = read(real(name), census=census)
    assert (frame.height, census.dropped, census.files[0]["format"]) == (rows, {}, format)
    assert frame["time_ms"].is_between(820_454_400_000, 1_700_000_000_000).all()
    assert set(frame["rating"].unique()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert frame["text"].null_count() == (0 if "Amazon Reviews" in format else rows)
    census_of_small_blocks = Census()
    assert read(real(name), census=census_of_small_blocks, block_bytes=100_000).equals(frame)
    assert census_of_small_blocks.to_dict() == census.to_dict()


def test_real_metadata():
    """The real 2018 metadata, whose types vary from row to row, would lose products or prices."""
    frame, census = products(real("amazon/meta_Gift_Cards.json.gz"), block_bytes=100_000)
    assert (frame.height, census.dropped) == (1_547, {})
    assert frame["price"].count() == 358  # 362 rows have one, of which 4 hold the shop page's markup
    assert frame["category"].null_count() == 0
    assert not frame["category"].str.contains("<").any()
