"""Copies of a tree member that were trained in advance, each by a task of its own (single_copy.py), in OUT.copies.

    OUT.copies/2.checkpoint/trees-00000120/    copy.bin   state.json   manifest.json: 120 trees of copy 2

copy.bin contains the trees, and the predictions of the copy's rows for early stopping after each tree. `copies.train` reads
the trees instead of training them, and chooses their number by the pooled score. The member has the same bits either way.
"""

import io
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ensemble.trees.checkpoint import Checkpoints

FILE = "copy.bin"


class StoredCopy(NamedTuple):
    """The trees of a copy, and its predictions with each number of trees."""

    model: bytes
    predictions: np.ndarray
    """(T, n) or (T, n, K) for T trees, of the rows for early stopping, on the scale of the learned target. For libraries
    that train a copy to its end the losses, (T,)."""

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.save(file, self.predictions)
        return pack([self.model, file.getvalue()])

    @classmethod
    def from_bytes(cls, content: bytes) -> "StoredCopy":
        model, predictions = unpack(content)
        return cls(model, np.load(io.BytesIO(predictions)))


def checkpoints_of(out: str | Path, number: int) -> Checkpoints:
    """The checkpoints of a copy of the member for `out`."""
    return Checkpoints(_folder(out) / str(number), FILE)


def read(out: str | Path, num_copies: int, state: dict[str, Any]) -> dict[int, StoredCopy]:
    """The copies that were finished with the settings and data of `state`, by number."""
    copies = {}
    for number in range(num_copies):
        checkpoint = checkpoints_of(out, number).newest_valid()
        if checkpoint and has_state(checkpoint[1], state) and checkpoint[1]["is_whole"]:
            copies[number] = StoredCopy.from_bytes(checkpoint[0])
    return copies


def has_state(checkpoint_state: dict[str, Any], state: dict[str, Any]) -> bool:
    """Whether a checkpoint was written with the data and settings of `state`."""
    return all(checkpoint_state.get(name) == state[name] for name in ("fingerprint", "config"))


def clear(out: str | Path) -> None:
    """Delete the stored copies of a finished member."""
    for path in _folder(out).glob("*.checkpoint"):
        if path.stem.isdecimal():
            checkpoints_of(out, int(path.stem)).clear()
    with suppress(OSError):  # there is no folder, or it contains other files
        _folder(out).rmdir()


def _folder(out: str | Path) -> Path:
    target = Path(out).resolve()
    return target.with_name(f"{target.name}.copies")


def pack(models: Sequence[bytes]) -> bytes:
    """Several models as one file: a line of JSON with their lengths, then their bytes."""
    return json.dumps([len(model) for model in models]).encode() + b"\n" + b"".join(models)


def unpack(content: bytes) -> list[bytes]:
    header, _, models = content.partition(b"\n")
    ends = np.cumsum(json.loads(header)).tolist()
    return [models[begin:end] for begin, end in itertools.pairwise([0, *ends])]
