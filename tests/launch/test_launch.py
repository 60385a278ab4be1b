"""The YAML files with the real launcher: the number of ranks, and equal weights and predictions on one and two ranks.

All tests run scripts/ in subprocesses, without Accelerate's environment variables.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts_run
import torch
from accelerate.commands.config import config_args
from launcher import ACCELERATE, MULTI_CPU, MULTI_GPU, PREDICT, ROOT, SINGLE_CPU, TRAIN, run
from safetensors.torch import load_file

from ensemble import predictions
from ensemble.neural import launch
from ensemble.neural.loader import BatchPlan

TINY = ["recipe.width=8", "recipe.num_layers=1", "recipe.num_reviews=2", "log_every=1", "learning_rate=0.01"]
CUT = {"batch_size": 1024, "micro_batch_size": 128}


def settings(data: Path, out: Path, **values: Any) -> list[str]:
    return [f"data={data}", f"out={out}", *TINY, *(f"{name}={value}" for name, value in values.items())]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One run on one rank and one on two, with the same settings: no dropout, blocks recomputed in the backward pass."""
    folder = tmp_path_factory.mktemp("trained")
    runs = {1: folder / "one", 2: folder / "two"}
    for ranks, yaml in ((1, SINGLE_CPU), (2, MULTI_CPU)):
        exact = {"recipe.dropout": 0, "recipe.gradient_checkpointing": "true", **CUT}
        words = settings(prepared, runs[ranks], max_epochs=2, evaluations_per_epoch=1, **exact)
        code, errors = run([*ACCELERATE, *yaml, TRAIN, *words], folder)
        assert code == 0, errors
    return runs


# Ranks


def test_each_yaml_starts_its_ranks(trained: dict[int, Path]) -> None:
    """multi_cpu.yaml would silently train in one process, or in two independent ones."""
    for ranks, out in trained.items():
        values = summary(out)
        assert (values["ranks"], values["precision"]) == (ranks, "no")
        assert values["device"].startswith("cpu")


def test_an_address_where_no_rank_0_listens_gets_one_sentence(tmp_path: Path) -> None:
    """A wrong address, or that of another project in the environment, would end in a traceback of PyTorch's store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    numbers = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "ACCELERATE_USE_CPU": "true"}
    words = [sys.executable, TRAIN, "data=absent", "out=run", "timeout_s=2"]
    code, errors = run(words, tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **numbers)
    assert code == 2, errors
    assert f"error: rank 1 of 2 cannot connect to the others at MASTER_ADDR=127.0.0.1, MASTER_PORT={port} " in errors
    assert "Traceback" not in errors


def test_a_network_interface_that_does_not_exist_gets_one_sentence(tmp_path: Path) -> None:
    """The interface of another cluster, exported in a shell, would end in a traceback of Gloo on every rank."""
    code, errors = scripts_run.launched(
        *MULTI_CPU, TRAIN, "data=absent", "out=run", folder=tmp_path, GLOO_SOCKET_IFNAME="none0"
    )
    assert code == 1
    assert errors.count("error: GLOO_SOCKET_IFNAME=none0 is no network interface with an address on this machine") == 1, (
        errors
    )


def test_ranks_on_a_cpu_see_no_gpu(trained: dict[int, Path]) -> None:
    """Accelerate's barrier would use the GPU with the number of the rank, and fail where there are fewer GPUs than ranks."""
    for out in trained.values():
        assert json.loads((out / "environment.json").read_text())["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_one_and_two_ranks_learn_the_same(trained: dict[int, Path], prepared: Path) -> None:
    """The global batch or the loss would depend on the hardware, or a rank without rows in the last step would hang.

    Weights and AdamW's moments after four steps agree within a relative 1e-6, norm-wise: float32 sums in another order. A
    mean of means, or rows seen twice, would differ by percents.
    """
    num_rows = json.loads((prepared / "manifest.json").read_text())["splits"]["train"]["rows"]
    plans = [BatchPlan(num_rows, **CUT, num_ranks=2, rank=rank, seed=0) for rank in (0, 1)]
    last = [list(plan.micro_batches(1, 2))[-1] for plan in plans]
    assert any(micro.idle for micro in last), "the last batch must leave a rank without rows"
    assert summary(trained[1])["steps"] == summary(trained[2])["steps"] == 4
    one, two = (tensors(out / "checkpoints/step-00000004") for out in trained.values())
    for part in ("exp_avg", "exp_avg_sq", "weight"):
        names = [name for name in one if name.endswith(part)]
        first, second = (torch.cat([state[name].double().flatten() for name in names]) for state in (one, two))
        assert torch.linalg.norm(first - second) <= 1e-6 * torch.linalg.norm(first), part


def test_one_and_two_ranks_predict_the_same_rows(trained: dict[int, Path], prepared: Path, tmp_path: Path) -> None:
    """With two ranks a row would be predicted twice or not at all, be in another place, or both ranks would write."""
    words = [PREDICT, f"member={trained[2]}", f"data={prepared}", "name=net"]
    code, errors = scripts_run.launched(*MULTI_CPU, *words, f"out={tmp_path / 'two'}", folder=tmp_path)
    assert code == 0, errors
    code, errors = run([sys.executable, *words, f"out={tmp_path / 'one'}"], tmp_path)
    assert code == 0, errors
    num_rows = []
    for split in ("blend", "test", "forecast"):
        one, two = (predictions.read(tmp_path / name / f"net.{split}.parquet") for name in ("one", "two"))
        num_rows.append(len(one.row_id))
        for name in ("row_id", "target", "group", "cluster"):
            assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True), (split, name)
        assert two.prediction == pytest.approx(one.prediction, rel=1e-5)
        assert len(np.unique(one.prediction)) > len(one.prediction) / 2
    assert any(number % 2 for number in num_rows), "one split must have an odd number of rows"


