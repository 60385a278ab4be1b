"""Values of review files: ids exactly as written, in every format; columns of other kinds are refused; decimal commas."""

import datetime
import json
import os
import socket
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_reviews import NOON_MS, read

from ensemble.data import raw_files, reviews
from ensemble.data.census import AFTER_UNTIL, BAD_ID, NO_USER, OTHER_UNIT, UNREADABLE, Census
from ensemble.errors import UserError

COLUMNS = ("parent_asin", "user_id", "rating", "timestamp")


def write_json(file: Path, ids: list[Any], **more: Any) -> Path:
    rows = [{"parent_asin": "P", "user_id": value, "rating": 5, "timestamp": NOON_MS} | more for value in ids]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_parquet(file: Path, ids: Any, **more: Any) -> Path:
    values = {"parent_asin": "P", "rating": 5, "timestamp": NOON_MS} | more
    pl.DataFrame({"user_id": ids}).with_columns(pl.lit(value).alias(name) for name, value in values.items()).write_parquet(
        file
    )
    return file


def write_delimited(file: Path, ids: list[str], delimiter: str) -> Path:
    quote = '"' if delimiter == "," else ""
    lines = [delimiter.join(["P", quote + value.replace('"', '""') + quote, "5", str(NOON_MS)]) for value in ids]
    with open(file, "w", encoding="utf-8", newline="") as stream:  # "\r" stays as it is
        stream.write("\n".join([delimiter.join(COLUMNS), *lines, ""]))
    return file


LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
IDS = st.lists(
    st.one_of(
        st.text(LETTERS, min_size=1, max_size=8).filter(str.strip),
        st.from_regex(r"[+-]?0*[0-9]{1,25}(\.0*)?", fullmatch=True),
        st.sampled_from(["None", "null", "nan", " 7", "7 ", "1e3", "true", "[deleted]", "{}", "9007199254740993"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=IDS)
def test_ids_of_text_come_out_as_they_went_in(tmp_path: Path, ids: list[str]) -> None:
    """`007` and `7`, or two long numbers, would become one user, or another format would give other users."""
    files = [write_json(tmp_path / "a.jsonl", ids), write_parquet(tmp_path / "a.parquet", ids)]
    files.append(write_delimited(tmp_path / "a.csv", ids, ","))
    if not any(set('\t\r\n"') & set(value) for value in ids):
        files.append(write_delimited(tmp_path / "a.tsv", ids, "\t"))
    for file in files:
        for block_bytes in (200, 1 << 20):
            assert read(file, block_bytes=block_bytes)["user_id"].to_list() == ids


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_whole_numbers_are_ids_in_their_decimal_form(tmp_path: Path, ids: list[int]) -> None:
    """From 2^53 on, users would collide."""
    for file in (write_json(tmp_path / "a.jsonl", ids), write_parquet(tmp_path / "a.parquet", ids)):
        assert read(file)["user_id"].to_list() == [str(value) for value in ids]
    longer = [value * 10**15 for value in ids]
    assert read(write_json(tmp_path / "b.jsonl", longer))["user_id"].to_list() == [str(value) for value in longer]


def test_only_an_empty_cell_is_a_missing_id(tmp_path: Path) -> None:
    """A user named None or of blanks only would be lost, or an empty cell would count as a user."""
    for file in (
        write_json(tmp_path / "a.jsonl", [None, "", " \t", "None", 4.0]),
        write_parquet(tmp_path / "a.parquet", [None, "", " \t", "None", "4"]),
        write_delimited(tmp_path / "a.csv", ["", "", " \t", "None", "4"], ","),
    ):
        census = Census()
        assert read(file, census=census)["user_id"].to_list() == [" \t", "None", "4"]
        assert census.dropped == {NO_USER: 2}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pl.Series([4.0, None, float("nan"), -7.0]), ["4", "-7"]),
        (pl.Series([4.0, 2.0], dtype=pl.Float32), ["4", "2"]),
        (pl.Series([Decimal("4.00"), Decimal("12345678901234567890.00")]), ["4", "12345678901234567890"]),
        (pl.Series(["b", "a"], dtype=pl.Categorical), ["b", "a"]),
        (pl.Series([2**64 - 1], dtype=pl.UInt64), [str(2**64 - 1)]),
    ],
)
def test_ids_of_other_types_of_parquet(tmp_path: Path, ids: pl.Series, expected: list[str]) -> None:
    """Users that pandas wrote as 4.0, since some were missing, would match those of no other file."""
    assert read(write_parquet(tmp_path / "a.parquet", ids))["user_id"].to_list() == expected


