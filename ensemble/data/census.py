"""How many rows a reader read, kept, and dropped for which reason: nothing is ever dropped in silence."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ensemble.errors import UserError

MALFORMED = "malformed line"
NO_PRODUCT = "missing product id"
NO_USER = "missing user id"
BAD_ID = "id that is no text and no whole number"
NO_TIME = "missing time"
BAD_RATING = "impossible rating"
OTHER_UNIT = "time in another unit (seconds, milliseconds, …) than most of its file's"
TOO_OLD = "date before 1995"
TOO_NEW = "date after the file's end"
AFTER_UNTIL = "date after until, left out as asked"
UNREADABLE = "note: rows kept with an unreadable {}, which is read as if it were empty"
BAD_KINDS = (MALFORMED, NO_PRODUCT, NO_USER, BAD_ID, OTHER_UNIT, NO_TIME, BAD_RATING, TOO_OLD, TOO_NEW)
"""Why a reader drops a row: the first of these that is true of it; `AFTER_UNTIL`, for which the user asked, is no fault."""

NUM_OFFENDERS = 5
_NO_JSON_NUMBER = re.compile(r":\s*-?(NaN|Infinity)\b")


class Offender(NamedTuple):
    """A row that was dropped, and where it stands."""

    file: str
    line: int
    excerpt: str


class Census:
    """The counts, with the first offenders of each kind.

    Always `rows_read == rows_kept + sum(dropped.values())`. Later stages drop rows too (duplicates): they call `drop`.
    """

    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_kept = 0
        self.dropped: dict[str, int] = {}
        self.offenders: dict[str, list[Offender]] = {}
        self.notes: dict[str, int] = {}
        """Values of rows that were kept that could not be read, by kind."""
        self.files: list[dict[str, str]] = []
        """How each file was understood: its `file` (path) and `format`, and for reviews the unit of `time`."""

    def read(self, rows: int) -> None:
        """Count rows that were read: they are kept until `drop` says otherwise."""
        self.rows_read += rows
        self.rows_kept += rows

    def drop(self, kind: str, count: int, offenders: Iterable[Offender] = ()) -> None:
        """Count `count` of the rows read as dropped; the first few offenders of a kind are remembered."""
        if count == 0:
            return
        self.rows_kept -= count
        assert self.rows_kept >= 0, "more rows dropped than were read"
        self.dropped[kind] = self.dropped.get(kind, 0) + count
        self._remember(kind, offenders)

    def note(self, kind: str, count: int, offenders: Iterable[Offender] = ()) -> None:
        """Count `count` values that could not be read, of rows that are kept all the same."""
        if count == 0:
            return
        self.notes[kind] = self.notes.get(kind, 0) + count
        self._remember(kind, offenders)

    def _remember(self, kind: str, offenders: Iterable[Offender]) -> None:
        first = self.offenders.setdefault(kind, [])
        first.extend(offender for offender, _ in zip(offenders, range(NUM_OFFENDERS - len(first)), strict=False))

    def check(self, max_bad_fraction: float, kinds: Sequence[str] = BAD_KINDS, num_examined: int | None = None) -> None:
        """Raise `UserError` with the list of what was dropped when more than `max_bad_fraction` of the rows were bad.

        Bad are the rows dropped as one of `kinds`; what a later stage drops (duplicates) is counted but is no fault of the
        file. num_examined : rows that were looked at for these kinds; None for all rows read.
        """
        bad = sum(self.dropped.get(kind, 0) for kind in kinds)
        num_rows = self.rows_read if num_examined is None else num_examined
        if bad <= max_bad_fraction * num_rows and bad < num_rows:
            return
        share = bad / max(num_rows, 1)
        advice = "correct the files, or allow more with max_bad_fraction"
        if self.dropped.get(OTHER_UNIT, 0) * 2 > bad:
            advice = "all times of a file must have one unit, seconds or milliseconds since 1970: convert the others"
        elif self.dropped.get(TOO_NEW, 0) * 2 > bad:
            advice = "a file's end is its modification time unless you give it with until"
        elif any("\ufffd" in offender.excerpt for offender in self.offenders.get(MALFORMED, ())):
            advice = "convert the files to UTF-8, as `iconv -f latin1 -t utf-8` does from Latin-1"
        elif any(_NO_JSON_NUMBER.search(offender.excerpt) for offender in self.offenders.get(MALFORMED, ())):
            advice = "JSON has no NaN and no Infinity: write null for them"
        raise UserError(
            f"{bad:,} of {num_rows:,} rows are bad ({share:.2%}, allowed are {max_bad_fraction:.2%}): "
            f"{advice}\n{self.table()}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole census for a manifest: plain dicts, lists, strings and whole numbers."""

        def described(counts: dict[str, int]) -> dict[str, Any]:
            return {
                kind: {"count": count, "first": [offender._asdict() for offender in self.offenders[kind]]}
                for kind, count in counts.items()
            }

        notes = {"notes": described(self.notes)} if self.notes else {}
        return {
            "rows_read": self.rows_read,
            "rows_kept": self.rows_kept,
            "dropped": described(self.dropped),
            **notes,
            "files": self.files,
        }

    def table(self) -> str:
        """The census for the screen: how each file was understood, the counts, the first offenders."""
        counts = {"rows read": self.rows_read, **self.dropped, "rows kept": self.rows_kept, **self.notes}
        width = max(len(f"{count:,}") for count in counts.values())
        lines = [
            f"{file['file']}: {file['format']}" + (f", time in {file['time']}" if "time" in file else "")
            for file in self.files
        ]
        for kind, count in counts.items():
            lines.append(f"  {count:>{width},}  {kind}")
            for offender in self.offenders.get(kind, []):
                lines.append(f"  {'':{width}}    {offender.file}:{offender.line}: {offender.excerpt}")
        return "\n".join(lines)
