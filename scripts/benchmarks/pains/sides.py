"""Launch both sides of a complaint, plain Accelerate and this project, and compare their results with the expected ones.

A complaint is a problem that users of plain Accelerate report in issues; one module of this folder reproduces it. In
names, `plain` stands for plain Accelerate, and `here` for this project.
"""

import dataclasses
import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.pains import rows
from benchmarks.pains.recipe.settings import NAME
from benchmarks.runs import launcher
from benchmarks.timing import ROOT, SCRIPTS, call, timed
from ensemble import folders

NUM_ROWS, BATCH_SIZE, RANKS, EPOCHS = 192, 8, 2, 2
"""The sizes of trainings that are interrupted; an epoch has 12 steps."""
SHARDED: list[str | Path] = [
    "--config_file", ROOT / "accelerate_configs" / "multi_cpu_sharded.yaml",
    "--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "50",
]  # fmt: skip
"""Options of the launcher for FSDP2 on CPU ranks. They follow other options: of two --config_file, the last one counts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """The result of one side of a complaint."""

    wrong_rows: int = 0
    """Rows that were not used in the expected step, or were used with another weight."""
    rows: int = 0
    """Rows that should have been used."""
    seconds: float | None = None
    """CPU seconds of the first process, from its start to the end of its first step; of the resumed run if there is one. For
    checkpoint_stall, the seconds that a checkpoint adds to a step."""
    code_run: int = 0
    """Files of a checkpoint that ran code when it was loaded."""
    outside: int = 0
    """Files outside a checkpoint that were read when it was loaded."""
    wrong_weights: int = 0
    """Tensors of the final weights that differ from those of the uninterrupted run."""
    note: str = ""
    """A remark, such as the steps and weights that are wrong."""

    @property
    def is_wrong(self) -> bool:
        return bool(self.wrong_rows or self.code_run or self.outside or self.wrong_weights)


Reproduced = tuple[dict[str, Side], Side] | tuple[dict[str, Side], Side, dict[str, Any]]
"""Plain Accelerate's results by variant, first the variant that the issues report; this project's result; other JSON
entries."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """The settings of a process of plain Accelerate."""

    complaint: str
    """The name of the complaint's module."""
    out: str
    """The folder for checkpoints, the record and other results."""
    resume: str = ""
    """A checkpoint of Accelerate, in a folder step_NUMBER, to resume from."""
    variant: str = ""
    """The variant of the complaint, if its function `rank` distinguishes several."""
    sampler: Literal["default", "seedable", "stateful"] = "default"
    """How a run is resumed: skip_first_batches with the default or a seedable sampler, or a stateful DataLoader."""
    shuffle: bool = True
    num_rows: int = NUM_ROWS
    max_tokens: int = 1
    """The largest number of tokens of a row; the smallest is 1."""
    batch_size: int = BATCH_SIZE
    """Rows in a batch of one process."""
    accumulation: int = 1
    """Batches of a process in one optimizer step."""
    epochs: int = EPOCHS
    save_at: tuple[int, ...] = ()
    """Steps after which a checkpoint is saved. A step is one batch of a process, also with accumulation."""
    last_step: int = 0
    """The step, counted as in `save_at`, after which the training ends; 0 for the last step of all `epochs`."""
    keep_weights: bool = False
    """Write the final weights to `out`/final.safetensors."""
    extra_width: int = 0
    """As in `RecipeConfig` of the recipe."""


def rank(settings: dict[str, Any]) -> None:
    """A process of plain Accelerate: the function `rank` of the complaint's module, or the training of plain.py."""
    run = Plain(**settings)
    module = importlib.import_module(f"benchmarks.pains.{run.complaint}")
    (module.rank if hasattr(module, "rank") else importlib.import_module("benchmarks.pains.plain").train)(run)


def plain_command(complaint: str, folder: Path, start: Sequence[str | Path], **settings: Any) -> list[Any]:
    """The command that calls `rank` with settings of `Plain`, launched by the words `start`."""
    return recorded([*start, *call(rank, {"complaint": complaint, "out": str(folder), **settings})], folder)