def table(file: Path, header: str, *rows: str) -> Path:
    file.write_text("\n".join([header, *rows, ""]))
    return file


def test_truth_values_and_votes(tmp_path: Path) -> None:
    """A verified purchase that is written `yes` would count as not verified, and unreadable values would cause no note."""
    header = "parent_asin,user_id,rating,timestamp,helpful_vote,verified_purchase"
    words = ["yes", "No", "T", "f", " Y ", "n", "1", "0", "True", "FALSE", "", "maybe", "ja"]
    votes = ['"1,203"', "many", *["3"] * 10, ""]
    rows = [f"P,U,5,{NOON_MS},{vote},{word}" for word, vote in zip(words, votes, strict=True)]
    file, census = table(tmp_path / "a.csv", header, *rows), Census()
    rows = read(file, census=census)
    assert rows["verified"].to_list() == [True, False] * 5 + [None] * 3
    assert rows["helpful_votes"].to_list() == [1203, 0, *[3] * 10, 0]
    kinds = {name: UNREADABLE.format(name) for name in ("verified_purchase", "helpful_vote")}
    assert census.notes == {kinds["verified_purchase"]: 2, kinds["helpful_vote"]: 1}
    assert census.dropped == {}
    assert census.rows_kept == len(rows)
    assert census.examples[kinds["helpful_vote"]] == [(str(file), 3, "helpful_vote=many")]
    assert "a.csv:13: verified_purchase=maybe" in census.table()
    assert census.to_dict()["notes"][kinds["verified_purchase"]]["count"] == 2
    json_file = write_json(tmp_path / "a.jsonl", ["u"], verified_purchase="yes", helpful_vote="1,203")
    assert read(json_file).select("verified", "helpful_votes").row(0) == (True, 1203)


@pytest.mark.parametrize("votes", ["1.234", "12,5", "0.5", "inf"])
def test_votes_that_are_no_whole_number_are_unreadable(votes: str, tmp_path: Path) -> None:
    """1.234 votes of a German export would be 1, 12,5 would be 125, and inf would be 2,147,483,647."""
    file, census = write_json(tmp_path / "a.jsonl", ["u"], helpful_vote=votes), Census()
    assert read(file, census=census)["helpful_votes"].to_list() == [0]
    assert census.notes == {UNREADABLE.format("helpful_vote"): 1}


def test_a_number_of_images_is_their_number(tmp_path: Path) -> None:
    """Each review would have one image, even if its number of images is 0."""
    rows = [f"P,U{position},5,{NOON_MS},{number}" for position, number in enumerate(("0", "3", "4.0", " 5", ""))]
    file = table(tmp_path / "a.csv", "parent_asin,user_id,rating,timestamp,images", *rows)
    assert sorted(read(file)["num_images"].to_list()) == [0, 0, 3, 4, 5]


def test_lists_in_the_notation_of_numpy_have_all_their_items(tmp_path: Path) -> None:
    """Lists that pandas wrote to CSV would be one item, and empty ones too."""
    lists = [
        "[{'u': 'a b'}\n {'u': 'c'}]",
        "{'large': array([], dtype=object)}",
        "{'large': array(['a', 'b'], dtype=object)}",
    ]
    frame = pl.DataFrame({"images": [*lists, "['a' 'b' 'c']", "nan"]}).with_row_index("number")
    rows = frame.select(pl.lit("P").alias("parent_asin"), user_id="number", rating=5, timestamp=NOON_MS, images="images")
    rows.write_csv(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv").sort("user_id")["num_images"].to_list() == [2, 0, 2, 3, 0]


def test_texts_of_a_categorical_type_are_texts(tmp_path: Path) -> None:
    """A frame of pandas with categories would end in a traceback."""
    columns = {
        "parent_asin": ["P"],
        "user_id": ["U"],
        "rating": ["5"],
        "timestamp": [str(NOON_MS)],
        "helpful_vote": ["1,203"],
    }
    pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Categorical)).write_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").select("product_id", "rating", "helpful_votes").row(0) == ("P", 5.0, 1203)


