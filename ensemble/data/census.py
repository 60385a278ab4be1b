"""Counts of the rows that were read, kept and dropped, with the reason for each drop."""

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ensemble.errors import UserError, visible

MALFORMED = "malformed line"
NO_PRODUCT = "missing product id"
NO_USER = "missing user id"
BAD_ID = "id that is no text and no whole number"
NO_TIME = "missing time"
BAD_RATING = "impossible rating"
OTHER_UNIT = "time in another unit (seconds, milliseconds, …) than most of its file's"
TOO_OLD = "date before 1995"
TOO_NEW = "date more than a day after the file's modification time"
AFTER_UNTIL = "date after until, left out as asked"
LAST_WEEK = "in the last week, which the data do not cover to its end"
NOTE_OF_ROWS = "note: rows "
UNREADABLE = NOTE_OF_ROWS + "kept with an unreadable {}, which is read as if it were empty"
BAD_KINDS = (MALFORMED, NO_PRODUCT, NO_USER, BAD_ID, OTHER_UNIT, NO_TIME, BAD_RATING, TOO_OLD, TOO_NEW)
"""The reasons for which a row is bad; a row is counted by the first one that applies. `AFTER_UNTIL` is not one of them,
since the user asked to drop these rows."""

NUM_EXAMPLES = 5
_NO_JSON_NUMBER = re.compile(r":\s*-?(NaN|Infinity)\b")


class Example(NamedTuple):
    """A row that was dropped or noted, as a short text, with its file and line."""

    file: str
    line: int
    excerpt: str


def notes(census: dict[str, Any]) -> list[str]:
    """A sentence for each reason for which rows were dropped, except the expected ones, and for each kind of note.

    census : from `Census.to_dict`. The expected reasons are `AFTER_UNTIL` and `LAST_WEEK`.
    """

    dropped = {kind: entry for kind, entry in census["dropped"].items() if kind not in (AFTER_UNTIL, LAST_WEEK)}
    entries = {f"are left out: {kind}": entry for kind, entry in dropped.items()}
    entries |= {f"are {kind.removeprefix(NOTE_OF_ROWS)}": entry for kind, entry in census.get("notes", {}).items()}
    sentences = []
    for predicate, entry in entries.items():
        place = "".join(f" ({row['file']}:{row['line']})" for row in entry["first"][:1])
        sentences.append(f"{entry['count']:,} of {census['rows_read']:,} rows {predicate}{place}")
    return sentences


