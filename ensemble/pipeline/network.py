"""Neural members of a fit: `accelerate launch -m ensemble.commands.train`, which is scripts/train.py."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ensemble import folders, recipe
from ensemble.errors import PREEMPTED, Failure, UserError
from ensemble.pipeline.plan import Planned, Preempted

OF_A_RUN = (
    "best", "checkpoints", "config.json", "curves.txt", "environment.json", "final", "manifest.json", "metrics.jsonl",
    "profile", "status", "summary.json", "tensorboard", "train.log", "val.log",
)  # fmt: skip
STARTING_S = 16.0
"""Seconds that the launcher, imports and predictions take, which are not training."""


def train(
    member: Planned, data: Path, folder: Path, manifest: dict[str, Any], config: Any, seconds: float, resume: bool
) -> bool:
    """Train the member; whether it is whole afterwards. With `seconds` it stops in time.

    Without `resume` an earlier run in its folder is replaced, which only a fit with overwrite=true, or with other data, has.
    """
    if not resume:
        _remove(folder)
    elif _is_whole(folder):
        print(f"{folder} is whole already", file=sys.stderr)
        return True
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *_hardware(config.accelerate_config)]
    limit = [f"max_seconds={max(seconds - STARTING_S, 1)}"] if seconds else []
    command = [*launcher, "-m", "ensemble.commands.train", *words(member, data, folder, manifest, config), *limit]
    code = _run(command, ["--resume", "auto"] if resume else [])
    if code == PREEMPTED or ((folder / "status").is_file() and "preempted" in (folder / "status").read_text()):
        raise Preempted(member.name)
    if code:
        print(f"warning: {member.name} failed, and the ensemble is fitted without it: see {folder}", file=sys.stderr)
    return not code


def words(member: Planned, data: Path, folder: Path, manifest: dict[str, Any], config: Any) -> list[str]:
    """The words of scripts/train.py that train the member."""
    settings = {"seed": getattr(config, "seed", 0), **member.settings, "data": data, "out": folder}
    return ["--recipe", manifest["recipe"], *(f"{name}={value}" for name, value in settings.items())]


def predict(name: str, folder: Path, data: Path, out: Path) -> None:
    """Write the prediction files of a neural member."""
    script = [sys.executable, "-m", "ensemble.commands.predict", *recipe.words_of_command_line()]
    words = [f"member={folder}", f"data={data}", f"out={out}", f"name={name}"]
    if code := _run([*script, *words], [], subprocess.DEVNULL):
        raise Failure(f"predictions of {name} ended with exit code {code}")


def _is_whole(folder: Path) -> bool:
    """Whether the run in a folder has ended well; a manifest is there until a run goes on."""
    try:
        folders.verify(folder)
        return (folder / "status").read_text() == "done\n"
    except (UserError, OSError):
        return False


def _remove(folder: Path) -> None:
    """Delete an earlier run; `UserError` if there is anything in it that no run writes."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.name not in OF_A_RUN:
            raise UserError(f"{file} is not of a run, so {folder} is not replaced: move it elsewhere, or choose another out")
    shutil.rmtree(folder, ignore_errors=True)


def _hardware(accelerate_config: str) -> list[str]:
    if accelerate_config != "auto":
        return ["--config_file", accelerate_config]
    num_gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if sys.platform == "linux" else 0
    precision = ["--mixed_precision", "bf16" if num_gpus else "no"]
    processes = ["--num_processes", str(max(1, num_gpus)), "--num_machines", "1", "--dynamo_backend", "no"]
    return [*processes, *precision, *(["--multi_gpu"] if num_gpus > 1 else [] if num_gpus else ["--cpu"])]


def _run(command: list[str], more: list[str], output: int | None = None) -> int:
    """The exit code of a command in a process group of its own, which gets the signals that this process gets."""
    process = subprocess.Popen(
        [*command, *more], start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, env={**os.environ}
    )
    try:
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
