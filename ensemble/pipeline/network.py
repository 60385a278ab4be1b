"""Training and prediction of neural members, in processes of their own."""

import ctypes
import fnmatch
import gc
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ensemble import configuration, folders, predictions, recipe
from ensemble.data.cross_validation import SPLIT, CrossValidation
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import PREEMPTED, Failure, UserError, how_ended
from ensemble.neural.elastic import status_stamp
from ensemble.neural.settings import config_class
from ensemble.pipeline.plan import PlannedMember, Preempted, words_of
from ensemble.predictor.new_data import without_launcher
from ensemble.signals import end_with_parent

FILES_OF_A_RUN = (
    ".failed", "best", "checkpoints", "collectives.rank*.json", "config.json", "curves.txt", "damaged-best*",
    "damaged-final*", "environment.json", "final", "flight_recorder.rank*", "manifest.json", "metrics.jsonl", "newest",
    "nonfinite", "profile", "status", "summary.json", "tensorboard", "train.log", "trial", "val.log",
)  # fmt: skip
"""Names, and patterns of names, of the files and folders that a training writes into the folder of its run."""
ENDING_S, ENDING_PER_ROW_S, PREDICTING_S = 3.0, 4e-5, 8.0
"""Upper bounds in seconds. For the time after the last step of a training, in which weights and predictions are written: a
constant, and seconds per row. For the start of another process, if one makes the predictions."""
TRAIN_ON_CPU = "ensemble.commands.train_on_cpu"
NUM_CPU_RANKS, LEAST_ROWS_FOR_RANKS = (1, 2, 4), 2_000
"""Possible numbers of ranks on a CPU, and the least number of training rows for several ranks. Several ranks with one core
each train faster than one rank with several threads, but with fewer rows their start takes longer than they save."""
GPUS = Path("/proc/driver/nvidia/gpus")
"""The folder with an entry for each GPU, where Linux has a driver for them."""
WSL_DRIVER = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""CUDA's library in the Windows Subsystem for Linux, which uses the driver of Windows."""


def train(
    member: PlannedMember,
    data: Path,
    folder: Path,
    manifest: dict[str, Any],
    config: Any,
    num_threads: int,
    seconds: float,
    resume: bool,
    predict_to: Path | None = None,
) -> bool:
    """Train a member for at most `seconds`, or without a limit if that is 0; returns whether the training succeeded.

    manifest : of the prepared data. config : the settings of the fit. num_threads : for all processes on a CPU together.
    predict_to : the folder to which the ranks write the prediction files of the member, which saves the start of another
    process; None if they must not. Ranks that a YAML file describes never do, since their precision may be lower.
    Without `resume` an earlier run in `folder` is replaced. Raises `Preempted` if the training was stopped by a signal.
    """
    if not resume:
        refuse_foreign(folder)
        if folder.is_dir():
            folders.delete(folder)
    elif is_complete(folder):
        print(f"{folder} is complete already", file=sys.stderr)
        return True
    launcher, environment = launch_command(config.accelerate_config, member, manifest, num_threads)
    arguments = training_arguments(member, data, folder, manifest, config)
    arguments += ["--resume", "auto"] if resume else []
    ranks_predict = predict_to and config.accelerate_config == "auto"  # in float32, as scripts/predict.py
    if predict_to and ranks_predict:
        arguments.append(f"--predict={predict_to}")  # one word, also if the folder is named -runs
        discard_predictions(predict_to / f"{folder.name}.{split}.parquet" for split in (*manifest["splits"], OUT_OF_FOLD))
    if seconds:
        ending_s = ENDING_S + ENDING_PER_ROW_S * _num_predicted(manifest, data)
        arguments += ["--deadline", str(time.time() + seconds - ending_s - (0 if ranks_predict else PREDICTING_S))]
    _return_freed_memory()
    status_before = status_stamp(folder)
    handler = signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGTERM))  # Slurm's warning before the time limit
    try:
        code = run_command([*launcher, *arguments], environment=environment)
    except (SystemExit, KeyboardInterrupt):  # SIGTERM, SIGUSR1 or SIGINT; the training has saved its state
        raise Preempted(member.name) from None
    finally:
        signal.signal(signal.SIGUSR1, handler)
    if code == PREEMPTED or (status_stamp(folder) != status_before and "preempted" in (folder / "status").read_text()):
        raise Preempted(member.name)
    if code:
        print(f"warning: {member.name} failed, and the ensemble is fitted without it: see {folder}", file=sys.stderr)
    return not code


def _num_predicted(manifest: dict[str, Any], data: Path) -> int:
    """The number of rows to predict: those of all splits, without the training rows that no copy holds out."""
    rows, cv = {name: split["rows"] for name, split in manifest["splits"].items()}, CrossValidation.from_manifest(manifest)
    return sum(rows.values()) - (rows[SPLIT] - cv.num_predicted(data) if cv else 0)