class Census:
    """Counts of rows, with the first examples of each kind. A kind is the reason for a drop, or the text of a note.

    `rows_read == rows_kept + sum(dropped.values())` is always true. Later stages, such as the removal of
    duplicates, call `drop` too.
    """

    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_kept = 0
        self.dropped: dict[str, int] = {}
        self.examples: dict[str, list[Example]] = {}
        self.notes: dict[str, int] = {}
        """By kind, the number of unusable values, such as unreadable ones, in rows that were kept."""
        self.files: list[dict[str, str]] = []
        """For each file, its path or name (`file`), its `format` and, if rows have times, their unit (`time`)."""

    def read(self, rows: int) -> None:
        """Count rows that were read. They count as kept until `drop` counts them as dropped."""
        self.rows_read += rows
        self.rows_kept += rows

    def drop(self, kind: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Move `count` rows from the kept to the dropped ones. Stores the first `NUM_EXAMPLES` examples of a kind."""
        self.rows_kept -= count
        assert self.rows_kept >= 0, "more rows dropped than were read"
        self._count(self.dropped, kind, count, examples)

    def note(self, kind: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Count `count` unusable values, such as unreadable ones, in rows that are kept."""
        self._count(self.notes, kind, count, examples)

    def _count(self, counts: dict[str, int], kind: str, count: int, examples: Iterable[Example]) -> None:
        if count:
            counts[kind] = counts.get(kind, 0) + count
            stored = self.examples.setdefault(kind, [])
            stored.extend(itertools.islice(examples, NUM_EXAMPLES - len(stored)))

    def check(self, max_bad_fraction: float, kinds: Sequence[str] = BAD_KINDS, num_examined: int | None = None) -> None:
        """Raise `UserError`, with the table of counts, if more than `max_bad_fraction` of the rows are bad or none is good.

        kinds : the reasons for which a row is bad; the reasons of later stages, such as duplicates, are not among them.
        num_examined : number of rows that were examined for these reasons; None for all rows that were read.
        """
        num_bad = sum(self.dropped.get(kind, 0) for kind in kinds)
        num_rows = self.rows_read if num_examined is None else num_examined
        if num_bad <= max_bad_fraction * num_rows and num_bad < num_rows:
            return
        share = num_bad / max(num_rows, 1)
        advice = "correct them, or allow more with max_bad_fraction= on the command line"
        if num_bad == num_rows:
            advice = "no row is left, so correct them"
        if self.dropped.get(OTHER_UNIT, 0) * 2 > num_bad:
            advice = "all times of a file must have one unit, seconds or milliseconds since 1970: convert the others"
        elif self.dropped.get(TOO_NEW, 0) * 2 > num_bad:
            advice = (
                "a date must not be more than a day after the file's modification time: if the file was copied with an "
                "older one, `touch` it, or give the last day with until=, if the recipe has this setting"
            )
        elif num_bad == num_rows and self.dropped.get(TOO_OLD, 0) * 2 > num_bad:
            advice = (
                "numbers are read as seconds or milliseconds since 1970, so convert others; if only the order of times is "
                "used, add 1000000000 to each"
            )
        elif any("\ufffd" in example.excerpt for example in self.examples.get(MALFORMED, ())):
            advice = "convert the files to UTF-8, as `iconv -f latin1 -t utf-8` does from Latin-1"
        elif any(re.match(r'[^{].*\\"', example.excerpt) for example in self.examples.get(MALFORMED, ())):  # not JSON
            advice = 'write a quote inside quotes as "", not as \\"'
        elif any(_NO_JSON_NUMBER.search(example.excerpt) for example in self.examples.get(MALFORMED, ())):
            advice = "JSON has no NaN and no Infinity: write null for them"
        raise UserError(
            f"{num_bad:,} of {num_rows:,} rows are bad ({share:.2%}, allowed are {max_bad_fraction:.2%}): "
            f"{advice}\n{self.table()}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The census as a dictionary, which is stored in the manifest of prepared data.

        Files are named without their folders, so that the fingerprint does not depend on where the raw files are.
        """

        def named(entry: dict[str, Any]) -> dict[str, Any]:
            return entry | {"file": Path(entry["file"]).name}

        def described(counts: dict[str, int]) -> dict[str, Any]:
            return {
                kind: {"count": count, "first": [named(example._asdict()) for example in self.examples[kind]]}
                for kind, count in counts.items()
            }

        counts = {"rows_read": self.rows_read, "rows_kept": self.rows_kept, "dropped": described(self.dropped)}
        return {**counts, **({"notes": described(self.notes)} if self.notes else {}), "files": list(map(named, self.files))}

    def table(self) -> str:
        """The census as text: the format of each file, the counts, and the first examples of each kind."""
        counts = {"rows read": self.rows_read, **self.dropped, "rows kept": self.rows_kept, **self.notes}
        width = max(len(f"{count:,}") for count in counts.values())
        lines = [
            f"{file['file']}: {file['format']}" + (f", time in {file['time']}" if "time" in file else "")
            for file in self.files
        ]
        for kind, count in counts.items():
            lines.append(f"  {count:>{width},}  {kind}")
            for example in self.examples.get(kind, []):
                lines.append(f"  {'':{width}}    {example.file}:{example.line}: {visible(example.excerpt)}")
        return "\n".join(lines)
