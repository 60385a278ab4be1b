"""The hardware that a fit trains its network on, and whether its predictions are there already."""

import math
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from launcher import ROOT, TIMEOUT_S

from ensemble import folders, predictions
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.pipeline import network, plan
from ensemble.pipeline.plan import PlannedMember, Preempted


@pytest.mark.parametrize(
    ("num_threads", "num_rows", "settings", "num_ranks"),
    [
        (1, 100_000, {}, 1),
        (2, 100_000, {}, 2),
        (3, 100_000, {}, 2),
        (64, 100_000, {}, 4),
        (2, 1_999, {}, 1),
        (2, 2_000, {}, 2),
        (4, 100_000, {"batch_size": 66}, 2),
        (4, 100_000, {"batch_size": 33}, 1),
    ],
)
def test_the_number_of_ranks_on_a_cpu(num_threads: int, num_rows: int, settings: dict[str, Any], num_ranks: int) -> None:
    """Cores would be idle, a batch would not be divisible, or a small table would wait for the start of processes."""
    member = PlannedMember(name="tabm", kind="neural", settings=settings)
    manifest = {"recipe": "table", "splits": {"train": {"rows": num_rows}}}
    assert network.num_cpu_ranks(member, manifest, num_threads) == num_ranks


@pytest.mark.parametrize(
    ("num_gpus", "visible", "cores_as_fast_as_gpu", "is_on_gpu"),
    [
        (2, None, math.inf, True), (2, "1", math.inf, True), (2, "", math.inf, False), (2, "-1", math.inf, False),
        (0, None, math.inf, False), (1, None, 2.1, True), (1, None, 2.0, False),
    ],
)  # fmt: skip
def test_a_fit_uses_a_visible_gpu_that_is_faster(
    num_gpus: int,
    visible: str | None,
    cores_as_fast_as_gpu: float,
    is_on_gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network would be trained without the GPU, or on a GPU that is slower than the CPU or hidden."""
    for number in range(num_gpus):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(network, "GPUS", tmp_path)
    monkeypatch.setattr(network, "WSL_DRIVER", tmp_path / "libcuda.so.1")
    monkeypatch.setattr(network, "torch_is_for_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    member = PlannedMember(name="tabm", kind="neural", cores_as_fast_as_gpu=cores_as_fast_as_gpu)
    manifest = {"recipe": "table", "splits": {"train": {"rows": 100_000}}}
    command, environment = network.launch_command("auto", member, manifest, 2)
    assert (network.TRAIN_ON_CPU in command) != is_on_gpu
    assert environment["OMP_NUM_THREADS"] == ("2" if is_on_gpu else "1")


@pytest.mark.parametrize(("name", "num_threads", "per_rank"), [("multi", 8, "4"), ("multi", 1, "1"), ("single", 8, "8")])
def test_the_ranks_of_a_yaml_file_share_the_threads(name: str, num_threads: int, per_rank: str) -> None:
    """Each of two ranks would start as many threads as there are cores, which makes a training some ten times slower."""
    file = str(ROOT / f"accelerate_configs/{name}_cpu.yaml")
    _, environment = network.launch_command(file, PlannedMember(name="tabm", kind="neural"), {}, num_threads)
    assert environment["OMP_NUM_THREADS"] == per_rank


def test_a_gpu_of_windows_is_seen_in_its_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under WSL, whose driver is that of Windows, a fit would never use the GPU."""
    monkeypatch.setattr(network, "GPUS", tmp_path / "none")
    monkeypatch.setattr(network, "WSL_DRIVER", tmp_path / "libcuda.so.1")
    monkeypatch.setattr(network, "torch_is_for_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not network.has_gpu()
    (tmp_path / "libcuda.so.1").touch()
    assert network.has_gpu()


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_a_hidden_gpu_is_not_seen(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm job without a GPU, on a node that has some, would train in one process instead of one for each core."""
    (tmp_path / "0000:01:00.0").touch()
    monkeypatch.setattr(network, "GPUS", tmp_path)
    monkeypatch.setattr(network, "torch_is_for_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert network.has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert not network.has_gpu()


def test_the_build_of_pytorch_is_known_without_an_import() -> None:
    """On a machine with a GPU, but with a build for CPUs, one process would train instead of several."""
    statement = "import sys; from ensemble.pipeline import network; known = network.torch_is_for_cuda(); "
    statement += "assert 'torch' not in sys.modules; import torch; sys.exit(known != bool(torch.version.cuda))"
    subprocess.run([sys.executable, "-c", statement], check=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("ranks_predict", "ending_s"), [(True, network.ENDING_S), (False, network.ENDING_S + network.PREDICTING_S)]
)
def test_the_time_of_the_start_counts(
    ranks_predict: bool, ending_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit would exceed its limit on a machine that starts processes slowly, or leave seconds unused on a fast one."""
    commands: list[list[str]] = []
    monkeypatch.setattr(network, "run_command", lambda command, **named: commands.append(command) or 0)
    monkeypatch.setattr(network, "time", types.SimpleNamespace(time=lambda: 1e9))
    member = PlannedMember(name="tabm", kind="neural")
    manifest = {"recipe": "table", "splits": {"train": {"rows": 500}, "forecast": {"rows": 1000}}}
    file = str(ROOT / "accelerate_configs/single_cpu.yaml")
    config = types.SimpleNamespace(accelerate_config="auto" if ranks_predict else file, seed=0)
    folder, predictions_folder = tmp_path / "tabm", tmp_path / "predictions"
    assert network.train(member, tmp_path, folder, manifest, config, 1, 30.0, False, predictions_folder)
    assert network.train(member, tmp_path, folder, manifest, config, 1, 0.0, False, predictions_folder)
    limited, unlimited = commands
    assert float(limited[limited.index("--deadline") + 1]) == 1e9 + 30 - 1500 * network.ENDING_PER_ROW_S - ending_s
    assert (f"--predict={predictions_folder}" in limited) == ranks_predict
    manifest["cross_validation"] = {"scheme": "holdout", "num_folds": 1, "embargo": 0.0, "begins": []}
    monkeypatch.setattr(CrossValidation, "num_predicted", lambda *_: 75)  # the other training rows are not predicted
    assert network.train(member, tmp_path, folder, manifest, config, 1, 30.0, False, predictions_folder)
    large = commands.pop()
    assert float(large[large.index("--deadline") + 1]) == 1e9 + 30 - 1075 * network.ENDING_PER_ROW_S - ending_s
    assert not {"--deadline", "max_seconds"} & set(unlimited)


def test_all_files_of_a_failed_training_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit with overwrite=true would refuse the folder of a network that failed, or delete a file of the user."""
    monkeypatch.setattr(network, "run_command", lambda command, **named: 0)
    folder = tmp_path / "tabm"
    for name in (".failed", "status", "nonfinite/step1.rank0.micro0.safetensors", "collectives.rank1.json",
                 "flight_recorder.rank12", ".best.writing-0123abcd/model.safetensors"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    manifest = {"recipe": "table", "splits": {"train": {"rows": 500}}}
    config = types.SimpleNamespace(accelerate_config="auto", seed=0)
    arguments = (PlannedMember(name="tabm", kind="neural"), tmp_path, folder, manifest, config, 1, 0.0, False)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt was not written by a training"):
        network.train(*arguments)
    assert (folder / ".failed").exists()
    (folder / "notes.txt").unlink()
    assert network.train(*arguments)
    assert not folder.exists()


def test_only_a_training_that_was_stopped_now_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fails after an earlier interruption would be called interrupted again, and a job requeued for ever."""
    folder = tmp_path / "tabm"
    folder.mkdir()
    manifest = {"recipe": "table", "splits": {"train": {"rows": 500}}}
    config = types.SimpleNamespace(accelerate_config="auto", seed=0)
    arguments = (PlannedMember(name="tabm", kind="neural"), tmp_path, folder, manifest, config, 1, 0.0, True)

    def stopped(command: list[str], **named: Any) -> int:
        folders.write_text(folder / "status", "preempted\n")
        return 1  # the exit code of a launcher, whatever that of its ranks

    monkeypatch.setattr(network, "run_command", stopped)
    with pytest.raises(Preempted, match="tabm"):
        network.train(*arguments)
    monkeypatch.setattr(network, "run_command", lambda command, **named: 2)
    assert not network.train(*arguments)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_fit_that_is_stopped_lets_its_network_save(number: signal.Signals, tmp_path: Path) -> None:
    """Slurm's warning would kill the fit and its network: a job would count that as a loss, of which few are allowed."""
    lines = [
        "import signal, sys, types; from ensemble import errors; from ensemble.pipeline import network, plan, stages",
        "code = 'import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: print(2) or sys.exit());'",
        # Not `print`: a signal that arrives within its write would let the second one fail with "reentrant call"
        f"code += r'os.write(1, b\"1\\n\"); time.sleep({TIMEOUT_S})'",
        "network.launch_command = lambda *_: ([sys.executable, '-c', code], None)",
        "member, manifest = plan.PlannedMember(name='tabm', kind='neural'), {'recipe': 'table', 'splits': {}}",
        f"folder, config = network.Path({str(tmp_path)!r}), types.SimpleNamespace(accelerate_config='auto', seed=0)",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # also if the tests run in the background of a shell
        "def main():",
        "    with stages.status_kept(folder / 'job'): network.train(member, folder, folder, manifest, config, 1, 0, True)",
        "errors.run(main)",
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines)], **pipes) as fit:
        assert fit.stdout is not None
        assert fit.stdout.readline() == "1\n", fit.communicate()[1]
        fit.send_signal(number)
        saved, _ = fit.communicate(timeout=TIMEOUT_S)
    assert saved == "2\n"
    assert (tmp_path / "job/status").read_text() == "preempted\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_killed_fit_leaves_no_process() -> None:
    """The network would be trained by two processes at once when the fit is continued."""
    training = f"[{sys.executable!r}, '-c', 'import time; print(1, flush=True); time.sleep({TIMEOUT_S})']"
    statement = f"from ensemble.pipeline import network; network.run_command({training})"
    with subprocess.Popen([sys.executable, "-c", statement], stdout=subprocess.PIPE) as fit:
        assert fit.stdout is not None
        assert fit.stdout.readline() == b"1\n"
        (child,) = psutil.Process(fit.pid).children()
        fit.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([child], TIMEOUT_S / 2)[1] == []


def test_a_file_beside_the_data_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a random.py in the current folder, the network would fail, and the ensemble would be fitted without it."""
    (tmp_path / "random.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert network.run_command([sys.executable, "-c", "import random"]) == 0


@pytest.mark.parametrize("is_given", [False, True])
def test_variables_of_another_job_are_not_passed_on(is_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a WORLD_SIZE that is left from another job, or under `accelerate launch`, the network of a fit would wait ten
    minutes for ranks that do not exist, whatever its time limit."""
    names = ("WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE")
    for name in names:
        monkeypatch.setenv(name, "2")
    statement = f"import os, sys; sys.exit(bool({set(names)} & os.environ.keys()))"
    assert network.run_command([sys.executable, "-c", statement], environment=dict(os.environ) if is_given else None) == 0


def test_a_launcher_of_the_calling_program_is_not_that_of_the_network(tmp_path: Path) -> None:
    """In a program under `accelerate launch`, a fit would have no network, since the number of its ranks is another one."""
    launcher = tmp_path / "accelerate-launch"
    request = "from ensemble.neural import launch; print(launch.launcher_request()['num_processes'])"
    call = f"network.run_command([sys.executable, '-c', {request!r}])"
    launcher.write_text(f"import sys; from ensemble.pipeline import network; sys.exit({call})")
    command = [sys.executable, str(launcher), "--num_processes", "2", "program.py"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout == "None\n"


def test_predictions_are_repeated_for_another_model_or_other_data(tmp_path: Path) -> None:
    """A fit that is continued would combine predictions of an older model or of one elsewhere, or a damaged file."""
    file = tmp_path / "x.parquet"
    folder = tmp_path / "members" / "x"
    assert not network.has_predicted([file], "f00d", "new", folder)
    rows = dict.fromkeys(("row_id", "group", "cluster"), np.arange(2))
    values = dict.fromkeys(("target", "prediction"), np.ones(2))
    origin = {"recipe": "table", "split": "oof", "member": "x", "fingerprint": "f00d"}
    predictions.write(
        file, predictions.Predictions(**rows, **values, **origin, config={"model": "new", "folder": str(folder)})
    )
    assert network.has_predicted([file], "f00d", "new", folder)
    assert not network.has_predicted([file], "f00d", "new", tmp_path / "moved" / "x")
    assert not network.has_predicted([file], "f00d", "old", folder)
    assert not network.has_predicted([file], "beef", "new", folder)
    assert not network.has_predicted([file, tmp_path / "y.parquet"], "f00d", "new", folder)
    pq.write_table(pq.read_table(file).slice(1), file)
    assert not network.has_predicted([file], "f00d", "new", folder)
    file.write_bytes(file.read_bytes()[:-100])
    assert not network.has_predicted([file], "f00d", "new", folder)


def test_a_preset_needs_no_settings_of_the_recipe(tmp_path: Path) -> None:
    """A plan of a user's own would end in a traceback, or a list would be several words of the command."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets/short.yaml").write_text("max_epochs: 2.0\ntrackers: [wandb, tensorboard]\n")
    (tmp_path / "presets/wide.yaml").write_text("max_epochs: 2.0\nrecipe:\n  widths: [64, 8]\n")
    assert plan.preset(tmp_path, "short") == {"max_epochs": 2.0, "trackers": "[wandb,tensorboard]"}
    assert plan.preset(tmp_path, "wide") == {"max_epochs": 2.0, "recipe.widths": "[64,8]"}
