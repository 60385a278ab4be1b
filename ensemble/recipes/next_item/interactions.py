"""Readers of raw interaction files, which give user, item and time of each event.

All formats of reviews.py are read: Amazon Reviews, MovieLens, `.inter`, and tables with named columns. Ratings are not used,
and may be missing. Lines of text are read too. Their format is detected from the content; its name is in parentheses:

    1::1193::5::978300760          user, item, rating, seconds: MovieLens' ratings.dat (ratings)
    196 242 3 881250949            the same with blanks or tabs: u.data (ratings)
    196 242 881250949              user, item, seconds (times)
    1 1193                         user, item; lines are in order of time (pairs)
    1 3 7 12 9                     a user and all items, oldest first (sequences)
    1 3 7 12 9<TAB>0 864000 60 0   the same, then the seconds since the item before, first 0 (gaps)

With format=auto, two groups of numbers separated by a tab are gaps or an error, never sequences.

Interactions are sorted stably by user and time, so that events at the same time stay in the order of the file. This order
determines the test item of two in five users of MovieLens 1M.

An id is any text without blanks, exactly as written; with `::`, blanks are part of the id. Times may be before 1970. An
invalid line of text stops the run with an error that names file and line. Invalid are a line without a user or with another
number of fields than the format has, a rating or time that is not a number, a time of 1e11 seconds or more (it is probably
in milliseconds), and a second line of a user in a format with one line per user. In formats of reviews.py, bad rows are
counted and left out. A user without items is ignored. An event that is twice in one file counts twice, except with
repeats=first. An event that is in two files with times since 1970 counts once, with the finer time.
"""

import codecs
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from ensemble.data import duplicates, records, reviews, values
from ensemble.data.census import Census
from ensemble.data.octets import Bytes, refuse_foreign
from ensemble.errors import UserError

SCHEMA = {"user": pl.String(), "item": pl.String(), "time": pl.Int64()}
"""time: milliseconds since 1970 or since the user's first item; 0 in formats without time, where only the order is known."""
TIMED = {"ratings", "times", "gaps"}
"""Text formats with times."""
DATED = {"ratings", "times", "reviews"}
"""Formats with times since 1970; their files can be read together."""
ONE_LINE_EACH = {"sequences", "gaps"}
"""Text formats with one line for each user."""
NUM_HEAD_LINES = 1000
"""Lines from which the format is detected."""
COPY = "copy: the same user, item and time in another file"
LONGEST_RATING = 4
"""The largest number of characters of a rating. A longer number in the third position is an item."""
SHORTEST_TIME = 9
"""The smallest number of characters of a time that is detected, which excludes 1970 to 1973. A shorter number is an item."""
MOST_SECONDS = 1e11
"""Times must be below this: 1e11 seconds is the year 5138, and 1e11 milliseconds is 1973."""
WORD = r"\S+"
WORDS = pl.col("line").str.extract_all(WORD)
FIRST_OF_USER, SECOND_LINE = pl.col("user").is_first_distinct(), "is a second line of its user; each user has only one"
AS_RATINGS = "format=ratings has user, item, a number and seconds"
JOIN_LINES = (
    "join the lines, or name another format: format=times has user, item and seconds, format=pairs user and item, "
    f"and {AS_RATINGS}; in a table with tabs, {reviews.by_number()}; "
    "ratings without times: delete them, and give format=pairs if the lines are in order of time"
)


