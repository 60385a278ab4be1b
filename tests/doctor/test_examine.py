"""scripts/doctor.py from end to end, on one machine: it finds real defects, which are made here."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from doctor_process import DOCTOR, line_of, run
from launcher import ROOT, TIMEOUT_S, started
from processes import command_of

from ensemble.doctor import examine, network, ranks


def test_each_problem_has_a_fix(tmp_path: Path) -> None:
    """The script would leave out a check that works alone, or its exit code would report no problem."""
    core = min(os.sched_getaffinity(0))
    code, page, errors = run(
        ["bash", "-c", f'ulimit -n 256 && exec taskset -c {core} "$@"', "bash", *DOCTOR], tmp_path,
        OMP_NUM_THREADS="2", OMP_PROC_BIND="true", SLURM_CPUS_PER_TASK="8", GLOO_SOCKET_IFNAME="nosuch0",
        NCCL_SOCKET_IFNAME="=nosuch1", SCRATCH_FOLDER=str(tmp_path / "nowhere"), MASTER_PORT="99999",
    )  # fmt: skip
    assert (code, errors) == (1, "")
    expected = {
        "open files": "256 at once",
        "threads": "OMP_NUM_THREADS=2, but 1 granted",
        "cores of srun": "SLURM_CPUS_PER_TASK=8, but the process may use 1",
        "interfaces": "GLOO_SOCKET_IFNAME=nosuch0: nosuch0 does not exist here",
        "scratch": "nowhere cannot be written: No such file or directory",
        "port": "MASTER_PORT=99999 cannot be used",
    }
    for check, value in expected.items():
        line = line_of(page, "problem", check)
        assert value in line
        assert "→" in line, "a problem without a fix"
    assert "NCCL_SOCKET_IFNAME==nosuch1: no interface here matches it" in page
    assert "OMP_PROC_BIND=true" in line_of(page, "note", "pinned threads")
    assert "1 granted of" in line_of(page, "ok", "cores")
    # Measured all the same, with the settings of the fixes
    assert "GB/s bus bandwidth: 2 CPU ranks by Gloo, 25 MiB in" in line_of(page, "ok", "all-reduce")
    assert page.count("\nproblem ") == 7
    assert page.splitlines()[-1].startswith("7 problems, ")
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_a_library_that_cannot_be_loaded_does_not_stop_the_doctor(tmp_path: Path) -> None:
    """A broken PyTorch, the most frequent problem, would give a traceback and no page; an old package would be missed."""
    package = tmp_path / "path/torch/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    old = tmp_path / "path/psutil-0.1.dist-info/METADATA"
    old.parent.mkdir()
    old.write_text("Metadata-Version: 2.1\nName: psutil\nVersion: 0.1\n")
    code, page, _ = run(DOCTOR, tmp_path, PYTHONPATH=f"{tmp_path / 'path'}{os.pathsep}{ROOT}")
    assert code == 1
    assert "cannot be loaded: ImportError: libcudart.so.12" in line_of(page, "problem", "PyTorch")
    assert "psutil 0.1 is older than" in line_of(page, "problem", "libraries")
    assert "pip install 'psutil>=" in line_of(page, "problem", "libraries")
    assert "not tried" in line_of(page, "note", "all-reduce")


def test_the_doctor_runs_without_any_library(tmp_path: Path) -> None:
    """Without installed libraries, where help is needed most, the doctor would not start."""
    bare = tmp_path / "path/sitecustomize.py"
    bare.parent.mkdir()
    bare.write_text(
        "import sys\n"
        "for name in ('accelerate', 'numpy', 'omegaconf', 'packaging', 'psutil', 'torch', 'yaml'):\n"
        "    sys.modules[name] = None\n"
    )
    code, page, errors = run(DOCTOR, tmp_path, PYTHONPATH=f"{bare.parent}{os.pathsep}{ROOT}")
    assert (code, errors) == (1, "")
    assert "cannot be loaded: ModuleNotFoundError: import of torch halted" in line_of(page, "problem", "PyTorch")
    assert page.splitlines()[-1].startswith("1 problem, ")


def rank_environment(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_two_ranks_connect_despite_another_client(tmp_path: Path) -> None:
    """A port scanner would be taken for a node, a second page would be printed, or the exit codes would differ."""
    port = network.free_port()
    with started(DOCTOR, tmp_path, **rank_environment(0, port)) as head:
        deadline = time.monotonic() + TIMEOUT_S
        while not network.connects("127.0.0.1", port):  # connects, says nothing and leaves
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with started(DOCTOR, tmp_path, **rank_environment(1, port), OMP_PROC_BIND="true") as other:
                page, errors = head.communicate(timeout=TIMEOUT_S)
                silence = other.communicate(timeout=TIMEOUT_S)
    assert (errors, silence) == ("", ("", ""))
    assert head.returncode == other.returncode == (0 if "\nno problems" in page else 1)
    assert "all 2 nodes" in line_of(page, "ok", "torch")
    assert "all 2 nodes" in line_of(page, "ok", "all-reduce")
    assert "(rank 1) OMP_PROC_BIND=true" in line_of(page, "note", "pinned threads")


def test_a_node_that_never_comes_is_named(tmp_path: Path) -> None:
    """The doctor would hang like the run that it examines."""
    (tmp_path / "torch.py").write_text("raise ImportError")  # PyTorch is not tested here, and its import takes long
    environment = {**rank_environment(0, network.free_port()), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, page, errors = run([*DOCTOR, "wait_s=1"], tmp_path, **environment)
    assert code == 1
    sentence = "did not connect within 1 s: rank 1"
    assert errors == f"problem: {sentence}\n", "it is not reported at once"
    assert sentence in line_of(page, "problem", "nodes")
    assert "all-reduce" in page, "the nodes that connected are checked all the same"


def test_a_name_service_that_does_not_answer_does_not_stop_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the time limit of the checks, the environment of the all-reduce would wait for the name service without one."""
    answer = threading.Event()

    def addresses_of(name: str) -> list[str]:
        assert threading.current_thread() is not threading.main_thread(), f"the doctor waits for the addresses of {name}"
        answer.wait(TIMEOUT_S)
        return []

    monkeypatch.setattr(network, "addresses_of", addresses_of)
    monkeypatch.setattr(examine, "CHECKS_LIMIT_S", 2)
    monkeypatch.setattr(ranks, "run_torch_info", lambda: {"failed": "not tested here"})
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, value in rank_environment(0, network.free_port()).items():  # of two nodes, one of which never comes
        monkeypatch.setenv(name, value)
    try:
        examine.diagnose(0.1)
    finally:
        answer.set()
    assert "no answer within 2 s" in line_of(capsys.readouterr().out, "problem", "own name")


