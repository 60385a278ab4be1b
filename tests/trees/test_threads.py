"""How many threads the tree libraries get, and what is settled before they are imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble.errors import UserError
from ensemble.trees import threads

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def cgroup_v2(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text)
    return folder


def cgroup_v1(folder: Path, quota: str, period: str) -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu/cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu/cpu.cfs_period_us").write_text(period)
    return folder


def test_the_affinity_mask_is_the_first_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job bound to two of 64 cores would start 64 threads on them."""
    assert threads.thread_limits({}, tmp_path) == {"affinity": 8}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert threads.thread_limits({}, tmp_path) == {"affinity": 2}


@pytest.mark.parametrize("name", ["SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"])
def test_the_environment_is_a_limit(name: str, tmp_path: Path) -> None:
    """A task of four cores, or a user who asked for four, would take the node of eight."""
    assert threads.thread_limits({name: "4"}, tmp_path) == {"affinity": 8, name: 4}
    for senseless in ("", "0", "-1", "four", "4,2"):
        assert threads.thread_limits({name: senseless}, tmp_path) == {"affinity": 8}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("200000 100000\n", 2), ("350000 100000\n", 3), ("50000 100000\n", 1), ("max 100000\n", None), ("", None), ("9", None)],
)
def test_the_quota_of_cgroup_v2_is_a_limit(text: str, limit: int | None, tmp_path: Path) -> None:
    """A container of two cores on a node of 64 would run 64 threads against its quota: tens of times slower."""
    assert threads.thread_limits({}, cgroup_v2(tmp_path, text)).get("cgroup") == limit


@pytest.mark.parametrize(
    ("quota", "period", "limit"), [("150000\n", "100000\n", 1), ("400000", "100000", 4), ("-1\n", "100000\n", None)]
)
def test_the_quota_of_cgroup_v1_is_a_limit(quota: str, period: str, limit: int | None, tmp_path: Path) -> None:
    """The same on a cluster with an older kernel."""
    assert threads.thread_limits({}, cgroup_v1(tmp_path, quota, period)).get("cgroup") == limit


def settled(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh Python, since OpenMP's settings are read once per process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_smallest_limit_is_settled_and_an_order_goes_before() -> None:
    """The libraries would be told different numbers, or threads=3 be overruled."""
    code = (
        "import json, os\nfrom ensemble.trees import threads\n"
        "chosen = threads.settle({})\n"
        "print(json.dumps([chosen, os.environ['OMP_NUM_THREADS'], os.environ['OMP_WAIT_POLICY']]))"
    )
    assert json.loads(settled(code.format(""), SLURM_CPUS_PER_TASK="1").stdout) == [1, "1", "PASSIVE"]
    assert json.loads(settled(code.format(3), SLURM_CPUS_PER_TASK="1").stdout) == [3, "3", "PASSIVE"]
    assert json.loads(settled(code.format(""), OMP_NUM_THREADS="1", OMP_WAIT_POLICY="ACTIVE").stdout) == [1, "1", "ACTIVE"]


def test_settling_too_late_is_our_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings would be made where OpenMP reads them no more, and nobody would notice but the clock."""
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(AssertionError, match="OpenMP has read its settings already"):
        threads.settle(1)


def test_a_negative_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """threads=-1 means all cores elsewhere; here it would go through to the libraries, which disagree."""
    for name in ("xgboost", "lightgbm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UserError, match="threads=-1 is impossible: give a number of cores, or 0"):
        threads.settle(-1)
