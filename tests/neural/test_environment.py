"""The report of hardware, versions, commit and environment variables."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import timing

from ensemble import folders
from ensemble.neural import environment


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, used as the root of the project."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


def test_the_report_names_software_and_hardware() -> None:
    """A figure could not be explained or reproduced."""
    report = json.loads(json.dumps(environment.report()))
    assert torch.__version__.startswith(report["versions"]["torch"])  # the version of a package does not name CUDA
    assert {"accelerate", "datasets", "evaluate", "safetensors", "numpy"} <= report["versions"].keys()
    assert 1 <= report["cores_granted"] <= report["cores"]
    assert report["threads"] == torch.get_num_threads()
    assert len(report["gpus"]) == torch.cuda.device_count()
    assert report["processor"]
    assert report["memory_gb"] > 0
    assert report["command"] == shlex.join([Path(sys.executable).name, *sys.argv])
    assert {"cuda", "cudnn", "nccl", "python", "platform", "date", "host"} <= report.keys()


def test_variables_are_listed_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password would be written to a shared folder, or a variable that explains a slow run would be missing."""
    wanted = {"OMP_NUM_THREADS": "3", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7", "RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
    secret = ("SLURM_JWT", "NCCL_TOKEN", "CUDA_API_KEY", "MASTER_PASSWORD", "TORCH_Secret", "HF_HOME")
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    for name in secret:
        monkeypatch.setenv(name, "hidden")
    variables = environment.report()["environment"]
    assert wanted.items() <= variables.items()
    assert "hidden" not in variables.values()


def test_a_variable_that_is_not_utf_8_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job whose name was typed in a Latin-1 terminal would end with an error when its environment is written."""
    monkeypatch.setenv("SLURM_JOB_NAME", "K\udcfcche")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "küche")
    folders.write_json(tmp_path / "environment.json", environment.report())
    variables = folders.read_json(tmp_path / "environment.json")["environment"]
    assert (variables["SLURM_JOB_NAME"], variables["SLURM_JOB_PARTITION"]) == ("K\ufffdche", "küche")


def test_the_commit_and_uncommitted_changes(checkout: Path) -> None:
    """A result would be attributed to the wrong commit, or a file whose name is not UTF-8 would stop a training."""
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert environment.machine()["commit"] == head.stdout.strip()
    assert environment.machine()["uncommitted"] == []
    (checkout / "new.py").touch()
    (checkout / "old.py").touch()
    (checkout / "k\udcfcche.py").touch()  # named in Latin-1
    for words in (["add", "-N", "old.py"], ["config", "core.quotePath", "false"]):
        subprocess.run(["git", "-C", str(checkout), *words], check=True)
    assert environment.machine()["uncommitted"] == [" A old.py", "?? k\ufffdche.py", "?? new.py"]


def test_without_a_checkout_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed inside another project, the commit of that project would be reported; without git, the report would fail."""
    (checkout / "site-packages").mkdir()
    monkeypatch.setattr(environment, "ROOT", checkout / "site-packages")
    assert environment.machine()["commit"] is environment.machine()["uncommitted"] is None
    monkeypatch.setattr(environment, "ROOT", checkout)
    monkeypatch.setenv("PATH", str(checkout))
    assert environment.machine()["commit"] is None


def test_benchmarks_record_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed figure would lack its hardware or its command."""
    monkeypatch.setattr("sys.argv", ["/somewhere/scripts/benchmark.py", "loader"])
    report = timing.environment()
    assert report["command"] == "python scripts/benchmark.py loader"
    assert {"date", "commit", "processor", "cores", "memory_gb", "python", "versions"} <= report.keys()
