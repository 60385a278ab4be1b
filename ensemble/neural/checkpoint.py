"""Checkpoints on disk: folders of safetensors and JSON with checksums; no pickle is ever written or loaded.

    RUN/checkpoints/step-00000100/   what --resume needs: weights and everything beside them
    RUN/best/  RUN/final/            what predictions need: weights, configuration and the meaning of the inputs

    model.safetensors       weights
    state.safetensors       moments, moving average, every rank's random state (in checkpoints/ only)
    state.json              step, scores, configuration, and the scalars of the optimizers
    manifest.json           each file's size and SHA-256

A folder is written beside its name, synced and renamed, so a name that is there is whole; a damaged one is found by its
checksums, named, and passed over for the one before it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ensemble import folders
from ensemble.errors import UserError

Tensors = dict[str, torch.Tensor]
OWN = ("model.safetensors", "state.safetensors", "state.json", folders.NAME)
"""Files of a checkpoint, also of one whose manifest is damaged."""


def write(folder: Path, weights: Tensors, description: dict[str, Any], state: Tensors | None = None) -> None:
    """Write weights, and the state beside them; a folder that is replaced stays until the new one is whole.

    Raises `UserError` when the disk is full or cannot be written.
    """
    with refuse_unwritable(folder), folders.new_folder(folder, True, "checkpoint") as scratch:
        fill(scratch, description, {"model": weights} if state is None else {"model": weights, "state": state})


@contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """A `UserError` in place of what the disk or a library says."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be written ({error}): make room, and go on from the checkpoint before it with --resume auto"
        ) from None


def fill(scratch: Path, description: dict[str, Any], tensors: dict[str, Tensors]) -> None:
    """The files of a checkpoint, each of `tensors` in one of its own, and their checksums."""
    for name, of_file in tensors.items():
        save_file(of_file, scratch / f"{name}.safetensors")
    (scratch / "state.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
    folders.write_manifest(scratch, {"kind": "checkpoint"})


def read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """The JSON state and the tensors beside the weights; `UserError` names a file that is damaged or missing."""
    return folders.read_json(folder / "state.json"), _load(folder / "state.safetensors")


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Load weights; `UserError` when the file is damaged or belongs to another model."""
    try:
        model.load_state_dict(_load(folder / "model.safetensors"))
    except RuntimeError as error:
        raise UserError(f"{folder} holds the weights of another model: {' '.join(str(error).split())[:300]}") from None


def of_step(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def is_sharded(folder: Path) -> bool:
    """Whether every rank wrote its own pieces (sharded.py)."""
    return any(folder.glob("shard-*.safetensors"))


def newest_sound(run: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint of a run whose every file is as it was written; each damaged one is named, and set aside."""
    for folder in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        try:
            folders.verify(folder)
        except UserError as error:
            aside = folders.set_aside(folder, OWN)
            say(f"passing over a damaged checkpoint, now {aside.name}: {error}")
        else:
            return folder
    return None


def prune(run: Path, keep_last: int, keep_steps: int, needed_step: int) -> None:
    """Delete all checkpoints but the newest `keep_last`, those at multiples of `keep_steps`, and that of `needed_step`."""
    for folder in sorted((run / "checkpoints").glob("step-*"))[:-keep_last]:
        step = int(folder.name.removeprefix("step-"))
        if step != needed_step and not (keep_steps and step % keep_steps == 0):
            folders.prune(folder)


def sweep(run: Path) -> None:
    """Put back a best/ that was killed between its two renames, and clear away what a kill left half-written."""
    for name in ("best", "final"):
        folders.recover(run / name)
    folders.discard_scratch([*run.glob(".*"), *(run / "checkpoints").glob(".*")])


class Writer:
    """Writes in the background, one thing after another; a failure surfaces at the next `check`, `submit` or at the end."""

    LONGEST = 4
    """What may wait to be written, so that snapshots do not pile up: a best, a checkpoint, and what they prune."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: deque[Future[None]] = deque()

    def submit(self, write: Callable[[], None]) -> None:
        """To be done after what was submitted before."""
        self.check()
        while len(self._pending) >= self.LONGEST:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(write))

    def check(self) -> None:
        """Raise what a write that has ended raised."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def wait(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        if error is None:
            self.wait()


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[Tensors, dict[str, Any]]:
    """An optimizer's state as named tensors and JSON; `restore_optimizer` is its inverse."""
    state = optimizer.state_dict()
    tensors, scalars = {}, {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{number}.{name}"] = value
            else:
                scalars[f"{number}.{name}"] = value
    return tensors, {"groups": state["param_groups"], "scalars": scalars}


def restore_optimizer(optimizer: torch.optim.Optimizer, prefix: str, tensors: Tensors, about: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        if key.startswith(f"{prefix}."):
            number, name = key.removeprefix(f"{prefix}.").split(".", 1)
            state.setdefault(int(number), {})[name] = tensor
    for key, value in about["scalars"].items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": about["groups"]})


def _load(file: Path) -> Tensors:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: name a checkpoint folder that train.py wrote") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}): use another checkpoint") from None
