"""The checkpoints of a training of trees, in a folder beside the member's, until the member is finished.

    OUT.checkpoint/status             running | preempted | lost | failed; after the last two, the reason on a second line
    OUT.checkpoint/trees-00000120/    model.ubj | model.txt   state.json   manifest.json: the first 120 trees

The copies of a bag, OUT/0, OUT/1 …, share OUT.checkpoint/status.

A checkpoint is written under a temporary name, synced and renamed, so every folder trees-… is complete. A damaged checkpoint
is recognised by its checksums and reported, and the one before it is used. Only rank 0 reads and writes checkpoints; any
rank may write `status`.
"""

import glob
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ensemble import folders
from ensemble.errors import UserError, in_a_line

KEEP_LAST = 2
"""Checkpoints to keep; if the newest is damaged, only the trees since the one before it are lost."""


class Checkpoints:
    """The checkpoints of the member at `out`.

    file : the name of the model's file. status_of : the bag that the member is a copy of, beside which `status` is written.
    """

    def __init__(self, out: str | Path, file: str, status_of: str | Path = ""):
        target = Path(out).resolve()
        self.folder = target.with_name(f"{target.name}.checkpoint")
        self._status_folder = Checkpoints(status_of, file).folder if status_of else self.folder
        self._target, self._file = target, file
        self._is_locked = False
        self._own = (file, "state.json", folders.NAME)
        """The files of a checkpoint, known even if its manifest is damaged."""

    def all(self) -> list[Path]:
        """The folders of the checkpoints, newest first; not folders with other names, such as a user's copies."""
        return sorted((path for path in self.folder.glob("trees-*") if path.name[6:].isdecimal()), reverse=True)

    def newest_valid(self) -> tuple[bytes, dict[str, Any]] | None:
        """Model and state of the newest checkpoint whose checksums are right, or None; damaged ones are renamed."""
        for folder in self.all():
            try:
                (model,) = folders.verify(folder)["files"].keys() - {"state.json"}  # maybe the model of another library
                return (folder / model).read_bytes(), folders.read_json(folder / "state.json")
            except UserError as error:
                aside = folders.set_aside(folder, self._own)
                print(f"skipped a damaged checkpoint, which is now {aside.name}: {error}")
        return None

    def write(self, model: bytes, state: dict[str, Any]) -> None:
        """Write the checkpoint of the trees in `state["history"]`; `UserError` if the disk is full or cannot be written."""
        folder = self.folder / f"trees-{len(state['history']):08d}"
        try:
            with folders.new_folder(folder, True, "checkpoint") as scratch:
                (scratch / self._file).write_bytes(model)
                folders.write_json(scratch / "state.json", state)
                folders.write_manifest(scratch, {"kind": "checkpoint"})
            for old in self.all()[KEEP_LAST:]:
                folders.discard(old)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written ({error}): free disk space, and continue with --resume auto"
            ) from None

    def set_status(self, status: Literal["running", "preempted", "lost", "failed"], reason: str = "") -> None:
        try:
            self._status_folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UserError(
                f"{self._status_folder} is a file, but must be a folder: move it, or name another out="
            ) from None
        folders.write_text(self._status_folder / "status", "".join(f"{line}\n" for line in (status, reason) if line))

    def set_lost(self, reason: str) -> None:
        with suppress(OSError):  # a full disk must not hide the error
            self.set_status("lost", reason)

    @contextmanager
    def failure_marked(self) -> Iterator[None]:
        """Write the message of an exception to `status`; without checkpoints, delete `status` and, if empty, the folder."""
        try:
            yield
        except BaseException as error:
            with suppress(OSError):
                if self.all():
                    self.set_status("failed", in_a_line(error))
                else:
                    self._is_locked = False  # a rank of several ends now, without the end of `locked`
                    self.clear()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the checkpoints against other commands that train this member; `UserError` after `folders.LOCK_WAIT_S`."""
        while True:
            with suppress(OSError):  # a parent that cannot be written: the training itself raises the error
                self.folder.mkdir(parents=True, exist_ok=True)
            if not self.folder.is_dir():
                yield
                return
            use = f"training {self._target}, with checkpoints in"
            with ExitStack() as lock:
                try:  # the command before may delete the folder, and a lock on a deleted folder stops no one
                    inode = self.folder.stat().st_ino
                    lock.enter_context(folders.locked(self.folder, use, folders.LOCK_WAIT_S))
                    if self.folder.stat().st_ino != inode:
                        continue
                except FileNotFoundError:
                    continue
                self._is_locked = True
                try:
                    yield
                finally:
                    if self._is_locked:
                        with suppress(OSError):  # it has checkpoints
                            self.folder.rmdir()
                    self._is_locked = False
                return

    def sweep(self) -> None:
        """Delete incomplete files of killed processes and members that they replaced; restore a member whose replacement was
        killed between renames."""
        folders.recover(self._target)
        unfinished = self._target.parent.glob(f".{glob.escape(self._target.name)}.writing-*")
        folders.discard_scratch([*unfinished, *self.folder.glob(".*")])

    @contextmanager
    def page_folder(self, rank: int) -> Iterator[Path]:
        """A folder for rows that a rank keeps on disk during training."""
        folder = self.folder / f".pages-{rank}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if rank > 0:
                with suppress(OSError):  # not empty, since it is shared with rank 0
                    self.folder.rmdir()

    def clear(self) -> None:
        """Delete the checkpoints and the status. Files that no training wrote are kept, and then the folder is kept too."""
        for folder in [*self.all(), *self.folder.glob("damaged-trees-*")]:
            folders.discard(folder, self._own)
        with suppress(OSError):
            folders.discard_scratch(self.folder.glob(".*"))
            (self._status_folder / "status").unlink(missing_ok=True)
            if self._status_folder != self.folder:
                self._status_folder.rmdir()
            if not self._is_locked:  # the lock is that of this folder
                self.folder.rmdir()