def test_a_terminated_doctor_leaves_no_process(tmp_path: Path) -> None:
    """Processes of a cancelled check would continue on the node, or delay the end of the job for a minute."""
    with started(DOCTOR, tmp_path) as process:
        family: list[psutil.Process] = []
        deadline = time.monotonic() + TIMEOUT_S
        while sum("all-reduce" in command_of(child) for child in family) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            family = psutil.Process(process.pid).children()
        for child in family:
            child.suspend()  # as a rank that hangs in a collective
        process.terminate()
        assert process.wait(ranks.ALL_REDUCE_LIMIT_S / 2) == 143
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_process_that_begins_while_a_signal_comes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between the start of a process and its entry in the list would leave the process running."""
    begun: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def begin_during_a_signal(*words: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(begin(*words, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        return begun[-1]

    def stop(*_: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(ranks.subprocess, "Popen", begin_during_a_signal)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            ranks.run_torch_info()
        assert begun[0].wait(TIMEOUT_S) == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_which_ranks_the_all_reduce_has() -> None:
    """GPUs would be left out, or be taken by two ranks."""

    def reports(*nodes: tuple[str, int]) -> dict[int, Any]:
        return {rank: {"node": {"machine": where}, "num_gpus": num_gpus} for rank, (where, num_gpus) in enumerate(nodes)}

    assert examine.plan(reports(("a", 0))) == ("gloo", [(0, 0), (0, 0)])
    assert examine.plan(reports(("a", 1))) == ("gloo", [(0, 0), (0, 0)])
    assert examine.plan(reports(("a", 2))) == ("nccl", [(0, 0), (0, 1)])
    assert examine.plan(reports(("a", 2), ("b", 1))) == ("nccl", [(0, 0), (0, 1), (1, 0)])
    assert examine.plan(reports(("a", 2), ("b", 0))) == ("gloo", [(0, 0), (1, 0)])
    assert examine.plan(reports(("a", 2), ("a", 2))) == ("gloo", [(0, 0), (1, 0)])