def test_times_as_32_bit_floats_are_refused(tmp_path: Path) -> None:
    """The order of a user's reviews would be lost, since such times are rounded to two minutes."""
    frame = pl.DataFrame({"parent_asin": ["P"], "user_id": ["U"], "rating": [5.0], "timestamp": [1_602_169_779.0]})
    frame.with_columns(pl.col("timestamp").cast(pl.Float32)).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has times as 32-bit floats, which are rounded to two minutes"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("write", [write_json, write_parquet])
def test_negative_votes_are_unreadable(write: Any, tmp_path: Path) -> None:
    """A review would take votes away from the others of its product."""
    file, census = write(tmp_path / ("a.jsonl" if write is write_json else "a.parquet"), ["u"], helpful_vote=-3), Census()
    assert read(file, census=census)["helpful_votes"].to_list() == [0]
    assert census.notes == {UNREADABLE.format("helpful_vote"): 1}


@pytest.mark.parametrize(("text", "is_rounded"), [("1.60999E+12", True), ("1.61E+09", True), ("1.609990000000e+12", False)])
def test_times_that_lost_digits_are_refused(text: str, is_rounded: bool, tmp_path: Path) -> None:
    """All reviews of some hours or months would have the same time, since a spreadsheet stored only the digits it shows."""
    file = table(tmp_path / "a.csv", ",".join(COLUMNS), f"P,U,5,{text}")
    if not is_rounded:
        assert read(file)["time_ms"].to_list() == [1609990000000]
        return
    with pytest.raises(UserError, match=r"column 'timestamp', lost digits, as in '1\.6.*': export them as whole numbers"):
        read(file)


@pytest.mark.parametrize(("unit", "factor"), [("microseconds", 1000), ("nanoseconds", 1_000_000)])
def test_finer_times_are_named(unit: str, factor: int, tmp_path: Path) -> None:
    """Every review would be dated in the far future, and the advice would be to give `until`."""
    for file in (
        write_json(tmp_path / "a.jsonl", ["u", "v"], timestamp=NOON_MS * factor),
        write_parquet(tmp_path / "a.parquet", ["u", "v"], timestamp=NOON_MS * factor),
    ):
        with pytest.raises(UserError, match=f"column 'timestamp', are {unit} since 1970, .*: divide them by {factor:,}"):
            read(file)


@pytest.mark.parametrize("time", ["20201219", "202012191904", "20201219190409", 20201219])
def test_calendar_dates_as_numbers_are_named(time: str | int, tmp_path: Path) -> None:
    """Every review would be dated in 1970 or in the far future, and the advice would be to correct the rows."""
    file = write_json(tmp_path / "a.jsonl", ["u", "v"], timestamp=time)
    with pytest.raises(UserError, match=r"are calendar dates without separators, as in 20201219\d*: write 2020-12-19"):
        read(file)


@pytest.mark.parametrize(("most", "least"), [(1, 1000), (1000, 1), (1, 10**6), (1000, 10**6), (1000, 10**9)])
def test_times_of_two_units_in_a_file_are_named(most: int, least: int, tmp_path: Path) -> None:
    """Seconds read as milliseconds are dates in 1970, and milliseconds read as seconds are dates in the far future."""
    seconds = NOON_MS // 1000
    rows = [f"P,{number},5,{seconds * (least if number % 10 == 3 else most)}" for number in range(20)]
    census = Census()
    assert len(read(table(tmp_path / "a.csv", ",".join(COLUMNS), *rows), census=census)) == 18
    assert census.dropped == {OTHER_UNIT: 2}
    with pytest.raises(UserError, match="all times of a file must have one unit, seconds or milliseconds since 1970"):
        census.check(0.01)


def test_times_with_an_offset_are_read(tmp_path: Path) -> None:
    """Reviews would be hours off, or lost. PostgreSQL writes +06, and +05:30 only where the minutes are not 0."""
    times = [
        "2020-10-07T11:28:50+05:30",
        "2020-10-07 11:28:50.250 +0530",
        "2020-10-07T00:58:50-05:00",
        "2020-10-07T05:58:50Z",
        "2020-10-07 05:58:50 UTC",
        "2020-10-07 05:58:50+00",
        "2020-10-07 11:58:50.250+06",
        "2020-10-07T00:28-05:30",
    ]
    times_ms = read(table(tmp_path / "a.csv", ",".join(COLUMNS), *(f"P,U,5,{time}" for time in times)))["time_ms"]
    assert [time - 1_602_050_330_000 for time in times_ms] == [0, 250, 0, 0, 0, 0, 250, -50_000]


