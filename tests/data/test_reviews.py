"""The readers of reviews: every format to one table, with the values that were written."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from raw_reviews import NOON_MS, bad_lines, json_lines, read, real, review, write
from written_tables import DIGITS, TEXTS, in_a_unit, pieces, times_ms, write_one

from ensemble.data import records
from ensemble.data.reviews import BAD_RATING, MALFORMED, Census, Example


def test_2023_json_lines(tmp_path):
    """A field of the 2023 release would land in the wrong column, unit or type."""
    rows = [review(), review(title="", text="", images=[], helpful_vote=2**40, verified_purchase=False, rating=1)]
    frame = read(write(tmp_path / "r.jsonl", json_lines(*rows)))
    first = {
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
    }
    changes = {"rating": 1.0, "text": "\n", "helpful_votes": 2**31 - 1, "verified": False, "num_images": 0, "source_line": 2}
    assert frame.to_dicts() == [first, first | changes]


def test_gzip_and_parquet_give_the_same_rows(tmp_path):
    """The same reviews would depend on the kind of file, or the kind would be guessed from the name."""
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


def test_2014_json_lines(tmp_path):
    """The helpful votes of the release of 2014, the first number of a list, would be read as zero."""
    row = {"overall": 4.0, "unixReviewTime": NOON_MS // 1000, "reviewerID": "U", "asin": "0001", "reviewText": "Text"}
    votes = [[2, 3], [0, 0], [1234, 2000], [5]]
    census = Census()
    frame = read(write(tmp_path / "r.json", json_lines(*(row | {"helpful": each} for each in votes))), census=census)
    assert frame.select("helpful_votes", "verified", "num_images").rows() == [
        (2, None, None), (0, None, None), (1234, None, None), (0, None, None)
    ]  # fmt: skip
    assert (census.files[0]["format"], sum(census.notes.values())) == ("Amazon Reviews 2014", 1)
    table = 'reviewerID,asin,helpful,reviewText,overall,unixReviewTime\nU,0001,"[2, 3]",Text,4.0,1600000000\n'
    assert read(write(tmp_path / "r.csv", table)).drop("source_line").equals(frame[:1].drop("source_line"))
    pl.DataFrame([row | {"helpful": each} for each in (*votes[:3], None)]).write_parquet(tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet")["helpful_votes"].to_list() == [2, 0, 1234, 0]


def test_images_as_an_object_of_lists(tmp_path):
    """An object of lists, as libraries write images, would count as one image even if the lists are empty."""
    images = [{"large": ["a", "b"], "thumb": ["c", "d"]}, {"large": [], "thumb": []}, {}, {"large": "a"}, []]
    frame = read(write(tmp_path / "r.jsonl", json_lines(*(review(images=each) for each in images))))
    assert frame["num_images"].to_list() == [2, 0, 0, 1, 0]


def test_columns_named_like_the_fields(tmp_path):
    """A file whose columns have the names of the setting `columns` would need this setting."""
    file = write(tmp_path / "a.csv", "user_id,product_id,time,rating,title,verified\nU,P,1600000000,4,Good,yes\n")
    assert read(file).select("product_id", "user_id", "time_ms", "rating", "text", "verified").row(0) == (
        "P", "U", NOON_MS, 4.0, "Good", True
    )  # fmt: skip


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


def test_quotes_after_the_head_of_a_tab_separated_file_are_quotes(tmp_path, monkeypatch):
    """Texts that pandas quotes for their own quotes would keep all of these, if they come after the head of the file."""
    monkeypatch.setattr(records, "HEAD_BYTES", 100)
    plain, quoted = "9\tgood\t3\n" * 50, '9\t"it is ""good"""\t3\n' * 3
    file = records.look(write(tmp_path / "a.tsv", "item\ttext\tstars\n" + plain + quoted))
    frames = [frame for frame, _ in records.read_blocks(file, {"text": "text"}, {}, 1 << 20)]
    assert pl.concat(frames)["text"].to_list()[50:] == ['it is "good"'] * 3
    for length in range(20, 40):  # the head ends within a text of several lines
        file = write(tmp_path / "lines.tsv", "item\ttext\tstars\n" + '9\t"two\nlines"\t3\n' * 9)
        monkeypatch.setattr(records, "HEAD_BYTES", 2 * length)
        looked = records.look(file)
        frames = [frame for frame, _ in records.read_blocks(looked, {"text": "text"}, {}, 1 << 20)]
        assert pl.concat(frames)["text"].to_list() == ["two\nlines"] * 9, length


def test_csv_with_quoted_newlines_and_dates(tmp_path):
    """Line numbers would be wrong after a text of several lines, or a date would be read as something else."""
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
    """A file of the user's own would have to be converted, or its first row would be lost as a header."""
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
    """A row could not be traced to its file, or files of two formats could not be read together."""
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


NUM_ROWS = 60


@settings(max_examples=25, phases=(Phase.generate,))
@given(data=st.data())
def test_reviews_are_read_as_written(data, tmp_path_factory):
    """An id, a rating, a time or a count would depend on the format, or on how the rows are divided into files."""
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


# ------------------------------------------------------------------------------------------------------- real files


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
