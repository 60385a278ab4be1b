"""Checksums of a folder's files, read again only for files that changed since they were last read.

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