@pytest.mark.parametrize("time", [f"{NOON_MS}", f"{NOON_MS // 1000}", "2020-09-13 12:26:40"])
def test_blanks_after_the_commas_are_no_part_of_a_number(time: str, tmp_path: Path) -> None:
    """The file would be refused because it has no time, or all its rows because of their ratings."""
    (row,) = read(table(tmp_path / "a.csv", ", ".join(COLUMNS), f"P, U, 3.5, {time} ")).to_dicts()
    assert (row["rating"], row["time_ms"]) == (3.5, NOON_MS)


def test_one_column_for_two_fields_is_refused(tmp_path: Path) -> None:
    """Every product would have one user, of the same name."""
    file = table(tmp_path / "a.csv", "x,stars,when", f"P,5,{NOON_MS}")
    columns = {"product_id": "x", "user_id": "x", "rating": "stars", "time": "when"}
    with pytest.raises(UserError, match="columns names 'x' for both product_id and user_id"):
        read(file, columns=columns)


@pytest.mark.parametrize("number", [1.5, 2.0**53, 2.0**53 + 2, float("inf"), Decimal("1.5")])
def test_an_id_that_is_no_exact_whole_number_is_refused(tmp_path: Path, number: Any) -> None:
    """Two ids that differ after the point, or beyond 2^53, would be one."""
    file = write_parquet(tmp_path / "a.parquet", [type(number)(1), number])
    with pytest.raises(UserError, match=r"a\.parquet, row 2: the id .* in the column 'user_id' is a floating-point number"):
        read(file)


def test_json_floats_that_are_not_exact_are_bad_rows(tmp_path: Path) -> None:
    """Two users whose ids pandas wrote as floats, beyond 2^53, would be one."""
    lines = write_json(tmp_path / "a.jsonl", [4.0, 2.0**53, 1e20, 2**53 + 1, str(2**53), 2.0**53 - 1])
    census = Census()
    ids = read(lines, census=census)["user_id"].to_list()
    assert ids == ["4", "9007199254740993", "9007199254740992", "9007199254740991"]
    assert [example.line for example in census.examples[BAD_ID]] == [2, 3]


def test_json_ids_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    """An object or a truth value would become a user of that name, or a text that looks like one would be lost."""
    ids = ["{}", "[deleted]", "true", "1.5", {"a": 1}, ["x"], True, 1.5, "a\0b", "end"]
    census = Census()
    assert read(write_json(tmp_path / "a.jsonl", ids), census=census)["user_id"].to_list() == [*ids[:4], "end"]
    assert census.dropped == {BAD_ID: 5}
    assert [example.line for example in census.examples[BAD_ID]] == [5, 6, 7, 8, 9]
    for file in (
        write_parquet(tmp_path / "a.parquet", ["a\0b", "b"]),
        write_delimited(tmp_path / "a.csv", ["a\0b", "b"], ","),
    ):
        census = Census()
        assert read(file, census=census)["user_id"].to_list() == ["b"]
        assert census.dropped == {BAD_ID: 1}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"user_id": [True]}, "'user_id' of .* has the type bool, and the user_id must be text or numbers"),
        ({"user_id": [["a"]]}, "'user_id' of .* has the type large_list<.*>, and the user_id must be text or numbers"),
        ({"user_id": [{"a": 1}]}, "'user_id' of .* has the type struct<.*>"),
        ({"user_id": [b"a"]}, "'user_id' of .* has the type large_binary"),
        ({"user_id": [datetime.date(2020, 1, 1)]}, "'user_id' of .* has the type date32"),
        ({"rating": [True]}, "'rating' of .* has the type bool, and the rating must be numbers or text"),
        ({"rating": [[5]]}, "'rating' of .* has the type large_list"),
        ({"timestamp": [[NOON_MS]]}, "'timestamp' of .* has the type .*, and the time must be dates or numbers or text"),
        ({"timestamp": [datetime.time(12)]}, "'timestamp' of .* has the type time64"),
        ({"title": [["a"]]}, "'title' of .* has the type large_list"),
        ({"helpful_vote": [[[2]]]}, "'helpful_vote' of .* has the type .*, and the helpful_votes must be lists or numbers"),
    ],
)
def test_a_column_of_parquet_of_another_kind_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """A truth value would be read as one star and a list as a name, or there would be a traceback."""
    row = {"parent_asin": ["P"], "user_id": ["U"], "rating": [5], "timestamp": [NOON_MS]}
    pl.DataFrame(row | changes).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / "a.parquet")