def test_a_rank_without_its_other_variables_is_refused(prepared: Path, tmp_path: Path) -> None:
    """With a LOCAL_RANK that is left from another job, a training would end in a traceback of PyTorch."""
    alone = {"LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}
    code, errors = run([sys.executable, TRAIN, *settings(prepared, tmp_path / "run")], tmp_path, **alone)
    assert code == 2
    assert "error: LOCAL_RANK=0 is that of one of several ranks, but environment variable MASTER_ADDR expected" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", ["LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_variable_without_a_number_is_named(name: str, prepared: Path, tmp_path: Path) -> None:
    """A line such as `export WORLD_SIZE=$SLURM_NTASKS` outside of a job would end a training in a traceback."""
    code, errors = run([sys.executable, TRAIN, *settings(prepared, tmp_path / "run")], tmp_path, **{name: ""})
    assert code == 2
    assert errors.startswith(f"error: {name}='' is not a whole number, which a launcher would set: start ranks by")


@pytest.mark.parametrize(
    ("launcher", "environment", "origin"),
    [
        (["accelerate", "multi_cpu_that_starts_one.yaml"], {}, r"the launcher (/.*multi_cpu_that_starts_one.yaml)"),
        (["accelerate", "--cpu", "--num_processes", "2"], {}, "the launcher (--num_processes)"),
        pytest.param(
            ["accelerate.commands.launch", "--cpu", "--num_processes=2"],
            {},
            "the launcher (--num_processes)",
            marks=pytest.mark.torture,
        ),
        ([], {"WORLD_SIZE": "2"}, "the variable WORLD_SIZE"),
    ],
    ids=["MULTI_CPU", "--cpu", "python -m", "WORLD_SIZE"],
)
def test_a_launch_with_too_few_processes_is_refused(
    launcher: list[str], environment: dict[str, str], origin: str, prepared: Path, tmp_path: Path
) -> None:
    """Accelerate silently starts one process here instead of two."""
    yaml = (ROOT / "accelerate_configs/multi_cpu.yaml").read_text().replace("MULTI_GPU", "MULTI_CPU")
    file = tmp_path / "multi_cpu_that_starts_one.yaml"
    file.write_text(yaml)
    command = {
        "accelerate": [*ACCELERATE, *launcher[1:]],
        "accelerate.commands.launch": [sys.executable, "-m", *launcher],
        "": [sys.executable],
    }[launcher[0] if launcher else ""]
    if launcher[-1:] == [file.name]:
        command[-1:] = ["--config_file", str(file)]
    code, errors = run([*command, TRAIN, *settings(prepared, tmp_path / "run")], tmp_path, **environment)
    assert code == (1 if launcher else 2)
    (sentence,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert sentence.startswith(
        f"error: {origin.replace('/.*', str(tmp_path) + '/')} asks for 2 processes, but this run has 1"
    )
    assert "multi_cpu.yaml" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a machine with GPUs these processes train on them")
@pytest.mark.parametrize("name", ["single_gpu", "multi_gpu"])
def test_a_gpu_yaml_on_a_machine_without_gpus_is_refused(name: str, prepared: Path, tmp_path: Path) -> None:
    """One process would train on the CPU. Of two, Accelerate makes two ranks 0, which would train into the same folder."""
    file = ROOT / "accelerate_configs" / f"{name}.yaml"
    command = [*ACCELERATE, "--config_file", file, TRAIN, *settings(prepared, tmp_path / "run")]
    code, errors = run(command, tmp_path)
    assert code != 0
    assert "PyTorch finds no GPU on this machine" in errors, errors
    assert not (tmp_path / "run").exists()


def test_the_arguments_of_the_launcher_are_parsed(tmp_path: Path) -> None:
    """The number of processes would not be found, or be read from an argument of the script."""
    multi, single = MULTI_CPU[1], SINGLE_CPU[1]
    for command, expected in (
        (["python", "/venv/bin/accelerate", "launch", "--config_file", multi, "x.py"], (2, True)),
        (["/venv/bin/accelerate-launch", "--config_file", single, "x.py", "--num_processes", "4"], (1, True)),
        (["python", "-m", "accelerate.commands.launch", "--config_file", multi, "--num_processes=4", "x.py"], (4, True)),
        (["python", "/venv/bin/accelerate", "launch", "--cpu", "--num_processes", "3", "x.py"], (3, True)),
        (["python", "/venv/bin/accelerate", "launch", "--config_file", MULTI_GPU[1], "x.py"], (2, False)),
        (
            ["python3.11", "-W", "ignore", "-u", "-m", "accelerate.commands.launch", "--config_file", multi, "x.py"],
            (2, True),
        ),
        (["/bin/python", "-X", "dev", "/bin/accelerate", "launch", "--config_file", single, "x.py"], (1, True)),
        (["python", "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", multi, "x.py"], (2, True)),
    ):
        arguments = launch.launch_arguments(command)
        assert arguments is not None
        request = launch.requested_processes(arguments)
        assert (request["num_processes"], request["use_cpu"]) == expected, command
        assert request["needs_gpu"] == (MULTI_GPU[1] in command)
    for other in (["python", "x.py"], ["accelerate", "config"], ["bash", "-c", "accelerate launch x.py"], []):
        assert launch.launch_arguments(other) is None


@pytest.mark.parametrize(("written", "expected"), [("'2'", 2), ("auto", None)])
def test_a_number_of_processes_in_quotes_is_a_number(written: str, expected: int | None, tmp_path: Path) -> None:
    """A launch of two processes would be refused, since "the launcher asks for 2 processes, but this run has 2"."""
    file = tmp_path / "quoted.yaml"
    file.write_text(Path(MULTI_GPU[1]).read_text().replace("num_processes: 2", f"num_processes: {written}"))
    assert launch.requested_processes(["--config_file", str(file), "x.py"])["num_processes"] == expected


def test_the_default_file_counts_without_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate ignores its default file with --cpu: the training would be refused, since the file asks for two GPUs."""
    monkeypatch.setattr(config_args, "default_config_file", MULTI_GPU[1])
    assert launch.requested_processes(["x.py"])["num_processes"] == 2
    assert launch.requested_processes(["--cpu", "x.py"])["num_processes"] is None
    assert launch.requested_processes(["--cpu", *MULTI_CPU, "x.py"])["num_processes"] == 2
