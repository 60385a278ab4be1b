"""Checks of one machine. Of checks that need a GPU, the part without a GPU is tested."""

import contextlib
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_process import only_finding

from ensemble.doctor import machine, ranks

H200 = {"name": "H200", "memory_gb": 141, "capability": "9.0"}

T4 = {"name": "T4", "memory_gb": 16, "capability": "7.5"}


@contextlib.contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_missing_and_old_libraries_are_named_with_the_command(tmp_path: Path) -> None:
    """An ImportError in the middle of a run would be the first message."""
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\ndependencies = ["torch>=99.1", "no-such-library>=1", "numpy>=1"]\n')
    finding = only_finding(machine.libraries(pyproject), "problem")
    assert "is older than 99.1; no-such-library is missing" in finding.value
    assert finding.fix.endswith("-m pip install 'torch>=99.1' 'no-such-library>=1'")
    assert [one.level for one in machine.libraries()] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("older", "newer"), [("2.9", "2.10"), ("2.13", "2.13.1"), ("3", "4.0.0"), ("1.0", "1.0.0.1"), ("2.9.9+cpu", "2.13.0rc1")]
)
def test_versions_are_ordered_by_their_numbers(older: str, newer: str) -> None:
    """2.10 would be older than 2.9."""
    assert machine.release(older) < machine.release(newer)
    assert machine.release("2.0.0") == machine.release("2")


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    """Nodes that run different programs would look alike."""
    for folder in ("ensemble/a", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ensemble/a/b.py").write_text("1")
    before = list(machine.code(tmp_path))
    assert before == list(machine.code(tmp_path))
    (tmp_path / "ensemble/a/b.py").write_text("2")
    assert before != list(machine.code(tmp_path))


@pytest.mark.parametrize(
    ("gpus", "changes", "environment", "driver", "level", "expected"),
    [
        ([H200] * 2, {}, {"SLURM_GPUS_ON_NODE": "2"}, "550.54", "ok", "2 × H200 (141 GB)"),
        ([H200], {}, {"SLURM_GPUS_ON_NODE": "4"}, "550.54", "problem", "granted 4 on this node, PyTorch sees 1"),
        ([T4], {}, {}, "550.54", "problem", "needs compute capability 8.0, the GPU has 7.5"),
        ([], {"cuda": None}, {}, "550.54", "problem", "built for CPUs"),
        ([], {"cuda": None}, {}, "", "ok", "none, and PyTorch is built for CPUs"),
        ([], {"error": "too old"}, {}, "450.1", "problem", "(CUDA 12.8), driver 450.1: too old"),
        ([], {}, {"CUDA_VISIBLE_DEVICES": ""}, "550.54", "note", "CUDA_VISIBLE_DEVICES= hides them"),
        ([], {}, {"CUDA_VISIBLE_DEVICES": "-1"}, "550.54", "note", "CUDA_VISIBLE_DEVICES=-1 hides them"),
        ([], {}, {"SLURM_JOB_ID": "7"}, "550.54", "note", "this job was granted none"),
        ([], {}, {}, "", "ok", "none here, and no NVIDIA driver"),
        ([], {"failed": "ImportError"}, {}, "", "problem", "cannot be loaded: ImportError"),
        ([], {"failed": ranks.TIMED_OUT}, {}, "550.54", "problem", "cannot be loaded: no answer"),
    ],
)
def test_why_there_is_no_gpu(
    gpus: list[Any], changes: dict[str, Any], environment: dict[str, str], driver: str, level: str, expected: str
) -> None:
    """A CPU build, an old driver and a hidden GPU need different fixes, and a user would try the wrong one."""
    info = {"cuda": "12.8", "cudnn": 91002, "nccl": "2.27.3", "gpus": gpus, "error": "", **changes}
    reported = list(machine.gpus(info, environment, driver))
    assert expected in next(finding for finding in reported if finding.level == level).value
    assert {finding.level for finding in reported} <= {"ok", level}


@pytest.mark.parametrize(
    ("environment", "limits", "level", "expected"),
    [
        ({}, {"affinity": 8}, "ok", "not set"),
        ({}, {"affinity": 4}, "note", "not set"),
        ({"OMP_NUM_THREADS": "1"}, {"affinity": 4}, "note", "OMP_NUM_THREADS=1 of 4 cores"),
        ({"OMP_NUM_THREADS": "4"}, {"affinity": 4}, "ok", "OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": "4,2"}, {"affinity": 4}, "ok", "OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": "6,2 "}, {"affinity": 4}, "problem", "OMP_NUM_THREADS=6, but 4 granted"),
        ({"OMP_NUM_THREADS": "5"}, {"affinity": 8, "cgroup": 4}, "problem", "OMP_NUM_THREADS=5, but 4 granted"),
    ],
)
def test_threads_against_cores(environment: dict[str, str], limits: dict[str, int], level: str, expected: str) -> None:
    """Threads that wait for cores which were never granted would make every run ten times slower."""
    reported = machine.check_cores(environment, limits, 8)
    (threads,) = [finding for finding in reported if finding.check == "threads"]
    assert (threads.level, expected in threads.value) == (level, True)
    assert (f"threads={min(limits.values())}" in threads.fix) == (environment == {"OMP_NUM_THREADS": "1"})