def test_parquet_types_that_polars_lacks_are_read(tmp_path: Path) -> None:
    """Times with an offset, as pandas writes them, or decimals of 256 bits would end in a traceback."""
    columns = {
        "parent_asin": pa.array(["P"]),
        "user_id": pa.array(["U"]),
        "rating": pa.array([Decimal(4)], pa.decimal256(60, 2)),
        "timestamp": pa.array([NOON_MS], pa.timestamp("ms", "+05:30")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").select("rating", "time_ms").rows() == [(4.0, NOON_MS)]


def test_a_key_that_comes_late_is_read(tmp_path: Path) -> None:
    """Texts, votes and pictures would be dropped without a message if none of the first 1,000 reviews had any."""
    late = {"title": "Late", "helpful_vote": 3, "verified_purchase": True, "images": ["a", "b"], "für": "Late"}
    rows = [{"parent_asin": "P", "user_id": "U", "rating": 5, "timestamp": NOON_MS}] * 1200
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0] | late]))
    fields = ["text", "helpful_votes", "verified", "num_images"]
    assert read(file).select(fields).tail(2).rows() == [(None, None, None, None), ("Late", 3, True, 2)]
    own = {"product_id": "parent_asin", "user_id": "user_id", "rating": "rating", "time": "timestamp"}
    for key in ("title", "für"):  # in the file, the second is written as f\u00fcr
        assert read(file, columns=own | {"text": key})["text"].to_list()[-1] == "Late"
    with pytest.raises(UserError, match="has no column 'words', which the setting columns names"):
        read(file, columns=own | {"text": "words"})
    (product,) = reviews.read_products([write_products(tmp_path, [{"title": "T"}] * 1200 + [{"store": "S"}])], Census())
    assert product["store"].to_list()[-1] == "S"


# ---------------------------------------------------------------------------------------------------------------- prices


def write_products(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "meta.jsonl"
    base = {"title": "T", "categories": []}
    lines = [json.dumps(base | {"parent_asin": str(number)} | row) + "\n" for number, row in enumerate(rows)]
    file.write_text("".join(lines))
    return file


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        (["12,50", "1.234,56", "1.234", "7", "3,99 - 5,99", "€ 2,5"], [12.5, 1234.56, 1234.0, 7.0, 3.99, 2.5]),
        (["12.50", "1,234.56", "1,234", "7", "3.99 - 5.99", "$2.5"], [12.5, 1234.56, 1234.0, 7.0, 3.99, 2.5]),
        (["1,234", "12"], [1234.0, 12.0]),
        (["$.99", "₹1,23,456", "12.50 – 20.00", "₹1,23,456.50"], [0.99, 123456.0, 12.5, 123456.5]),
        (["€ ,99", "1.23.456", "12,50—20,00"], [0.99, 123456.0, 12.5]),
        ([*["1.50"] * 200, "12,50", "1.2.3"], [*[1.5] * 200, None, None]),
    ],
)
def test_prices_with_a_decimal_comma(tmp_path: Path, prices: list[str], expected: list[float | None]) -> None:
    """12,50 would be 1,250 dollars."""
    file = write_products(tmp_path, [{"price": price} for price in prices])
    for block_bytes in (100, 1 << 20):
        products = pl.concat(reviews.read_products([file], Census(), block_bytes=block_bytes))
        assert products["price"].to_list() == expected


def test_prices_of_two_kinds_are_refused(tmp_path: Path) -> None:
    """Half of the prices would be a hundred times too high."""
    file = write_products(tmp_path, [{"price": "12,50"}, {"price": "9.99"}])
    with pytest.raises(
        UserError, match=r"prices of .* have a decimal point, as in 9\.99 .* and a decimal comma, as in 12,50"
    ):
        reviews.read_products([file], Census()).__next__()


