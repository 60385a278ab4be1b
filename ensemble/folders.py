"""Folders that are complete or absent, and the manifest that lists their content.

Prepared data, a tree member, a checkpoint and a fitted ensemble are such folders. They are written under a temporary name,
synced, and renamed. `manifest.json` contains the kind of the folder, and the size and SHA-256 of every file. The
`fingerprint`, a hash of the manifest, identifies the data, so that members of different data are not combined by accident.
"""

import dataclasses
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble import verification
from ensemble.errors import UserError, shortened
from ensemble.verification import sha256

NAME = "manifest.json"
PREPARED = "prepared data"
"""The kind of a folder of prepared data."""
TRIAL = "trial"
"""The subfolder of a network's run for the first part of its refit (neural/refit.py)."""
NEWEST = "newest"
"""The subfolder of a member for the model that was also trained on blend, and predicts the splits after blend."""
MARK = "written by accelerate-ensemble"
"""Text near the beginning or the end of each single file that a command may replace."""
_MARKS = (MARK.encode(), b'"versions": {"accelerate-ensemble"')
_MARKED_BYTES = 1 << 24
"""Bytes at each end of a file in which a mark is searched. In Parquet, the names of the columns follow it."""
FILES_OF_DESKTOPS = (".DS_Store", "Thumbs.db", "desktop.ini")
"""Files that a file manager writes into a folder that a user looks at; they do not count as files of the user."""
_SCRATCH = re.compile(r"\..+\.(writing|old)-[0-9a-f]{8}|\.(step|trees)-[0-9]{8}\.old|\.pages-[0-9a-z]+")
_checks: dict[Path, Callable[[Path], None]] = {}
"""Checks of folders before they are renamed to their final name, by path: see `checked`."""


@contextmanager
def new_folder(path: str | Path, overwrite: bool, kind: str) -> Iterator[Path]:
    """Yield a scratch folder beside `path`; rename it to `path` at the end, or delete it if an exception was raised.

    With `overwrite` an existing folder is replaced when the new one is complete, if the manifest of the existing folder has
    the same `kind` and lists all files in it. An empty folder is used without `overwrite` too. Raises `UserError` if `path`
    exists and may not be replaced, lies inside a folder with a manifest, or cannot be created.
    """
    target = Path(path).resolve()  # a link to a folder elsewhere stays a link
    refuse_inside(path)
    if not _is_free(target):
        if not overwrite:
            raise UserError(f"{path} exists already: choose another folder, or add overwrite=true to replace it")
        refuse_foreign_folder(path, kind)
    if target.exists() and (target.is_mount() or target == Path.cwd()):
        raise UserError(f"{path} is the current folder or a mounted disk, which cannot be replaced: name a folder inside it")
    unique = uuid.uuid4().hex[:8]  # process ids repeat: in a container every run may have the same one
    scratch, old = (target.with_name(f".{target.name}.{state}-{unique}") for state in ("writing", "old"))
    discard_abandoned(target.parent.glob(f".{glob.escape(target.name)}.writing-{'[0-9a-f]' * 8}"))
    replaced = list(target.parent.glob(f".{glob.escape(target.name)}.old-{'[0-9a-f]' * 8}"))  # left by killed processes
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"the folder {path} cannot be created: {error.strerror}") from None
    with locked(scratch, "writing"):  # so that `discard_abandoned` of another process keeps it
        try:
            yield scratch
            if check := _checks.get(target):
                check(scratch)
            for file in scratch.rglob("*"):
                if file.is_file():
                    sync(file)
            if not _is_free(target):
                if not overwrite:
                    raise UserError(f"{path} was written by another run in the meantime: choose another folder")
                target.rename(old)
            scratch.rename(target)
            sync(target.parent)
            if old.exists() and not discard(old):
                kept = target.with_name(f"{target.name}.replaced-{unique}")
                old.rename(kept)
                print(f"{kept} keeps {foreign(kept)}, which was added to {path} while the new folder was written")
            for folder in replaced:
                discard(folder)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def discard_abandoned(paths: Iterable[Path], also_empty: bool = False) -> None:
    """Delete the scratch folders that killed processes left, which are those without a lock.

    A running process locks its scratch folder after creating it and before writing into it, so an empty folder is deleted
    only with `also_empty`. If the file system has no locks, no folder is deleted.
    """
    for path in paths:
        with suppress(OSError, UserError):
            if _SCRATCH.fullmatch(path.name) and (also_empty or any(path.iterdir())):
                with locked(path, "writing") as is_locked:
                    discard_scratch([path] if is_locked else [])