def read(files: Sequence[Path], format: str, columns: dict[str, str], census: Census) -> tuple[pl.DataFrame, list[str]]:
    """All interactions in the order of the files, and the format of each file.

    format : one of `TEXT_FORMATS`, reviews, or auto. columns : as for `reviews.read_reviews`. Raises `UserError`, with file
    and line, for invalid lines, and for files that cannot be read together.
    """
    if columns and format in TEXT_FORMATS:
        raise UserError(f"columns is for tables with a header, and format={format} has fixed columns: leave one of them out")
    frames: list[pl.DataFrame] = []
    formats: list[str] = []
    for file in files:
        file_format = detect_format(file) if format == "auto" and not columns else format
        if file_format in TEXT_FORMATS:
            lines = _lines(file)
            _refuse_header(file, lines)
            if file_format == "sequences" and format == "auto":
                _refuse_two_groups(file, lines)
            reader, _ = TEXT_FORMATS[file_format]
            frame = reader(file, lines)
            census.read(frame.height)
            time_unit = {"time": "seconds"} if file_format in TIMED else {}
            census.files.append({"file": str(file), "format": file_format, **time_unit})
        else:
            file_format = "reviews"
            try:
                blocks = reviews.read_reviews([file], census, columns=columns or None, with_text=False, with_rating=False)
            except reviews.UnknownFormat as error:
                raise UserError(str(error) if columns else _advice_for_text(file, str(error))) from None
            selected = (block.select(user="user_id", item="product_id", time="time_ms") for block in blocks)
            frame = pl.concat([pl.DataFrame(schema=SCHEMA), *selected])
        frames.append(frame)
        formats.append(file_format)
    for file, file_format in zip(files, formats, strict=True):
        if file_format != formats[0] and not {file_format, formats[0]} <= DATED:
            raise UserError(
                f"{files[0]} has format {formats[0]} and {file} has {file_format}, "
                "whose times cannot be compared: prepare each separately"
            )
    if set(formats) <= DATED:
        frames = _without_copies(files, frames, census)
    events = pl.concat(frames)
    if formats[0] in ONE_LINE_EACH and sum(frame["user"].n_unique() for frame in frames) > events["user"].n_unique():
        raise UserError(f"a user is in two files of the format {formats[0]}, which has one line per user: join the lines")
    return events, formats


def _without_copies(files: Sequence[Path], frames: list[pl.DataFrame], census: Census) -> list[pl.DataFrame]:
    """Drop events that are also in a file of finer times, or in an earlier one of the same precision."""
    units = [duplicates.unit_of(frame["time"].to_numpy()) for frame in frames]
    duplicates.print_precisions(files, units)
    copies = duplicates.copies_of_other_files(frames, units)
    census.drop(COPY, sum(int(is_copy.sum()) for is_copy in copies))
    return [frame.filter(~is_copy) for frame, is_copy in zip(frames, copies, strict=True)]


def detect_format(file: Path) -> str:
    """The name of the text format that the first lines of a file have; "reviews" if they have none of them.

    Raises `UserError` for lines of three or four numbers, exactly one of which may be a time, that fit no format with times.
    """
    try:
        rows = [line for line in _lines(file, records.HEAD_BYTES) if line.strip()][:NUM_HEAD_LINES]
    except UserError:  # another kind of file, or a damaged one, for which its reader raises an error
        return "reviews"
    if 2 * sum(line.count("::") == 3 for line in rows) > len(rows):
        third = [line.split("::")[2].strip() for line in rows if line.count("::") == 3]
        is_time = [len(word) >= SHORTEST_TIME and records.is_number(word) for word in third]
        return "reviews" if all(is_time) else "ratings"
    fields = [line.split() for line in rows]
    if not all(map(_is_whole, rows)):
        return "ratings" if _are_ratings(fields) else "reviews"
    if any(_has_gaps(line) for line in rows):
        return "gaps"
    lengths = {len(words) for words in fields}
    if lengths == {2}:
        return "pairs"
    if lengths == {4} and all(len(words[2]) <= LONGEST_RATING and len(words[3]) >= SHORTEST_TIME for words in fields):
        return "ratings"
    if lengths == {3} and all(len(words[2]) >= SHORTEST_TIME for words in fields):
        # Lines of a user and two items with long numbers look the same, but then each user has only one line
        has_repeats = len({words[0] for words in fields}) < len(fields)
        if has_repeats or all(len(words[1]) < SHORTEST_TIME for words in fields):
            return "times"
    # Sequences are not all so short, and few items look like times
    times = [number for number in range(min(lengths)) if all(_is_time(words[number]) for words in fields)]
    if lengths <= {3, 4} and len(fields) > 1 and len(times) == 1:
        order = "write user, item and seconds since 1970 in this order"
        if lengths == {4} and times == [3]:
            order += f" ({AS_RATINGS})"
        elif lengths == {3} and times == [2]:
            order = "give format=times if they are user, item and seconds since 1970"
        raise UserError(
            f"{file} has {max(lengths)} numbers on a line, of which number {times[0] + 1} may be a time, as in "
            f"'{rows[0][:80]}': {order}, or give format=sequences if all but the first are items"
        )
    return "sequences"