def _return_freed_memory() -> None:
    """Return freed memory to the operating system, so that the processes of a network can use it: that of Arrow and, with
    glibc, of all libraries that allocate with malloc, such as those of trees."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def training_arguments(member: PlannedMember, data: Path, folder: Path, manifest: dict[str, Any], config: Any) -> list[str]:
    """The arguments of scripts/train.py for a member."""
    settings = {"seed": member.seed(config), **member.settings, "data": data, "out": folder}
    return ["--recipe", manifest["recipe"], *words_of(settings)]


def predict(name: str, folder: Path, data: Path, out: Path) -> None:
    """Write the prediction files of a neural member."""
    script = [sys.executable, "-m", "ensemble.commands.predict", *recipe.words_of_command_line()]
    words = [f"member={folder}", f"data={data}", f"out={out}", f"name={name}"]
    if code := run_command([*script, *configuration.literal(words)], subprocess.DEVNULL):
        raise Failure(f"the process that predicts by {name} {how_ended(code)}")


def discard_predictions(files: Iterable[Path]) -> None:
    """Delete prediction files, which may be of a model in another folder: scripts/predict.py does not replace those."""
    for file in files:
        folders.refuse_foreign_file(file, "prediction file")
        file.unlink(missing_ok=True)


def has_predicted(files: list[Path], data: str, model: str | None, folder: Path) -> bool:
    """Whether all files exist undamaged, with predictions by the model in `folder`. data, model : their fingerprints."""
    for file in files:
        try:
            _, metadata = predictions.read_checked(file, "prediction file", (), "ensemble/predictions.py")
        except UserError:
            return False
        config = metadata.get("config")
        if not isinstance(config, dict) or (metadata["fingerprint"], config.get("model")) != (data, model):
            return False
        if os.path.realpath(config.get("folder", "")) != os.path.realpath(folder):  # the fit was moved or copied
            return False
    return True


def is_complete(folder: Path) -> bool:
    """Whether the training in a folder is done. A training that is continued removes the manifest first."""
    try:
        folders.verify(folder)
        return (folder / "status").read_text() == "done\n"
    except (UserError, OSError):
        return False


def foreign(folder: Path) -> Path | None:
    """The first file in a folder that no training writes, after deleting incomplete files of killed trainings."""
    folders.discard_scratch(folder.glob(".*"))
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    patterns = (*FILES_OF_A_RUN, *folders.FILES_OF_DESKTOPS)
    return next((file for file in files if not any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)), None)


def refuse_foreign(folder: Path) -> None:
    """Raise `UserError` for a folder with a file that no training writes."""
    if file := foreign(folder):
        fix = "move it elsewhere, or choose another out"
        raise UserError(f"{file} was not written by a training, so {folder} is not replaced: {fix}")


def launch_command(
    accelerate_config: str, member: PlannedMember, manifest: dict[str, Any], num_threads: int
) -> tuple[list[str], dict[str, str]]:
    """The command that trains, without the arguments of scripts/train.py, and its environment.

    accelerate_config : a file, or "auto" for a GPU of this machine, or for its CPU if it has none or trains faster. Then
    the precision is float32: in steps that take some milliseconds, starting the kernels takes longer than running them, so
    that other precisions and several GPUs are no faster (`make bench-gpu`).
    """
    if accelerate_config != "auto":
        launcher = [sys.executable, "-m", "ensemble.neural.launcher", "--quiet", "--config_file", accelerate_config]
        ranks = configuration.read_yaml(accelerate_config).get("num_processes")
        threads_per_rank = max(1, num_threads // ranks) if isinstance(ranks, int) and ranks > 0 else num_threads
        return [*launcher, "-m", "ensemble.commands.train"], {**os.environ, "OMP_NUM_THREADS": str(threads_per_rank)}
    num_ranks = num_cpu_ranks(member, manifest, num_threads)
    if has_gpu() and num_ranks < member.cores_as_fast_as_gpu:
        command = [sys.executable, "-m", "ensemble.commands.train"]
        return command, {**os.environ, "ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": str(num_threads)}
    command = [sys.executable, "-m", TRAIN_ON_CPU, "--num_processes", str(num_ranks)]
    return command, {**os.environ, "OMP_NUM_THREADS": str(max(1, num_threads // num_ranks))}


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide, and PyTorch is built for CUDA."""
    is_visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in ("", "-1", "NoDevFiles")  # the last one by Slurm
    return is_visible and (any(GPUS.glob("*")) or WSL_DRIVER.exists()) and torch_is_for_cuda()


def torch_is_for_cuda() -> bool:
    """Whether PyTorch is built for CUDA, as its file version.py shows: importing PyTorch would take seconds."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return not re.search(r"^cuda\b.*= None$", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE)


def num_cpu_ranks(member: PlannedMember, manifest: dict[str, Any], num_threads: int) -> int:
    """The number of ranks for `num_threads` threads of a CPU: 1 for few rows, else the largest of `NUM_CPU_RANKS` that is at
    most `num_threads` and divides the batch size."""
    if manifest["splits"]["train"]["rows"] < LEAST_ROWS_FOR_RANKS:
        return 1
    # Ranks have equal shares of a batch. Its size is 0 if the recipe chooses it, as a power of 2
    batch_size = int(member.settings.get("batch_size", config_class(manifest["recipe"])().batch_size))
    return max(ranks for ranks in NUM_CPU_RANKS if ranks <= max(1, num_threads) and batch_size % ranks == 0)


def run_command(command: list[str], output: int | None = None, environment: dict[str, str] | None = None) -> int:
    """Run a command in a process group of its own, and return its exit code. The command ends with this process, even
    if that is killed. It is no rank of another job."""
    variables = without_launcher(environment or os.environ)
    process = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=end_with_parent,
        stdin=subprocess.DEVNULL,
        stdout=output,
        env={**variables, "PYTHONSAFEPATH": "1"},  # so that no random.py of the user replaces a module
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
