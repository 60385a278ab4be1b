"""The bytes of a raw file, decompressed if it is gzip, and errors for files that cannot be read.

with Bytes(path) as stream:
    head = stream.read(1 << 20)
"""

import glob
import gzip
import json
import re
import stat
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ensemble.errors import UserError, shortened

GZIP_BYTES = 1 << 17
BEGINS_A_DICT = re.compile(rb"\s*\{u?'")
"""The beginning of a dict printed by Python, as in early releases of public datasets."""
DICTS_TO_JSON = (
    "if each line is a Python dict, convert the unpacked file, as `python -c 'import ast, json, sys; "
    "[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin]' < OLD > NEW` does"
)
ONE_OBJECT = (
    "{} is one JSON object of lists or objects: write one object for each row, each on a line of its own, as "
    "DataFrame.to_json(path, orient='records', lines=True) does"
)

FOREIGN: dict[str, bytes | tuple[bytes, ...]] = {
    "a zip archive, as Excel files (.xlsx) are too": b"PK\x03\x04",
    "compressed with zstd": b"\x28\xb5\x2f\xfd",
    "compressed with bzip2": tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)),
    "compressed with xz": b"\xfd7zXZ",
    "text in UTF-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
    "text in UTF-16": (b"\xff\xfe", b"\xfe\xff"),
    "an Arrow (Feather) file": b"ARROW1",
    "an HDF5 file": b"\x89HDF",
    "a NumPy file": b"\x93NUMPY",
    "a pickle": (b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95"),
    "an SQLite database": b"SQLite format 3",
    "an Excel file of the .xls format": b"\xd0\xcf\x11\xe0",
    "an Avro file": b"Obj\x01",
    "a 7-Zip archive": b"7z\xbc\xaf\x27\x1c",
    "a RAR archive": b"Rar!\x1a\x07",
    "an R file (.rds, .rda)": (b"RDX2\n", b"RDX3\n", b"X\n\0\0\0"),
    "a Stata file": b"<stata_dta>",
    "an SPSS file": b"$FL2@(#)",
    "a PDF": b"%PDF-",
    "an Arrow stream": b"\xff\xff\xff\xff",
    "compressed with gzip twice": b"\x1f\x8b",
}
"""Formats that are not read, with the bytes with which their files begin."""


def require_file(path: Path) -> None:
    """Raise `UserError` for a path that is no regular file. Raw files are read more than once, a pipe only once."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"the link {path} leads to no file: restore the file, or leave the link out") from None
        raise UserError(f"the file {path} does not exist: check the path") from None
    except (OSError, ValueError) as error:  # such as a name of more than 255 bytes, or with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shortened(str(path))!r} cannot be read ({reason}): check the path and its permissions") from None
    if stat.S_ISDIR(mode):
        names = glob.iglob("**/*", root_dir=path, recursive=True)
        ends = ((name, re.search(r"(?<!manifest)\.(csv|tsv|parquet|jsonl?|nc)(\.gz)?$", name)) for name in names)
        patterns = (f"{'**/' * ('/' in name)}*{end[0]}" for name, end in ends if end and (path / name).is_file())
        raise UserError(
            f"{path} is a folder: name its files, as in '{glob.escape(str(path))}/{next(patterns, '*.jsonl.gz')}'"
        )
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
        kind = next(kind for is_kind, kind in kinds.items() if is_kind(mode))
        raise UserError(f"{path} is {kind}, and sources are read more than once: write its content to a file, and name that")


def refuse_inside(out: str, paths: Sequence[Path]) -> None:
    """Raise `UserError` for raw files inside `out`: they would be deleted when `out` is replaced."""
    for path in paths:
        if path.resolve().is_relative_to(Path(out).resolve()):
            raise UserError(f"{path} lies inside out={out}, which is replaced as a whole: choose another out")


def refuse_foreign(path: Path, head: bytes, formats: str = "UTF-8 text, gzip or Parquet") -> None:
    """Raise `UserError` for a file that begins like one of `FOREIGN`, and for text whose lines end in carriage returns
    alone, which would be read as one line. formats : what the file may be converted to."""
    for kind, magic in FOREIGN.items():
        if head.startswith(magic):
            raise UserError(f"{path} is {kind}: unpack or convert it to {formats}")
    lines = head.rstrip(b"\r\n")  # a program that wrote "\r" may still end the file with "\n"
    if b"\n" not in lines and b"\r" in lines and not head.startswith(b"PAR1"):
        raise UserError(
            f"the lines of {path} end in carriage returns alone, as on old Macs: convert them, as "
            "`tr '\\r' '\\n' < OLD > NEW` does"
        )


def repeated_key(octets: bytes) -> str | None:
    """A key that an object in this JSON has more than once; None if there is none, or if the bytes are not valid JSON.

    Parsers would use only the last of the key's values.
    """
    repeated: list[str] = []

    def examine(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            repeated.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)

    try:
        json.loads(octets, object_pairs_hook=examine, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):  # no JSON, which the parser of the data reports
        return None
    return repeated[0] if repeated else None


class Bytes(AbstractContextManager["Bytes"]):
    """A sequential reader of a file's bytes, decompressed if it is gzip.

    Raises `UserError` for a file that cannot be opened or read, and for a gzip stream that is damaged or incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.position = 0
        require_file(path)
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
            self.is_gzip = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror or error}): check the path and its permissions"
            ) from None
        self._gzip = gzip.GzipFile(fileobj=self._file) if self.is_gzip else None

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        pieces = []
        while size > 0 and (piece := self._read_some(size)):
            pieces.append(piece)
            size -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def _read_some(self, size: int) -> bytes:
        try:
            # In small pieces, so that `position` counts the bytes before a damaged one, for the error
            return self._gzip.read1(min(size, GZIP_BYTES)) if self._gzip else self._file.read(size)
        except EOFError:
            problem = "ends early"
        except (gzip.BadGzipFile, zlib.error) as error:
            problem = f"is damaged ({error})"
        except OSError as error:
            raise UserError(
                f"{self.name} cannot be read ({error.strerror or error}): check the disk, or copy it again"
            ) from None
        raise UserError(
            f"the gzip stream of {self.name} {problem} near byte {self._file.tell():,}, after {self.position:,} "
            "decompressed bytes: get the file again"
        )