def _is_whole(line: str) -> bool:
    """Whether all words of a line are whole numbers."""
    return all(word.lstrip("-").isdigit() for word in line.split())


def _refuse_header(file: Path, lines: list[str]) -> None:
    """Raise `UserError` if the first line has no number and all others, up to `NUM_HEAD_LINES`, are whole numbers."""
    head = [(number, line) for number, line in enumerate(lines[:NUM_HEAD_LINES], 1) if line.strip()]
    if len(head) > 1 and all(_is_whole(line) for _, line in head[1:]):
        number, first = head[0]
        if not any(map(records.is_number, first.split())):
            raise UserError(f"{file}, line {number}, '{first[:80]}', looks like a header: delete it")


def _is_time(word: str) -> bool:
    """Whether a number is a time from 2001 to 2033, in seconds or milliseconds."""
    return len(word) in (10, 13) and word.startswith("1")


def _advice_for_text(file: Path, as_table: str) -> str:
    """The error message for a file that is no known table and has no detected text format.

    as_table : the error of the table reader, which comes first if the file looks like a table.
    """
    with Bytes(file) as stream:
        head = stream.read(len(records.PARQUET))
    if head == records.PARQUET or head.startswith(b"{"):
        return as_table
    try:
        lines = _lines(file, records.HEAD_BYTES)[:NUM_HEAD_LINES]
    except UserError as error:
        return str(error)
    may_be_table = any(mark in lines[0] for mark in ",;\t")  # whose columns can be named
    if not may_be_table:
        _refuse_header(file, lines)
    example = next(((number, line) for number, line in enumerate(lines, 1) if not _is_whole(line)), None)
    if example is None:
        return as_table
    place = f"line {example[0]}, '{example[1][:80]}', has words that are not whole numbers"
    first, others = next(line for line in lines if line.strip()).split(), ", ".join(TEXT_FORMATS)
    likely = _likely_format(lines)
    # A header has no numbers, and a header of several columns has commas, semicolons or tabs
    is_text = not may_be_table or (likely != "sequences" and any(map(records.is_number, first)))
    if is_text and (len(first) > 1 or any(map(records.is_number, first))):
        return (
            f"{file}, {place}: name the format if they are ids: format={likely} fits the first lines, "
            f"{TEXT_FORMATS[likely][1]} (all formats: {others}). As a table: {as_table}"
        )
    return f"{as_table}; as lines of text, {place}: name the format if they are ids, one of {others}"


def _are_ratings(lines: list[list[str]]) -> bool:
    """Whether each line has four words, the third a number, and most last words are long enough for a time in seconds."""
    num_times = sum(len(words[-1]) >= SHORTEST_TIME for words in lines)
    return all(len(words) == 4 and records.is_number(words[2]) for words in lines) and 2 * num_times > len(lines)


def _likely_format(lines: list[str]) -> str:
    """The most likely text format of lines whose ids are not numbers."""
    rows = [line.split() for line in lines if line.strip()]
    lengths = {len(words) for words in rows}
    if any(line.count("::") == 3 for line in lines) or _are_ratings(rows):
        return "ratings"
    if lengths == {3} and all(records.is_number(words[2]) and len(words[2]) >= SHORTEST_TIME for words in rows):
        return "times"
    if lengths == {2}:
        return "pairs"
    return "gaps" if any(_has_gaps(line) for line in lines) else "sequences"


def _refuse_two_groups(file: Path, lines: list[str]) -> None:
    """Raise `UserError` for a line with two groups of numbers separated by a tab: the second group may be gaps."""
    for number, line in enumerate(lines, 1):
        first, tab, second = line.partition("\t")
        if tab and "\t" not in second.rstrip() and len(first.split()) > 1 and second.strip():
            num_items, num_gaps = len(first.split()) - 1, len(second.split())
            raise UserError(
                f"{file}, line {number}: '{line[:80]}' has a tab between two groups of numbers. For format=gaps the second "
                f"group needs one gap in seconds for each item, the first 0, but {num_items} items have {num_gaps} gaps: "
                "correct the lines, or, if all numbers are items, give format=sequences"
            )


