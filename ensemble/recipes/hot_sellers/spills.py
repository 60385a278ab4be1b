"""Reads the raw files once and divides their rows among spill files by product. Later steps process one file at a time."""

import datetime
import math
import resource
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from ensemble.data import duplicates, octets, reviews
from ensemble.data.census import AFTER_UNTIL, NOTE_OF_ROWS
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import coverage, pretrained, text, weekly
from ensemble.recipes.hot_sellers.settings import PrepareConfig

COPY = "duplicate: the same metadata as in an earlier row"
CONFLICT = "conflict: other metadata than in an earlier row of the same product, which is used"
UNSEEN = NOTE_OF_ROWS + "kept with a category that training does not have, such as '{}', which counts as unknown"
REVIEWS_PER_SPILL, RATINGS_PER_SPILL = 1_000_000, 2_500_000
"""The approximate number of reviews in a spill file, which must fit into memory: of reviews with text, and of those
without, whose lines are shorter."""
LINE_BYTES, GZIP_RATIO = 300, 3
"""The usual number of bytes of a review in JSON, and how many times smaller gzip makes it."""
HEAD_BYTES = 1 << 18
LEAST_PRODUCT_SPILLS = 64
OTHER_FILES = 200
"""An upper bound of the number of open files that are no spill files."""


class _Spill:
    """Arrow files among which the rows of frames are divided by a hash of `product_id`."""

    def __init__(self, folder: Path, name: str, num_parts: int):
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{name}-{part}.arrow" for part in range(num_parts)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < num_parts + OTHER_FILES:  # all are open at a time
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(num_parts + OTHER_FILES, hard), hard))
        self._streams: dict[int, pa.RecordBatchStreamWriter] = {}

    def add(self, frame: pl.DataFrame) -> None:
        parts = frame.with_columns((pl.col("product_id").hash(0) % len(self.paths)).cast(pl.Int32).alias("part"))
        for (part,), piece in parts.partition_by("part", as_dict=True, include_key=False).items():
            table = piece.to_arrow(compat_level=pl.CompatLevel.oldest())
            if part not in self._streams:
                self._streams[part] = pa.ipc.new_stream(str(self.paths[part]), table.schema)
            self._streams[part].write_table(table)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


def num_product_spills(review_files: list[Path]) -> int:
    """The number of spill files of metadata. It is a multiple of the number of spill files of reviews, so that the products
    of one file of metadata are all in the same file of reviews."""
    num_spills = _num_spills(review_files)
    return num_spills * math.ceil(LEAST_PRODUCT_SPILLS / num_spills)


def spill_products(
    files: list[Path], spill: Path, config: PrepareConfig, training: dict[str, Any] | None, num_spills: int
) -> tuple[reviews.Census, list[str]]:
    """Divide the metadata among spill files. Returns their census and the list of categories; the first, '', means unknown.

    training : the manifest of the training data, whose categories are then returned, or None
    """
    census = reviews.Census()
    num_rows = Counter[str]()
    writer = _Spill(spill, "products", num_spills)
    for frame in reviews.read_products(files, census, with_price=config.panel.as_of_crawl):
        writer.add(frame)
        num_rows.update(dict(frame["category"].drop_nulls().value_counts().iter_rows()))
    writer.close()
    if training and (unseen := num_rows.keys() - set(training["categories"])):
        census.note(UNSEEN.format(min(unseen)), sum(num_rows[category] for category in unseen))
    if files:
        census.check(config.max_bad_fraction)
        _count_copies(writer.paths, census)
    return census, training["categories"] if training else ["", *sorted(num_rows.keys() - {""})]


def _count_copies(paths: list[Path], census: reviews.Census) -> None:
    """Count the metadata rows whose product has an earlier row. The first row of each product is used."""
    example = ""
    for path in filter(Path.exists, paths):
        frame = pl.read_ipc_stream(path)
        is_first = frame["product_id"].is_first_distinct()
        if is_first.all():
            continue
        first, later = frame.filter(is_first), frame.filter(~is_first)
        conflicts = later.join(first, on=later.columns, how="anti", nulls_equal=True)
        census.drop(COPY, len(later) - len(conflicts))
        census.drop(CONFLICT, len(conflicts))
        example = example or (conflicts["product_id"][0] if len(conflicts) else "")
    if example:
        number = census.dropped[CONFLICT]
        rows = f"{number:,} rows of the metadata differ" if number > 1 else "1 row of the metadata differs"
        print(
            f"warning: {rows} from an earlier row of the same product, such as {example}: the first row of each "
            "product is used",
            file=sys.stderr,
        )


