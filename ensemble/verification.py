"""Checksums of a folder's files, compared only for files that changed since the last comparison; and checksums of columns.

`.verified.json` beside a manifest contains the size, the modification time in nanoseconds and the inode of each file whose
checksum was right, except for files that were only just written. It is not part of the fingerprint. A file for which these
three values are still the same counts as unchanged; any other is read. A copied folder has other inodes, so all of its files
are read once. If the folder cannot be written, the record is kept for the running process only.

A change that restores size, modification time and inode, or a disk that returns other bytes than were written, is noticed
only if every file is read: `is_full`.
"""

import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble.errors import UserError

NAME = ".verified.json"
Stamp = list[int]
"""Size, modification time in nanoseconds, inode."""
KNOWN: dict[str, dict[str, Stamp]] = {}
"""Records of this process, by folder and fingerprint."""


def first_changed(folder: Path, manifest: dict[str, Any], is_full: bool = False) -> str | None:
    """The first file of the manifest whose checksum is wrong; None if there is none.

    If several processes call this at once, one reads the files, and the others wait for its record. With `is_full`, and in a
    folder that cannot be written, each process reads the files. The files must exist.
    """
    files = manifest["files"]
    if not is_full:
        stamps = _stamps(folder, files)
        if stamps == KNOWN.get(_key(folder, manifest)) or stamps == _record(folder, manifest):
            return None
    with _lock(folder):
        stamps = _stamps(folder, files)
        record = {} if is_full else _record(folder, manifest)
        for name, stamp in stamps.items():
            if record.get(name) != stamp and sha256(folder / name) != files[name]["sha256"]:
                return str(name)
        # A file that was just written may be written again without a new modification time
        now = time.time_ns()
        settled = {name: stamp for name, stamp in stamps.items() if now - stamp[1] > _resolution_ns(stamp[1])}
        if settled != record:
            _write(folder, manifest, settled)
    return None


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def column_checksums(table: Any) -> dict[str, str]:
    """The SHA-256 of the values of each column of an Arrow table, by name. It does not depend on row groups and chunks."""
    checksums = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest = hashlib.sha256()
        for octets in _octets(column.combine_chunks()):
            digest.update(octets)
        checksums[name] = digest.hexdigest()
    return checksums


def refuse_changed_columns(path: str | Path, table: Any, checksums: Any, key: str) -> None:
    """Raise `UserError` for a column whose values do not have the checksum in `checksums`, is missing, or was added.

    checksums : from the metadata `key` of the file at `path`; None, as in files of other programs: nothing is compared.
    """
    if checksums is None:
        return
    actual, expected = column_checksums(table), checksums if isinstance(checksums, dict) else {}
    for name in {**expected, **actual}:
        if actual.get(name) != expected.get(name):
            raise UserError(
                f"the column '{name}' of {path} was changed after the file was written (its checksum differs): predict "
                f"again, or remove 'checksums' from the metadata '{key}' if the change is intended"
            )


def _octets(values: Any) -> Iterator[Any]:
    """The values of an Arrow array as bytes, which depend on the values only."""
    import numpy as np
    import pyarrow as pa

    kind = values.type
    if values.null_count:
        yield np.packbits(values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_struct(kind):
        for child in values.flatten():
            yield from _octets(child)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        yield values.value_lengths().fill_null(0).to_numpy()
        yield from _octets(values.flatten())
    elif pa.types.is_string(kind):
        _, starts, text = values.buffers()
        ends = np.frombuffer(starts, np.int32)[values.offset : values.offset + len(values) + 1] if starts else np.zeros(1)
        yield np.diff(ends)
        yield memoryview(text or b"")[int(ends[0]) : int(ends[-1])]
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False))
    else:
        yield str(kind).encode()  # no type that this project writes


def _stamps(folder: Path, names: Any) -> dict[str, Stamp]:
    stamps = {}
    for name in names:
        status = (folder / name).stat()
        stamps[name] = [status.st_size, status.st_mtime_ns, status.st_ino]
    return stamps


def _resolution_ns(modified_ns: int) -> int:
    """An upper bound of the resolution of a modification time: 20 ms, or 2 s for a time in whole seconds, which some file
    systems store."""
    return 20_000_000 if modified_ns % 1_000_000_000 else 2_000_000_000


def _key(folder: Path, manifest: dict[str, Any]) -> str:
    return f"{folder.resolve()} {manifest['fingerprint']}"


def _record(folder: Path, manifest: dict[str, Any]) -> dict[str, Stamp]:
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        stamps = content["files"] if content["fingerprint"] == manifest["fingerprint"] else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        stamps = {}
    return stamps if isinstance(stamps, dict) and stamps else KNOWN.get(_key(folder, manifest), {})


def _write(folder: Path, manifest: dict[str, Any], stamps: dict[str, Stamp]) -> None:
    KNOWN[_key(folder, manifest)] = stamps
    for key in list(KNOWN):
        if not os.path.isdir(key.rpartition(" ")[0]):  # a folder of a request to a service that runs for weeks
            KNOWN.pop(key, None)
    if not os.access(folder, os.W_OK):
        return
    scratch = folder / f"{NAME}.writing-{uuid.uuid4().hex[:8]}"
    with suppress(OSError):  # a full disk, or one without permission: the next process reads the files again
        try:
            content = {"fingerprint": manifest["fingerprint"], "files": stamps}
            scratch.write_text(json.dumps(content), encoding="utf-8")
            scratch.rename(folder / NAME)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock the folder if it can be written and the file system has locks; otherwise each process reads the files."""
    descriptor = None
    if os.access(folder, os.W_OK):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
