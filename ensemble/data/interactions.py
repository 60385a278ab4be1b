"""Raw files to interactions: who took which item, when; in the order in which it happened.

Beside everything that reviews.py reads (Amazon Reviews, MovieLens, `.inter`, tables with named columns), lines of text. They
are recognised by what is in them; the word in brackets names them:

    1::1193::5::978300760          user, item, rating, seconds: MovieLens' ratings.dat (ratings)
    196 242 3 881250949            the same with blanks or tabs: u.data (ratings)
    1 1193                         user, item; the order of lines is that of time (pairs)
    1 3 7 12 9                     a user and all items, oldest first (sequences)
    1 3 7 12 9<TAB>0 864000 60 0   the same, then the seconds since the item before, first 0 (gaps)

Interactions are sorted stably by user and time: of two at one moment, the one that comes first in the file is first. That is
no detail: it decides the test item of two users in five of MovieLens 1M.
"""

import gzip
import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import polars as pl

from ensemble.data import reviews
from ensemble.data.census import Census
from ensemble.errors import UserError

SCHEMA = {"user": pl.String(), "item": pl.String(), "time": pl.Int64()}
"""time: milliseconds since 1970, or since the user's first item; the place in the file where there is none."""
TEXT_FORMATS = ("ratings", "pairs", "sequences", "gaps")
NUM_LINES_LOOKED_AT = 1000


def read(files: Sequence[Path], format: str, columns: dict[str, str], census: Census) -> tuple[pl.DataFrame, list[str]]:
    """All interactions in the files' order, and the format of each file.

    format : one of `TEXT_FORMATS`, reviews, or auto. columns : as for `reviews.read_reviews`. Raises `UserError`, with file
    and line, for what cannot be read.
    """
    frames, formats = [], []
    for file in files:
        found = recognise(file) if format == "auto" and not columns else format
        if found in TEXT_FORMATS:
            frame = _READERS[found](file, _lines(file))
            census.read(frame.height)
            census.files.append({"file": str(file), "format": found, "time": "seconds"})
        else:
            found = "reviews"
            blocks = reviews.read_reviews([file], census, columns=columns or None, with_text=False)
            frame = pl.concat(
                [
                    pl.DataFrame(schema=SCHEMA),
                    *(block.select(user="user_id", item="product_id", time="time_ms") for block in blocks),
                ]
            )
        frames.append(frame)
        formats.append(found)
    return pl.concat(frames), formats


def recognise(file: Path) -> str:
    """The text format that the first lines of a file fit, or reviews."""
    try:
        lines = _lines(file, NUM_LINES_LOOKED_AT)
    except (UnicodeDecodeError, OSError, EOFError):
        return "reviews"
    rows = [line for line in lines if line.strip()]
    if not rows:
        raise UserError(f"{file} is empty: check how it was made")
    if all(line.count("::") == 3 for line in rows):
        return "ratings"
    fields = [line.split() for line in rows]
    if not all(word.lstrip("-").isdigit() for words in fields for word in words):
        return "ratings" if all(len(words) == 4 and _is_number(words[2]) for words in fields) else "reviews"
    if all(_halves(line) for line in rows):
        return "gaps"
    lengths = {len(words) for words in fields}
    if lengths == {2}:
        return "pairs"
    if lengths == {4} and all(len(words[3]) >= 9 for words in fields):
        return "ratings"
    return "sequences"


def _lines(file: Path, most: int | None = None) -> list[str]:
    with open(file, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(file) if packed else open(file, "rb") as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8")
        return [line.rstrip("\n") for _, line in zip(range(most), text, strict=False)] if most else text.read().splitlines()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _halves(line: str) -> bool:
    """Whether a line is a user and items, a tab, and a gap for each item."""
    items, tab, gaps = line.partition("\t")
    return bool(tab) and len(items.split()) - 1 == len(gaps.split()) > 0


def _ratings(file: Path, lines: list[str]) -> pl.DataFrame:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        words = line.split("::") if "::" in line else line.split()
        if len(words) != 4 or not _is_number(words[3]):
            raise UserError(f"{file}, line {number}: '{line[:80]}' is not user, item, rating and seconds: mend the line")
        rows.append((words[0].strip(), words[1].strip(), int(1000 * float(words[3]))))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _pairs(file: Path, lines: list[str]) -> pl.DataFrame:
    rows = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and len(words) != 2:
            raise UserError(f"{file}, line {number}: '{line[:80]}' is not a user and an item: mend the line")
        if words:
            rows.append((words[0], words[1], number))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _sequences(file: Path, lines: list[str]) -> pl.DataFrame:
    rows = []
    for line in lines:
        user, *items = line.split() or [""]
        rows += [(user, item, place) for place, item in enumerate(items)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _gaps(file: Path, lines: list[str]) -> pl.DataFrame:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        sequence, _, after = line.partition("\t")
        user, *items = sequence.split()
        try:
            gaps = [int(gap) for gap in after.split()]
        except ValueError:
            gaps = []
        if len(gaps) != len(items) or any(gap < 0 for gap in gaps):
            raise UserError(
                f"{file}, line {number}: {len(items)} items need as many gaps of 0 seconds or more, and "
                f"'{after[:60]}' is not that: mend the line"
            )
        rows += [(user, item, 1000 * time) for item, time in zip(items, accumulate(gaps), strict=True)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


_READERS: dict[str, Callable[[Path, list[str]], pl.DataFrame]] = {
    "ratings": _ratings,
    "pairs": _pairs,
    "sequences": _sequences,
    "gaps": _gaps,
}


def ordered(interactions: pl.DataFrame) -> pl.DataFrame:
    """By user, in the order of the users' first lines, and by time; at one moment in the files' order."""
    numbered = interactions.with_row_index("line").with_columns(pl.col("line").min().over("user").alias("first"))
    return numbered.sort("first", "time", "line").drop("first", "line")


def core(interactions: pl.DataFrame, least: int) -> pl.DataFrame:
    """The largest part in which each user and each item has at least `least` interactions, by leaving out the others again
    and again (the "k-core")."""
    while interactions.height:
        enough = interactions.filter((pl.len().over("user") >= least) & (pl.len().over("item") >= least))
        if enough.height == interactions.height:
            break
        interactions = enough
    return interactions