def _lines(file: Path, most_bytes: int | None = None) -> list[str]:
    """The lines of a UTF-8 file, plain or gzip, with LF or CRLF; with `most_bytes`, the complete lines of its beginning."""
    with Bytes(file) as stream:
        blocks = iter(partial(stream.read, records.BLOCK_BYTES), b"")
        octets = b"".join(blocks) if most_bytes is None else stream.read(most_bytes)
    if len(octets) == most_bytes:
        octets = octets[: octets.rfind(b"\n") + 1] or octets
    refuse_foreign(file, octets[: records.HEAD_BYTES], "UTF-8 text or gzip")
    octets = octets.removeprefix(codecs.BOM_UTF8)
    if (place := octets.find(b"\0")) >= 0:
        number = octets.count(b"\n", 0, place) + 1
        raise UserError(
            f"{file}, line {number}: this line has a NUL byte: get the file again, or convert it from UTF-16 to UTF-8"
        )
    try:
        text = octets.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        number = octets.count(b"\n", 0, error.start) + 1
        before = octets[octets.rfind(b"\n", 0, error.start) + 1 : error.start]
        raise UserError(
            f"{file}, line {number}: this is not text in UTF-8 (byte 0x{octets[error.start]:x} after "
            f"'{records.excerpt(before)}'): convert the file, as `iconv -f latin1 -t utf-8` does from Latin-1"
        ) from None
    if not text.strip():
        raise UserError(f"{file} is empty: check how it was made, or leave it out")
    return text.split("\n")


def _has_gaps(line: str) -> bool:
    """Whether a line has a user and items, a tab, and a gap for each item."""
    items, tab, gaps = line.partition("\t")
    return bool(tab) and len(items.split()) - 1 == len(gaps.split()) > 0


def _ratings(file: Path, lines: list[str]) -> pl.DataFrame:
    line, user, item, rating, seconds = (pl.col(name) for name in ("line", "user", "item", "rating", "seconds"))
    by_blanks = line.str.strip_chars().str.replace_all(r"\s+", "::")
    joined = pl.when(line.str.contains("::", literal=True)).then(line).otherwise(by_blanks)
    names = ["user", "item", "rating", "seconds"]
    table = _numbered(lines).with_columns(fields=joined.str.splitn("::", 4).struct.rename_fields(names)).unnest("fields")
    table = table.with_columns(
        rating.str.strip_chars().cast(pl.Float64, strict=False),
        time=seconds.str.strip_chars(),
        seconds=seconds.str.strip_chars().cast(pl.Float64, strict=False),
    )
    _refuse_other_times(file, table)
    has_ids = (user != "") & (item != "")
    is_valid = has_ids & rating.is_finite() & (seconds.abs() < MOST_SECONDS)
    _refuse(file, table, is_valid, "is not user, item, rating and seconds since 1970")
    return table.select("user", "item", time=(1000 * seconds).round().cast(pl.Int64))


def _times(file: Path, lines: list[str]) -> pl.DataFrame:
    words, seconds = pl.col("words").list, pl.col("seconds")
    table = _numbered(lines).with_columns(words=WORDS).with_columns(time=words.get(2, null_on_oob=True))
    table = table.with_columns(seconds=pl.col("time").cast(pl.Float64, strict=False))
    _refuse_other_times(file, table)
    _refuse(file, table, (words.len() == 3) & (seconds.abs() < MOST_SECONDS), "is not user, item and seconds since 1970")
    return table.select(user=words.get(0), item=words.get(1), time=(1000 * seconds).round().cast(pl.Int64))


def _pairs(file: Path, lines: list[str]) -> pl.DataFrame:
    table = _numbered(lines).with_columns(words=WORDS)
    _refuse(file, table, pl.col("words").list.len() == 2, "is not a user and an item")
    return table.select(user=pl.col("words").list.get(0), item=pl.col("words").list.get(1), time=pl.lit(0, pl.Int64))


def _sequences(file: Path, lines: list[str]) -> pl.DataFrame:
    table = _numbered(lines).with_columns(words=WORDS).with_columns(user=pl.col("words").list.get(0))
    _refuse(file, table, FIRST_OF_USER, SECOND_LINE, JOIN_LINES)
    items = table.select("user", item=pl.col("words").list.slice(1)).explode("item").drop_nulls()
    return items.with_columns(time=pl.lit(0, pl.Int64))