def test_limits_of_the_process(tmp_path: Path) -> None:
    """Workers would end with «Too many open files», and NCCL without InfiniBand."""
    with soft_limit(resource.RLIMIT_NOFILE, 512):
        assert "512" in only_finding(machine.open_files(), "problem").value
    with soft_limit(resource.RLIMIT_NOFILE, 2048):
        assert "ulimit -n 4096" in only_finding(machine.open_files(), "note").fix
    with soft_limit(resource.RLIMIT_MEMLOCK, 65536):
        assert "65536 bytes" in only_finding(machine.locked_memory(tmp_path), "problem").value
        assert list(machine.locked_memory(tmp_path / "none")) == [], "only where there is InfiniBand"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tiny disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_or_read_only_disk_is_named(tiny_disk: Path) -> None:
    """A job would stage its data for an hour and then fail; workers would end by a bus error."""
    environment = {"SCRATCH_FOLDER": str(tiny_disk)}
    assert "No space left" in only_finding(machine.scratch(environment), "problem").value
    assert "of 0.001 GB" in only_finding(machine.shared_memory(tiny_disk), "problem").value
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    assert "Read-only" in only_finding(machine.scratch(environment), "problem").value


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps shared memory in a folder")
def test_missing_shared_memory_is_a_problem(tmp_path: Path) -> None:
    """The doctor would find no problem in a container in which every loader worker fails with a FileNotFoundError."""
    finding = only_finding(machine.shared_memory(tmp_path / "shm"), "problem")
    assert "loader workers cannot start" in finding.value
    assert "num_workers=0" in finding.fix


def test_a_sound_folder_is_left_as_it_was(tmp_path: Path) -> None:
    """The doctor would report a problem for every folder, or leave files behind."""
    assert [finding.level for finding in machine.scratch({"TMPDIR": str(tmp_path)})] != ["problem"]
    assert list(tmp_path.iterdir()) == []


def test_a_network_file_system_is_known_by_the_deepest_mount(tmp_path: Path) -> None:
    """Copying data from one network folder to another would be recommended, also if its path has a blank."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
        f"node {tmp_path}/scratch xfs rw 0 0\nserver:/y {tmp_path}/scratch/my\\040data nfs rw 0 0\nlast / overlay rw 0 0\n"
    )
    assert machine.file_system(Path("/usr"), mounts) == "overlay"
    assert machine.file_system(tmp_path / "data", mounts) in machine.NETWORK_FILE_SYSTEMS
    assert machine.file_system(tmp_path / "scratch/x", mounts) == "xfs"
    assert machine.file_system(tmp_path / "scratch/my data/x", mounts) == "nfs"
    assert machine.file_system(Path("/proc")) == "proc"