def refuse_foreign_folder(path: str | Path, kind: str) -> None:
    """Raise `UserError` for a folder of another kind, and for one with a file that its manifest does not list.

    A path that does not exist is accepted, and so is an empty folder.
    """
    target = Path(path).resolve()
    if _is_free(target):
        return
    if not target.is_dir() or _content(target).get("kind") != kind:
        raise UserError(
            f"{path} was not written by this stage (it has no manifest.json of the kind '{kind}'), so it is not "
            "replaced: choose another folder"
        )
    if name := foreign(target):
        raise UserError(
            f"{path} holds {name}, which its manifest does not list, so the folder is not replaced: move that file "
            "elsewhere, or choose another folder"
        )


def _is_free(target: Path) -> bool:
    """Whether the path does not exist, or is an empty folder."""
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


def _content(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, without any check; empty if there is none that is a JSON object."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def foreign(folder: Path, own: Iterable[str] = ()) -> str | None:
    """The first file in a folder that the project did not write: neither its manifest nor `own` lists it. None without one.

    `.verified.json`, scratch files of killed processes and files of file managers do not count. Folders of folds have
    manifests of their own, which count if the folder's manifest contains their fingerprints.
    """
    written = {*own, *_listed(folder)}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        is_counted = file.is_symlink() or not file.is_dir()
        is_ignored = file.name in (verification.NAME, *FILES_OF_DESKTOPS) or _SCRATCH.fullmatch(file.name)
        if is_counted and name not in written and not is_ignored:
            return name
    return None


def _listed(folder: Path) -> Iterator[str]:
    content = _content(folder)
    files, folds = content.get("files"), content.get("folds")
    if not isinstance(files, dict):
        return
    yield NAME
    yield from files
    for number, fold in enumerate(folds if isinstance(folds, list) else ()):
        name = f"folds/{number}"
        if isinstance(fold, dict) and _content(folder / name).get("fingerprint") == fold.get("fingerprint"):
            yield from (f"{name}/{file}" for file in _listed(folder / name))


def set_aside(folder: Path, own: Iterable[str] = ()) -> Path:
    """Rename a damaged folder to damaged-NAME, and return the new path. An older folder of this name is deleted if the
    project wrote all files in it; otherwise the new name gets a random suffix."""
    aside = folder.with_name(f"damaged-{folder.name}")
    if aside.exists() and not discard(aside, own):
        aside = aside.with_name(f"{aside.name}-{uuid.uuid4().hex[:8]}")
    return folder.rename(aside)


def discard(folder: Path, own: Iterable[str] = ()) -> bool:
    """Delete a folder that the project wrote, unless `foreign` finds a file in it; return whether it was deleted."""
    if not folder.is_dir() or foreign(folder, own):
        return False
    delete(folder)
    return True


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one. It is renamed first, so that an interrupted deletion does not look like a damaged
    folder, unless it already has the name of a scratch folder."""
    if folder.is_symlink():
        folder.unlink()
        return
    if not _SCRATCH.fullmatch(folder.name):
        folder = folder.rename(folder.with_name(f".{folder.name}.writing-{uuid.uuid4().hex[:8]}"))
    shutil.rmtree(folder, ignore_errors=True)


def discard_scratch(paths: Iterable[Path]) -> None:
    """Delete the half-written files and folders of killed processes: those with a name that only this project uses."""
    for path in paths:
        if _SCRATCH.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def weights_of(run: Path) -> list[Path]:
    """The folders of a network's weights: the best ones and, after a refit, those that predict the splits after blend."""
    return [folder for folder in (run / "best", run / NEWEST / "final") if folder.is_dir()]


def joint_fingerprint(paths: Sequence[Path]) -> str:
    """The fingerprint of a folder, or a hash of the fingerprints of several folders, after comparing all checksums."""
    fingerprints = [verify(path)["fingerprint"] for path in paths]
    return fingerprints[0] if len(paths) == 1 else hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


def refuse_inside(path: str | Path) -> None:
    """Raise `UserError` for an output inside a folder with a manifest, since the manifest does not list it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(path)  # raises for names that are too long and for closed folders; from Python 3.14 on `exists` is False
    for folder in Path(path).resolve().parents:
        if {"fingerprint", "files"} <= (content := _content(folder)).keys():
            what = "prepared data" if "recipe" in content else f"a finished {content.get('kind')}"
            raise UserError(f"{path} lies inside {folder}, which is {what}: choose a place outside of it")


def refuse_unwritable(path: str | Path, unfinished: Path | None = None) -> None:
    """Raise `UserError` for a file that could not be written later: its folder is a file, is not writable, or lies inside a
    folder with a manifest or inside `unfinished`, which will have one."""
    folder = Path(path).resolve().parent
    refuse_inside(path)
    if unfinished and folder.is_relative_to(unfinished):
        raise UserError(f"{path} lies inside {unfinished}, in which the training is written: choose a place outside of it")
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        reason = "is not writable" if place.is_dir() else "is a file"
        raise UserError(f"{path} cannot be written, since {place} {reason}: choose another folder")


@contextmanager
def checked(path: str | Path, check: Callable[[Path], None]) -> Iterator[None]:
    """Within this context, `new_folder` of `path` calls `check` with the complete folder before renaming it."""
    target = Path(path).resolve()
    _checks[target] = check
    try:
        yield
    finally:
        del _checks[target]


def recover(path: Path) -> None:
    """Restore a folder if the process that replaced it was killed between the two renames. Delete the folders that other
    killed processes replaced, but none with a file that its manifest does not list."""
    replaced = path.parent.glob(f".{glob.escape(path.name)}.old-{'[0-9a-f]' * 8}")
    for old in sorted(replaced, key=lambda old: old.lstat().st_ctime_ns, reverse=True):  # the last one renamed is first
        if path.exists():
            discard(old)
        else:
            old.rename(path)


LOCK_WAIT_S = 30.0
"""How long a training waits for another one in its folder, such as the processes of a killed job that are ending."""


@contextmanager
def locked(folder: Path, use: str, wait_s: float = 0.0, shared: bool = False) -> Iterator[bool]:
    """Lock an existing folder, and yield whether its file system has locks; another command that locks it must wait.

    use : what the commands do with the folder, such as "training in". shared : whether other commands may hold such a lock
    too. Raises `UserError` if another command still holds the lock after `wait_s`.
    """
    descriptor, deadline, is_locked = os.open(folder, os.O_RDONLY), time.monotonic() + wait_s, True
    try:
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    sentence = f"another command is {use} {folder}: wait until it has ended, or choose another out=…"
                    raise UserError(sentence) from None
                time.sleep(0.1)
            except OSError:  # no locks here
                is_locked = False
                break
        yield is_locked
    finally:
        os.close(descriptor)


@contextmanager
def new_file(path: Path, kind: str) -> Iterator[Path]:
    """As `replacing`. Raises `UserError` if the file cannot be written, or would replace a file without the project's mark.

    kind : kind of file, such as "prediction file", for messages
    """
    refuse_foreign_file(path, kind)
    target = path.resolve()  # a link to a file elsewhere stays a link
    is_new = not target.parent.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(target) as scratch:
                yield scratch
        finally:
            with suppress(OSError):
                if is_new:
                    target.parent.rmdir()  # fails unless it is empty
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # the text of pyarrow is longer
        raise UserError(f"the {kind} {path} cannot be written: {why}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; sync and rename it at the end, or delete it if an exception was raised.

    Readers see the old file or the new one, never a part. The scratch path is absolute, since pyarrow takes a relative one
    such as `lr:0.1/x` for a URL.
    """
    scratch = path.absolute().with_name(f".{path.name}.writing-{uuid.uuid4().hex[:8]}")
    try:
        yield scratch
        sync(scratch)
        scratch.rename(path)
    finally:
        with suppress(OSError):  # even this fails if the name is too long
            scratch.unlink(missing_ok=True)


def refuse_foreign_file(path: Path, kind: str) -> None:
    """Raise `UserError` as `refuse_inside` does, or if `path` exists, is not empty, and this project did not write it."""
    refuse_inside(path)
    if not path.exists():
        return
    if not path.is_file():
        raise UserError(f"{path} is not a file, so the {kind} cannot take its place: choose another name")
    try:
        with open(path, "rb") as file:
            content = file.read(_MARKED_BYTES)
            file.seek(max(0, path.stat().st_size - _MARKED_BYTES))
            content += file.read(_MARKED_BYTES)
    except OSError as error:
        raise UserError(f"the {kind} {path} cannot be written: {error.strerror or error}") from None
    if content and not any(mark in content for mark in _MARKS):
        raise UserError(
            f"{path} exists and this project did not write it, so the {kind} does not replace it: choose another name, or "
            "move it"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file as by `replacing`."""
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, as `write_text` does."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file; `UserError` if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} does not exist: check the path, or run the stage that writes it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): run the stage that wrote it again") from None


def first_entries(recipe: str, version: int, task: Any = None) -> dict[str, Any]:
    """The first entries of the manifest of prepared data. task : an instance of `task.Task`; None for data without one."""
    entries = {"kind": PREPARED, "recipe": recipe, "schema_version": version}
    return {**entries, "task": dataclasses.asdict(task)} if task else entries


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a network's run, oldest first; not folders with other names, such as a user's copies."""
    paths = (path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")))


def write_manifest(
    folder: Path,
    content: dict[str, Any],
    checksums: dict[tuple[int, int], str] | None = None,
    leave_out: str | None = None,
    only: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Add the list of files and the fingerprint to `content`, write it as the folder's manifest, and return it. NumPy's
    numbers are written as those of Python.

    checksums : by device and inode; new ones are added, so that a file with hard links in several folders is read once.
    leave_out : a subfolder whose files are not listed, since the folders in it have manifests of their own. only : the names
    of the files to list; None for all.
    """
    checksums = {} if checksums is None else checksums
    files = {}
    for file in sorted(folder.rglob("*") if only is None else (folder / name for name in only)):
        name = file.relative_to(folder)
        if file.is_file() and name.parts[0] != leave_out and file.name != verification.NAME:
            status = file.stat()
            inode = (status.st_dev, status.st_ino)
            if inode not in checksums:
                checksums[inode] = sha256(file)
            files[str(name)] = {"bytes": status.st_size, "sha256": checksums[inode]}
    manifest = {**content, "files": files}
    written = json.loads(json.dumps(manifest, default=_number))
    manifest["fingerprint"] = written["fingerprint"] = fingerprint_of(written)
    write_json(folder / NAME, written)
    return manifest


def _number(value: Any) -> Any:
    """A number of NumPy as one of Python; `UserError` for another object that JSON does not have."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # the last one: a tensor with several numbers
        rule = "write numbers, texts, lists and dicts, and a dataclass by dataclasses.asdict"
        raise UserError(f"a manifest cannot have a {type(value).__name__}, as {shortened(repr(value))}: {rule}") from None


def sources(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The entry `sources` of a manifest: name, size and checksum of each file, without its folder."""
    return [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files]


def read_manifest(folder: str | Path, is_full: bool = False) -> dict[str, Any]:
    """The manifest of prepared data, after checking that it is valid and that every file is unchanged.

    Checksums are computed for files that changed since the last check (verification.py), or with `is_full` for all files,
    also those of the folds. Raises `UserError` for a folder of another kind, and for the first file that is missing or was
    changed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no prepared data at {folder}: run scripts/prepare_data.py first, or check the path")
    manifest = _read(folder)
    if "recipe" not in manifest:
        raise UserError(
            f"{folder} is of kind '{manifest['kind']}', not prepared data: give a folder that scripts/prepare_data.py wrote"
        )
    if name := verification.first_changed(folder, manifest, is_full):
        raise _changed(folder / name)
    for number in range(len(manifest.get("folds", ())) if is_full else 0):
        read_manifest(folder / "folds" / str(number), is_full)
    return manifest


def _changed(file: Path) -> UserError:
    return UserError(f"{file} was changed after it was written: run the stage that wrote it again")


def verify(folder: str | Path) -> dict[str, Any]:
    """The manifest of any folder, after comparing all checksums; `UserError` for the first file that was changed."""
    manifest = _read(Path(folder))
    for name, entry in manifest["files"].items():
        if sha256(Path(folder) / name) != entry["sha256"]:
            raise _changed(Path(folder) / name)
    return manifest


def _read(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / NAME)
    if not isinstance(manifest, dict) or manifest.get("fingerprint") != fingerprint_of(manifest):
        raise _changed(folder / NAME)
    for name, entry in manifest["files"].items():
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{folder / NAME} lists {name}, a file outside of the folder: use another copy of the folder")
        if not file.is_file():
            raise UserError(f"{file} is missing, though the manifest lists it: run the stage that wrote it again")
        if (size := file.stat().st_size) != entry["bytes"]:
            raise UserError(f"{file} has {size} bytes, not {entry['bytes']}: run the stage that wrote it again")
    return manifest


def fingerprint_of(manifest: dict[str, Any]) -> str:
    """The fingerprint of a manifest: a checksum of its other entries."""
    other_entries = {name: value for name, value in manifest.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(other_entries, sort_keys=True).encode()).hexdigest()[:16]


def sync(path: Path) -> None:
    """Flush a file, or the list of names of a folder, from the cache of the operating system to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