def _gaps(file: Path, lines: list[str]) -> pl.DataFrame:
    half, gap = pl.col("line").str.splitn("\t", 2).struct, pl.col("gap").list
    seconds = pl.element().cast(pl.Int64, strict=False).fill_null(-1)
    table = _numbered(lines).with_columns(
        words=half.field("field_0").str.extract_all(WORD),
        gap=half.field("field_1").fill_null("").str.extract_all(WORD).list.eval(seconds),
    )
    table = table.with_columns(user=pl.col("words").list.get(0, null_on_oob=True), item=pl.col("words").list.slice(1))
    same_number = pl.col("user").is_not_null() & (gap.len() == pl.col("item").list.len())
    first_is_zero = gap.get(0, null_on_oob=True).fill_null(0) == 0
    in_range = gap.eval(pl.element().is_between(0, MOST_SECONDS)).list.all()
    _refuse(file, table, same_number & in_range, "is not a user and items, a tab, and as many gaps of 0 seconds or more")
    fix = "gaps are seconds since the item before, the first is 0"
    _refuse(file, table, first_is_zero, "has a first gap that is not 0", fix)
    _refuse(file, table, gap.sum() < MOST_SECONDS, f"has gaps of {MOST_SECONDS:,.0f} seconds or more in all")
    _refuse(file, table, FIRST_OF_USER, SECOND_LINE, "join the lines")
    events = table.explode("item", "gap").drop_nulls("item")
    return events.select("user", "item", time=1000 * pl.col("gap").cum_sum().over("number"))


def _numbered(lines: list[str]) -> pl.DataFrame:
    """Columns `line` and `number`, the line number from 1, without blank lines."""
    table = pl.DataFrame({"line": lines}, schema={"line": pl.String}).with_row_index("number", offset=1)
    return table.filter(pl.col("line").str.contains(WORD))


def _refuse_other_times(file: Path, table: pl.DataFrame) -> None:
    """Raise `UserError` if most times are calendar dates, and for the first line whose time is too large for seconds."""
    dates = table["time"].filter(table["time"].str.contains(values.CALENDAR))
    if 2 * len(dates) > table.height:
        raise UserError(f"{file}: times such as {dates[0]} are calendar dates: write seconds since 1970")
    is_finer = pl.col("seconds").abs().is_between(MOST_SECONDS, values.LARGEST_TIME).fill_null(False)
    problem = "has a time in milliseconds or a finer unit, but lines of text must have seconds since 1970"
    _refuse(file, table, ~is_finer, problem, "divide the times by 1000, or by the factor of their unit")


def _refuse(file: Path, table: pl.DataFrame, is_valid: pl.Expr, problem: str, advice: str = "correct the line") -> None:
    """Raise `UserError` for the first line that is not valid."""
    bad = table.filter(~is_valid.fill_null(False)).head(1)
    for line, number in bad.select("line", "number").iter_rows():
        raise UserError(f"{file}, line {number}: '{line[:80]}' {problem}: {advice}")


TEXT_FORMATS: dict[str, tuple[Callable[[Path, list[str]], pl.DataFrame], str]] = {
    "ratings": (_ratings, "user, item, rating and seconds since 1970"),
    "times": (_times, "user, item and seconds since 1970"),
    "pairs": (_pairs, "user and item"),
    "sequences": (_sequences, "a user and all items"),
    "gaps": (_gaps, "a user and all items, a tab, and the seconds since the item before"),
}
"""The reader of each text format, and the content of its lines."""


def ordered(interactions: pl.DataFrame) -> pl.DataFrame:
    """Sort by user, in the order of their first lines, then by time. Events at the same time stay in the files' order."""
    numbered = interactions.with_row_index("line")
    return numbered.sort(pl.col("line").min().over("user"), "time", maintain_order=True).drop("line")


def core(interactions: pl.DataFrame, least: int) -> pl.DataFrame:
    """The k-core: the largest subset in which each user and each item has at least `least` interactions."""
    while True:
        kept = interactions.filter((pl.len().over("user") >= least) & (pl.len().over("item") >= least))
        if kept.height == interactions.height:
            return kept
        interactions = kept