def spill_reviews(files: list[Path], spill: Path, census: reviews.Census, config: PrepareConfig) -> dict[str, Any]:
    """Read the raw reviews once, tokenize their text, and divide them among spill files by product.

    Returns the first week and the last complete week, whether any review has text, the unit of the times of each file in
    milliseconds, warnings about files that end early and weeks with few reviews, and for each of
    `coverage.OPTIONAL_COLUMNS`, and with as_of_crawl of `coverage.CRAWL_COLUMNS`, the share of reviews that have a value.
    """
    panel = config.panel
    tokenizer = pretrained.load("AutoTokenizer", panel.tokenizer) if panel.tokenizer else None
    if tokenizer is not None and panel.num_tokens > tokenizer.model_max_length:
        raise UserError(
            f"panel.num_tokens={panel.num_tokens} is impossible: it must be at most {tokenizer.model_max_length}, the most "
            f"tokens of a text for '{panel.tokenizer}'"
        )
    if tokenizer is not None and 0 < panel.num_tokens <= (added := tokenizer.num_special_tokens_to_add()):
        raise UserError(
            f"panel.num_tokens={panel.num_tokens} is impossible: it must be 0, for no text, or more than the {added} tokens "
            f"that '{panel.tokenizer}' adds to each text"
        )
    writer = _Spill(spill, "reviews", _num_spills(files))
    blocks = reviews.read_reviews(
        files, census, columns=config.columns or None, until_ms=_end_of(config.until), with_text=panel.num_tokens > 0
    )
    has_text, period = False, coverage.Period(files)
    names = coverage.OPTIONAL_COLUMNS | (coverage.CRAWL_COLUMNS if panel.as_of_crawl else {})
    known = {column: coverage.Share("reviews", name) for column, name in names.items()}
    units = [duplicates.NO_TIMES] * len(files)
    with tqdm(unit=" reviews", unit_scale=True, desc="read") as bar:
        for frame in blocks:
            times = frame["time_ms"].to_numpy()
            file_number = int(frame["source_file"][0])
            units[file_number] = duplicates.unit_of(times, units[file_number])
            period.add(file_number, times)
            for column, share in known.items():
                share.add(len(frame), frame[column].count())
            columns: dict[str, Any] = dict.fromkeys(("words", "sentiment"), pl.lit(0, pl.Int32))
            if panel.num_tokens:
                tokens, words, sentiment = text.tokenize(frame["text"], panel.num_tokens, panel.vocabulary_size)
                has_text |= bool((words > 0).any())
                if tokenizer is not None:
                    tokens = text.tokenize_pretrained(frame["text"], panel.num_tokens, tokenizer)
                columns = {"words": pl.Series(words), "sentiment": pl.Series(sentiment), "tokens": pl.Series(tokens)}
            writer.add(
                frame.drop("text", "user_id").with_columns(
                    pl.col("verified").fill_null(False),
                    pl.col("num_images", "helpful_votes").fill_null(0),
                    user=frame["user_id"].hash(0),
                    **columns,
                )
            )
            bar.update(len(frame))
    writer.close()
    census.check(config.max_bad_fraction)
    if not census.rows_kept and census.dropped.get(AFTER_UNTIL):
        raise UserError(f"all reviews are dated after until={config.until}: give a later day, or leave until out")
    if not census.rows_kept:
        raise UserError(f"there are no reviews in {', '.join(str(file) for file in files)}: check the files")
    duplicates.print_precisions(files, units)
    last_week = int(max(period.complete))
    if until_ms := _end_of(config.until):  # the reviews are complete to that day
        until_week = weekly.last_complete_week(until_ms)
        # If no review was left out because of `until`, that day may be long after the end of the data
        last_week = max(last_week, until_week if census.dropped.get(AFTER_UNTIL) else min(until_week, int(max(period.last))))
    return {
        "first_week": int(min(period.first)),
        "last_week": last_week,
        "has_text": has_text,
        "time_units": units,
        "warnings": period.warnings(),
        "stated": list(known.values()),
    }


def _num_spills(files: list[Path]) -> int:
    return int(sum(map(_spills_of, files))) + 1


def _spills_of(file: Path) -> float:
    """The number of spill files, a fraction, for a file. Its number of reviews is known for Parquet, otherwise estimated."""
    try:
        return pq.read_metadata(file).num_rows / REVIEWS_PER_SPILL
    except (pa.ArrowException, OSError):  # another format, or a damaged file, for which `read_reviews` raises an error
        size, lines_per_byte = file.stat().st_size, 0.0
        with suppress(UserError), octets.Bytes(file) as stream:
            size *= GZIP_RATIO if stream.is_gzip else 1
            head = stream.read(HEAD_BYTES)
            lines_per_byte = head.count(b"\n") / max(1, len(head))
        return size * max(1 / LINE_BYTES / REVIEWS_PER_SPILL, lines_per_byte / RATINGS_PER_SPILL)


def _end_of(day: str) -> int | None:
    """The last millisecond of a day (UTC), in milliseconds since 1970; None for ''."""
    if not day:
        return None
    try:
        begin = datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time(), datetime.UTC)
    except ValueError:
        raise UserError(f"until={day} is not a date: write it as in 2023-09-30") from None
    return int(begin.timestamp() * 1000) + weekly.DAY_MS - 1
