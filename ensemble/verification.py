"""Checksums of a folder's files, read again only for files that changed since they were last read; and of columns.

`.verified.json` beside a manifest holds the size, the modification time in nanoseconds and the inode of each file whose
checksum was right. It is no part of the fingerprint. A file that still has these three is taken to be unchanged; any other
is read. A copied folder has other inodes, so all of its files are read once. Where the folder cannot be written, the record
is kept for the running process only.

A change that restores size, modification time and inode, or a disk that returns other bytes than were written, is noticed by
reading every file only: `is_full`.
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
_known: dict[str, dict[str, Stamp]] = {}
"""Records of this process, by folder and fingerprint."""


def first_changed(folder: Path, manifest: dict[str, Any], is_full: bool = False) -> str | None:
    """The first file of the manifest whose checksum differs from it; None if there is none.

    Of several processes that ask at once, one reads the files, and the others wait for its record.
    """
    files = manifest["files"]
    if not is_full and _is_recorded(folder, manifest, _stamps(folder, files)):
        return None
    with _lock(folder):
        stamps = _stamps(folder, files)
        record = {} if is_full else _record(folder, manifest)
        for name, stamp in stamps.items():
            if record.get(name) != stamp and sha256(folder / name) != files[name]["sha256"]:
                return str(name)
        # What was written this very moment may be written once more without another modification time
        now = time.time_ns()
        sound = {name: stamp for name, stamp in stamps.items() if now - stamp[1] > _resolution_ns(stamp[1])}
        if sound != record:
            _write(folder, manifest, sound)
    return None


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def column_checksums(table: Any) -> dict[str, str]:
    """By name, the SHA-256 of the values of each column of an Arrow table.

    Row groups, chunks and compression make no difference.
    """
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest = hashlib.sha256()
        for octets in _octets(column.combine_chunks()):
            digest.update(octets)
        found[name] = digest.hexdigest()
    return found


def refuse_changed_columns(path: str | Path, table: Any, checksums: Any, key: str) -> None:
    """Raise `UserError` for a column that has other values than those of `checksums`, is missing, or was added.

    checksums : from the metadata `key` of the file at `path`; None, as other programs leave it, is not compared.
    """
    if checksums is None:
        return
    found, expected = column_checksums(table), checksums if isinstance(checksums, dict) else {}
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            raise UserError(
                f"the column '{name}' of {path} was changed after the file was written (its checksum differs): predict "
                f"again, or remove 'checksums' from the metadata '{key}' if the change is intended"
            )


def _octets(values: Any) -> Iterator[Any]:
    """The values of an Arrow array as bytes, in an order that depends on the values alone."""
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
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        yield np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False))
    else:
        yield str(kind).encode()  # no column of ours


def _is_recorded(folder: Path, manifest: dict[str, Any], stamps: dict[str, Stamp]) -> bool:
    known = _known.get(_key(folder, manifest))
    return stamps == known or stamps == _record(folder, manifest)


def _stamps(folder: Path, names: Any) -> dict[str, Stamp]:
    found = {}
    for name in names:
        about = (folder / name).stat()
        found[name] = [about.st_size, about.st_mtime_ns, about.st_ino]
    return found


def _resolution_ns(modified_ns: int) -> int:
    """Some file systems keep whole seconds, or every second one; the others a clock's tick of a few milliseconds."""
    return 20_000_000 if modified_ns % 1_000_000_000 else 2_000_000_000


def _key(folder: Path, manifest: dict[str, Any]) -> str:
    return f"{folder.resolve()} {manifest['fingerprint']}"


def _record(folder: Path, manifest: dict[str, Any]) -> dict[str, Stamp]:
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        found = content["files"] if content["fingerprint"] == manifest["fingerprint"] else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        found = {}
    return found if isinstance(found, dict) and found else _known.get(_key(folder, manifest), {})


def _write(folder: Path, manifest: dict[str, Any], stamps: dict[str, Stamp]) -> None:
    _known[_key(folder, manifest)] = stamps
    if not os.access(folder, os.W_OK):
        return
    scratch = folder / f"{NAME}.{uuid.uuid4().hex[:8]}"
    with suppress(OSError):  # a full disk, or one that is not ours: the files are read again next time
        try:
            content = {"fingerprint": manifest["fingerprint"], "files": stamps}
            scratch.write_text(json.dumps(content), encoding="utf-8")
            scratch.rename(folder / NAME)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Alone with the files, where the file system has locks; each reads for itself where no record can be left."""
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
