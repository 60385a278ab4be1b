"""Checkpoints on disk: folders of safetensors and JSON with checksums; no pickle is ever written or loaded.

    RUN/checkpoints/step-00000100/   for --resume: weights and the complete training state
    RUN/best/  RUN/final/            for predictions: weights, configuration and the description of the inputs

    model.safetensors       weights
    state.safetensors       in checkpoints/ only: optimizer moments, moving average, carried state, random state of each rank
    state.json              step, scores, configuration, and the scalars of the optimizers
    manifest.json           size and SHA-256 of each file

A folder is written under a temporary name, synced and renamed, so a folder with a final name is complete. Checksums reveal
a damaged checkpoint; it is reported and renamed, and the one before it is used.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ensemble import folders
from ensemble.errors import UserError

Tensors = dict[str, torch.Tensor]
FILE_NAMES = ("model.safetensors", "state.safetensors", "state.json", folders.NAME)
"""Files that belong to a checkpoint even if its manifest is damaged."""


def write(folder: Path, weights: Tensors, description: dict[str, Any], state: Tensors | None = None) -> None:
    """Write weights, `description` as state.json, and the training state if there is one.

    An existing folder is replaced only when the new one is complete. Raises `UserError` if the disk is full or read-only.
    """
    with report_write_errors(folder), folders.new_folder(folder, True, "checkpoint") as scratch:
        write_files(scratch, description, {"model": weights} if state is None else {"model": weights, "state": state})


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Raise errors of the file system and of safetensors as `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be written ({error}): free disk space, and resume from the previous checkpoint with "
            "--resume auto"
        ) from None


def write_files(folder: Path, description: dict[str, Any], tensors_by_file: dict[str, Tensors]) -> None:
    """Write the files of a checkpoint and their checksums into an existing folder; keys are file names without suffix."""
    for name, tensors in tensors_by_file.items():
        write_tensors(folder / f"{name}.safetensors", tensors)
    (folder / "state.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
    folders.write_manifest(folder, {"kind": "checkpoint"})


def write_tensors(file: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that other users may read and write as its new folder allows: those that the library writes
    since version 0.8 belong to the owner alone."""
    save_file(tensors, file, metadata)
    with suppress(OSError):  # a file system without permissions
        file.chmod(file.parent.stat().st_mode & 0o666)


def read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """The contents of state.json and state.safetensors; `UserError` names a file that is damaged or missing."""
    return folders.read_json(folder / "state.json"), _load(folder / "state.safetensors")


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Load weights into `model`; `UserError` if the file is damaged or belongs to another model."""
    try:
        model.load_state_dict(_load(folder / "model.safetensors"))
    except RuntimeError as error:
        raise UserError(f"{folder} holds the weights of another model: {' '.join(str(error).split())[:300]}") from None


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def is_sharded(folder: Path) -> bool:
    """Whether every rank wrote its own shards (sharded.py)."""
    return any(folder.glob("shard-*.safetensors"))


def newest_intact(run: Path, log: Callable[[str], None]) -> Path | None:
    """The newest checkpoint of a run whose files match their checksums; newer, damaged ones are logged and renamed."""
    return next((folder for folder in reversed(folders.checkpoints(run)) if is_intact(folder, log)), None)


def is_intact(folder: Path, log: Callable[[str], None]) -> bool:
    """Whether the files of a checkpoint match their checksums; if they do not, it is logged and renamed."""
    try:
        folders.verify(folder)
    except UserError as error:
        renamed = folders.set_aside(folder, FILE_NAMES)
        log(f"skipping a damaged checkpoint, renamed to {renamed.name}: {error}")
        return False
    return True


def prune(run: Path, keep_last: int, keep_steps: int, needed_step: int) -> None:
    """Delete all checkpoints but the newest `keep_last`, those at multiples of `keep_steps`, and that of `needed_step`."""
    for folder in folders.checkpoints(run)[:-keep_last]:
        step = int(folder.name.removeprefix("step-"))
        if step != needed_step and not (keep_steps and step % keep_steps == 0):
            folders.discard(folder)


def clean_up(run: Path) -> None:
    """Restore a best/ or final/ that was being replaced when the process was killed, and delete incomplete folders."""
    for name in ("best", "final"):
        folders.recover(run / name)
    folders.discard_scratch([*run.glob(".*"), *(run / "checkpoints").glob(".*")])


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """Runs write jobs in a thread, in order; the exception of a failed job is raised by `check`, `submit` or `wait`.

    Leaving the context waits for all jobs.
    """

    MAX_PENDING = 4
    """The largest number of jobs in the queue, each of which may contain a copy of the training state. `submit` blocks when
    the queue is full."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: deque[Future[None]] = deque()

    def submit(self, write: Callable[[], None]) -> None:
        self.check()
        while len(self._pending) >= self.MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(write))

    def check(self) -> None:
        """Raise the exception of a finished job, if one failed."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def wait(self) -> None:
        while self._pending:
            self._pending.popleft().result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pool.shutdown()
        if error is None:
            self.wait()


class CpuCopies:
    """Copies of tensors on the CPU, in memory that later copies use again once the earlier ones are written.

    Allocating new memory takes several times as long as copying, since the kernel clears it page by page.
    """

    def __init__(self) -> None:
        self._unused: dict[str, list[torch.Tensor]] = {}

    def copy(self, tensors: Tensors) -> Tensors:
        """Contiguous copies; of a sharded tensor, this rank's part."""
        copies = {}
        for name, tensor in tensors.items():
            unused = self._unused.get(name)
            copy = unused.pop() if unused else None
            if copy is not None and (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype):
                _local(copy).copy_(_local(tensor.detach()))
            else:
                copy = tensor.detach().to("cpu", copy=True).contiguous()
            copies[name] = copy
        return copies

    def release(self, copies: Tensors) -> None:
        """Allow later copies to overwrite these. Any thread may call it."""
        for name, copy in copies.items():
            self._unused.setdefault(name, []).append(copy)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this rank holds, or the tensor itself."""
    return getattr(tensor, "to_local", lambda: tensor)()


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[Tensors, dict[str, Any]]:
    """An optimizer's state as named tensors and JSON; `restore_optimizer` is the inverse.

    The entry `own_type` of the JSON names the tensors whose dtype differs from that of their parameter.
    """
    state = optimizer.state_dict()
    parameters = parameters_of(optimizer)
    tensors, scalars, own_type = {}, {}, []
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{number}.{name}"] = value
                if value.dtype != parameters[number].dtype:
                    own_type.append(f"{number}.{name}")
            else:
                scalars[f"{number}.{name}"] = value
    return tensors, {"groups": state["param_groups"], "scalars": scalars, "own_type": own_type}


def restore_optimizer(optimizer: torch.optim.Optimizer, prefix: str, tensors: Tensors, description: dict[str, Any]) -> None:
    """Load the state that `flatten_optimizer` returned; `tensors` may contain others, with other prefixes."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**with_prefix(f"{prefix}.", tensors), **description["scalars"]}.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": description["groups"]})
    # `load_state_dict` has cast all tensors to the dtype of their parameter, even if they had another one, such as float64
    parameters = parameters_of(optimizer)
    for key in description.get("own_type", []):
        number, name = key.split(".", 1)
        loaded = optimizer.state[parameters[int(number)]]
        if name in loaded:  # an optimizer's `load_state_dict` can store it under another name
            loaded[name] = state[int(number)][name].to(loaded[name].device)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """The parameters of all groups; an optimizer's state numbers them in this order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names start with `prefix`, which is removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _load(file: Path) -> Tensors:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: give a checkpoint folder that train.py wrote") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}): use another checkpoint") from None
