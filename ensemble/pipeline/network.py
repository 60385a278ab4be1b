"""Training and prediction of neural members, in processes of `accelerate launch -m ensemble.commands.train`."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ensemble import folders, recipe
from ensemble.errors import PREEMPTED, Failure, UserError
from ensemble.pipeline.plan import PlannedMember, Preempted

FILES_OF_A_RUN = (
    "best", "checkpoints", "config.json", "curves.txt", "environment.json", "final", "manifest.json", "metrics.jsonl",
    "newest", "profile", "status", "summary.json", "tensorboard", "train.log", "trial", "val.log",
)  # fmt: skip
STARTING_S = 16.0
"""Seconds of a member's time that the launcher, imports and predictions take."""


def train(
    member: PlannedMember, data: Path, folder: Path, manifest: dict[str, Any], config: Any, seconds: float, resume: bool
) -> bool:
    """Train a member, for at most `seconds` (0: without a limit); returns whether the training succeeded.

    Without `resume` an earlier run in its folder is replaced. Raises `Preempted` if it was stopped by a signal.
    """
    if not resume:
        _remove(folder)
    elif _is_complete(folder):
        print(f"{folder} is complete already", file=sys.stderr)
        return True
    launcher = [sys.executable, "-m", "ensemble.neural.launcher", "--quiet", *_hardware(config.accelerate_config)]
    limit = [f"max_seconds={max(seconds - STARTING_S, 1)}"] if seconds else []
    command = [*launcher, "-m", "ensemble.commands.train", *words(member, data, folder, manifest, config), *limit]
    code = run_command([*command, *(["--resume", "auto"] if resume else [])])
    if code == PREEMPTED or ((folder / "status").is_file() and "preempted" in (folder / "status").read_text()):
        raise Preempted(member.name)
    if code:
        print(f"warning: {member.name} failed, and the ensemble is fitted without it: see {folder}", file=sys.stderr)
    return not code


def words(member: PlannedMember, data: Path, folder: Path, manifest: dict[str, Any], config: Any) -> list[str]:
    """The arguments of scripts/train.py for a member."""
    settings = {"seed": getattr(config, "seed", 0), **member.settings, "data": data, "out": folder}
    return ["--recipe", manifest["recipe"], *(f"{name}={value}" for name, value in settings.items())]


def predict(name: str, folder: Path, data: Path, out: Path) -> None:
    """Write the prediction files of a neural member."""
    script = [sys.executable, "-m", "ensemble.commands.predict", *recipe.words_of_command_line()]
    words = [f"member={folder}", f"data={data}", f"out={out}", f"name={name}"]
    if code := run_command([*script, *words], subprocess.DEVNULL):
        raise Failure(f"predictions of {name} ended with exit code {code}")


def _is_complete(folder: Path) -> bool:
    """Whether the training in a folder is done. A training that is continued removes the manifest first."""
    try:
        folders.verify(folder)
        return (folder / "status").read_text() == "done\n"
    except (UserError, OSError):
        return False


def _remove(folder: Path) -> None:
    """Delete the folder of an earlier training; `UserError` if it contains a file that no training writes."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.name not in FILES_OF_A_RUN:
            raise UserError(
                f"{file} was not written by a training, so {folder} is not replaced: move it elsewhere, or choose another "
                "out"
            )
    shutil.rmtree(folder, ignore_errors=True)


def _hardware(accelerate_config: str) -> list[str]:
    if accelerate_config != "auto":
        return ["--config_file", accelerate_config]
    num_gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if sys.platform == "linux" else 0
    precision = ["--mixed_precision", "bf16" if num_gpus else "no"]
    processes = ["--num_processes", str(max(1, num_gpus)), "--num_machines", "1", "--dynamo_backend", "no"]
    return [*processes, *precision, *(["--multi_gpu"] if num_gpus > 1 else [] if num_gpus else ["--cpu"])]


def run_command(command: list[str], output: int | None = None) -> int:
    """Run a command in a process group of its own, which is ended with this process; returns the exit code."""
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output)
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
