"""A folder that is either whole or not there, and the manifest that says what is in it.

Prepared data, a tree member, a checkpoint and a fitted ensemble are each such a folder: it is written beside its final
name, synced, and renamed. `manifest.json` says its kind and lists every file with its size and SHA-256; the `fingerprint`
over the manifest names the data, so that members trained on different data can never be joined by accident.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ensemble.errors import UserError

NAME = "manifest.json"


@contextmanager
def new_folder(path: str | Path, overwrite: bool, kind: str) -> Iterator[Path]:
    """Yield a scratch folder beside `path`; rename it to `path` at the end, or delete it if anything was raised.

    What `overwrite` replaces stays where it is until the new folder is whole. `kind` is what the manifest of
    a folder of this kind says: a folder of another is not replaced, unless it is empty.
    Raises `UserError` when `path` exists and may not be replaced, or when its parent cannot be written.
    """
    target = Path(path).resolve()  # a link to a folder elsewhere stays a link
    if target.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another folder, or add overwrite=true to replace it")
    if target.exists() and not (target.is_dir() and (_kind(target) == kind or not any(target.iterdir()))):
        raise UserError(
            f"{path} was not written by this stage (it is no {kind}), so it is not replaced: choose another folder"
        )
    unique = uuid.uuid4().hex[:8]  # process ids repeat: in a container every run may have the same
    scratch, old = (target.with_name(f".{target.name}.{state}-{unique}") for state in ("writing", "old"))
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"the folder {path} cannot be created: {error.strerror}") from None
    try:
        yield scratch
        for file in scratch.rglob("*"):
            if file.is_file():
                sync(file)
        if target.exists():
            if not overwrite:
                raise UserError(f"{path} was written by another run in the meantime: choose another folder")
            target.rename(old)
        scratch.rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _kind(folder: Path) -> str | None:
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("kind") if isinstance(content, dict) else None


def recover(path: Path) -> None:
    """Put back a folder whose replacement was killed between its two renames."""
    for old in sorted(path.parent.glob(f".{path.name}.old-*")):
        if not path.exists():
            old.rename(path)


@contextmanager
def new_file(path: Path, what: str) -> Iterator[Path]:
    """Yield a scratch path beside `path`, and sync and rename it at the end, or delete it if anything was raised.

    Raises `UserError`, which calls the file `what`, when it cannot be written.
    """
    scratch = path.with_name(f".{path.name}.writing-{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield scratch
            sync(scratch)
            scratch.rename(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be written: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Write beside `path`, sync, rename: a reader sees the old file or the new one, never a part, whoever else writes."""
    scratch = path.with_name(f".{path.name}.writing-{uuid.uuid4().hex[:8]}")
    try:
        scratch.write_text(text, encoding="utf-8")
        sync(scratch)
        scratch.rename(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as `write_text` writes."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file; `UserError` when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: check the path, or run the stage that writes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): run the stage that wrote it again") from None


def write_manifest(
    folder: Path,
    content: dict[str, Any],
    checksums: dict[tuple[int, int], str] | None = None,
    leave_out: str | None = None,
) -> dict[str, Any]:
    """Add the list of files and the fingerprint to `content`, and write it as the folder's manifest.

    checksums : by device and inode; it is added to, so that a file of several folders is read once. leave_out : a folder
    in it whose files are not listed, for they have manifests of their own.
    """
    checksums = {} if checksums is None else checksums
    files = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and name.parts[0] != leave_out:
            about = file.stat()
            inode = (about.st_dev, about.st_ino)
            if inode not in checksums:
                checksums[inode] = sha256(file)
            files[str(name)] = {"bytes": about.st_size, "sha256": checksums[inode]}
    manifest = {**content, "files": files}
    manifest["fingerprint"] = _fingerprint(manifest)
    write_json(folder / NAME, manifest)
    return manifest


def sources(files: Iterable[Path]) -> list[dict[str, Any]]:
    """A manifest's entry `sources`: of each file the name, the size and the checksum, but no folder."""
    return [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files]


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of prepared data, after checking that it is sound and that every file is there with its size.

    Raises `UserError` for a folder of another kind, and naming the first file that is missing or has another size.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no prepared data at {folder}: run scripts/prepare_data.py first, or check the path")
    manifest = _read(folder)
    if "recipe" not in manifest:
        raise UserError(f"{folder} is no prepared data but a {manifest['kind']}: name a folder of scripts/prepare_data.py")
    return manifest


def verify(folder: str | Path) -> dict[str, Any]:
    """The manifest of any folder, after reading every file; `UserError` names the first that is not as it was written."""
    manifest = _read(Path(folder))
    for name, entry in manifest["files"].items():
        if sha256(Path(folder) / name) != entry["sha256"]:
            raise UserError(f"{Path(folder) / name} was changed after it was written: run the stage that wrote it again")
    return manifest


def _read(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / NAME)
    if not isinstance(manifest, dict) or manifest.get("fingerprint") != _fingerprint(manifest):
        raise UserError(f"{folder / NAME} was changed after it was written: run the stage that wrote it again")
    for name, entry in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise UserError(f"{file} is missing, though the manifest lists it: run the stage that wrote it again")
        if file.stat().st_size != entry["bytes"]:
            size = file.stat().st_size
            raise UserError(f"{file} has {size} bytes, not {entry['bytes']}: run the stage that wrote it again")
    return manifest


def _fingerprint(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Ask the operating system to bring a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