def plain(complaint: str, folder: Path, ranks: int = RANKS, options: Sequence[str | Path] = (), **settings: Any) -> Path:
    """Launch plain Accelerate with `options` of the launcher and settings of `Plain`; returns `folder`, with the record."""
    folder.mkdir(exist_ok=True)
    timed(plain_command(complaint, folder, [*launcher(ranks), *options], **settings))
    return folder


def prepared(folder: Path, num_rows: int = NUM_ROWS, max_tokens: int = 1) -> Path:
    """The prepared data of this size in a subfolder of `folder`, written if they are not there.

    They consist of a manifest only, since `Rows` computes its rows: a million batches need no space on disk.
    """
    data = folder / f"data-{num_rows}-{max_tokens}"
    if not data.exists():
        config = {"num_rows": num_rows, "max_tokens": max_tokens}
        splits = {"train": {"rows": num_rows}, "validation": {"rows": 8}}
        manifest = {"kind": "prepared data", "recipe": NAME, "config": config, "splits": splits, "alike": {}}
        with folders.new_folder(data, False, "prepared data") as new:
            folders.write_manifest(new, manifest)
    return data


def train_command(data: Path, out: Path, start: Sequence[str | Path], *options: str, **settings: Any) -> list[Any]:
    """The command of scripts/train.py, with the global batch of `RANKS` ranks; a setting a.b is written `a__b`."""
    values = {
        "batch_size": BATCH_SIZE * RANKS, "max_epochs": EPOCHS, "evaluations_per_epoch": 1, "patience": 1000,
        "warmup_steps": 0, "schedule": "constant", "clip_norm": 0, "keep_last": 1000, "trackers": "[]", **settings,
    }  # fmt: skip
    words = [f"{name.replace('__', '.')}={value}" for name, value in {"data": data, "out": out, **values}.items()]
    return recorded([*start, SCRIPTS / "train.py", "--recipe", NAME, *options, *words], record_of(out))


def record_of(out: Path) -> Path:
    """The folder of the record of a training of this project that writes to `out`."""
    return out.with_name(f"{out.name}-record")


def here(
    data: Path, out: Path, *options: str, ranks: int = RANKS, start: Sequence[str | Path] = (), **settings: Any
) -> Path:
    """Train with this project; returns the folder of the record. `options` are for train.py, `start` for the launcher."""
    timed(train_command(data, out, [*launcher(ranks), *start], *options, **settings))
    return record_of(out)


def attempt(command: Sequence[Any]) -> tuple[int, str]:
    """The exit code of a command that may be refused, and what it wrote to its standard error."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def recorded(command: Sequence[Any], folder: Path) -> list[Any]:
    """The command with the environment in which `Recorder` writes a record to `folder`."""
    path = os.pathsep.join(str(part) for part in (ROOT, os.environ.get("PYTHONPATH", "")) if part)
    return ["env", f"PAINS_RECORD={folder}", f"PYTHONPATH={path}", "OMP_WAIT_POLICY=PASSIVE", *command]


def sign(checkpoint: Path) -> None:
    """Write a new manifest with the checksums of an edited checkpoint."""
    (checkpoint / folders.NAME).unlink()
    folders.write_manifest(checkpoint, {"kind": "checkpoint"})


def compared(record: Path, expected: list[rows.Step], note: str = "") -> Side:
    """The result of a run: the steps of its record, compared with the expected ones."""
    return Side(
        wrong_rows=rows.misplaced(rows.steps(record), expected),
        rows=sum(len(step) for step in expected),
        seconds=rows.first_step_s(record),
        note=note,
    )


def interrupted_here(folder: Path, step: int) -> Side:
    """Resume a run of this project, with shuffled rows, from the checkpoint of `step`, and compare it with the whole run.

    folder : the folder of a complaint; all complaints share the data and the uninterrupted run beside it
    """
    data, whole = prepared(folder.parent), folder.parent / "whole"
    if not record_of(whole).exists():
        here(data, whole, checkpoint_steps=1)
    checkpoint = whole / "checkpoints" / f"step-{step:08d}"
    after = here(data, folder / f"resumed-{step}", "--resume", str(checkpoint), checkpoint_steps=1)
    return compared(after, rows.steps(record_of(whole))[step:])