# ---------------------------------------------------------------------------------------------------------------- files


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever and ignore SIGTERM; a name of 300 letters would end in a traceback."""
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    for path, sentence in (
        (tmp_path / "pipe", "pipe is a pipe, and sources are read more than once: write its content to a file"),
        (tmp_path / "socket", "socket is a socket"),
        (Path("/dev/null"), "/dev/null is a device"),
        (tmp_path / ("x" * 300), "cannot be read.*File name too long"),
        (tmp_path / ("x" * 300 + "*"), "no file matches"),
        (Path("a\0b"), "cannot be read.*null"),
    ):
        with pytest.raises(UserError, match=sentence):
            raw_files.expand_sources([path], "")
    with pytest.raises(UserError, match="pipe is a pipe"):
        read(tmp_path / "pipe")


def test_the_pattern_for_a_folder_matches_its_files(tmp_path: Path) -> None:
    """A user who follows the advice for a folder with brackets or hidden files would read that no file matches."""
    for folder in ("sub", ".cache"):
        (tmp_path / "run[1]" / folder).mkdir(parents=True)
    file = write_json(tmp_path / "run[1]/sub/a.jsonl", ["A"])
    (tmp_path / "run[1]/.cache/a.json").touch()
    with pytest.raises(UserError) as error:
        raw_files.expand_sources([tmp_path / "run[1]"], "")
    pattern = str(error.value).split("'")[1]
    assert raw_files.expand_sources([pattern], "") == [file]


def test_a_file_given_twice_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All reviews of a file would count twice, or a file would be left out without a message."""
    first, other = write_json(tmp_path / "a.jsonl", ["A"]), write_json(tmp_path / "b.jsonl", ["B"])
    (tmp_path / "linked").symlink_to(first)
    os.link(first, tmp_path / "hard")
    (tmp_path / "copy").write_bytes(first.read_bytes())
    names = [first, other, first, tmp_path / "linked", tmp_path / "hard", tmp_path / "copy"]
    assert raw_files.expand_sources(names, "") == [first, other]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"warning: {name} is given twice, also as {first}: it is read once" for name in names[2:]]
    assert raw_files.expand_sources(names, "", with_copies=True) == [first, other, tmp_path / "copy"]


def test_equal_files_of_two_partitions_are_both_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark and Hive store the day only in the name of the folder: the rows of a day would be lost."""
    folders = ("day=1", "day=2", "day=2/copy")
    for folder in folders:
        (tmp_path / folder).mkdir()
        write_json(tmp_path / folder / "part.jsonl", ["A"])
    first, other, copy = (tmp_path / folder / "part.jsonl" for folder in folders)
    assert raw_files.expand_sources([first, other, copy], "") == [first, other]
    assert capsys.readouterr().err == f"warning: {copy} is given twice, also as {other}: it is read once\n"


@pytest.mark.parametrize("name", [lambda number: "A" * number, lambda number: "A" * 9000 + str(number)])
def test_only_files_that_may_be_equal_are_compared(name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work would grow with the square of the number of files: for thousands it takes minutes, before a row is read. All
    NetCDF files of a model on one grid have equal sizes, and begin with equal coordinates."""
    files = [write_json(tmp_path / f"{number}.jsonl", [name(number), "B"]) for number in range(9)]
    compared: list[Any] = []
    monkeypatch.setattr("filecmp.cmp", lambda *pair, **_: compared.append(pair))
    monkeypatch.setattr(Path, "samefile", lambda *pair: compared.append(pair))
    assert raw_files.expand_sources(files, "") == files
    assert not compared


@pytest.mark.parametrize(
    "text",
    ["parent_asin,user_id,rating,timestamp\rP,U,5,1600000000\r", "7::31::5::978300761\r" * 2, "a,b\r1,2\r3,4\r\n"],
)
def test_lines_that_end_in_returns_alone(tmp_path: Path, text: str) -> None:
    """The whole file would be one header."""
    (tmp_path / "old.csv").write_bytes(text.encode())
    with pytest.raises(
        UserError, match=r"the lines of .*old.csv end in carriage returns alone, as on old Macs: convert them"
    ):
        read(tmp_path / "old.csv")


def test_the_nearest_format_is_named(tmp_path: Path) -> None:
    """A user would not see which column a file lacks."""
    (tmp_path / "a.csv").write_text("user_id,parent_asin,rating,when\nU,P,5,1600000000\n")
    with pytest.raises(UserError, match="the nearest format, Amazon Reviews 2023, also needs timestamp"):
        read(tmp_path / "a.csv")


def test_until_is_no_advice_to_those_who_gave_it(tmp_path: Path) -> None:
    """Rows that the user asked to leave out would stop the run, with the advice to give `until`, which was given."""
    file, census = write_json(tmp_path / "a.jsonl", ["U"] * 4), Census()
    assert read(file, census=census, until_ms=NOON_MS - 1).is_empty()
    assert census.dropped == {AFTER_UNTIL: 4}
    census.check(0.01)
