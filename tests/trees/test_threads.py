"""How many threads the tree libraries get, and the OpenMP settings before they are imported."""

import json
import os
import sys
from pathlib import Path

import pytest
from tree_members import run

from ensemble import cores
from ensemble.errors import UserError
from ensemble.trees import threads


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
    assert cores.limits({}, tmp_path) == {"affinity": 8}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert cores.limits({}, tmp_path) == {"affinity": 2}


def test_slurm_is_a_limit(tmp_path: Path) -> None:
    """A task with four cores would use all eight of the node."""
    assert cores.limits({"SLURM_CPUS_PER_TASK": "4"}, tmp_path) == {"affinity": 8, "SLURM_CPUS_PER_TASK": 4}
    for senseless in ("", "0", "-1", "four", "4,2"):
        assert cores.limits({"SLURM_CPUS_PER_TASK": senseless}, tmp_path) == {"affinity": 8}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("200000 100000\n", 2), ("350000 100000\n", 3), ("50000 100000\n", 1), ("max 100000\n", None), ("", None), ("9", None)],
)
def test_the_quota_of_cgroup_v2_is_a_limit(text: str, limit: int | None, tmp_path: Path) -> None:
    """A container of two cores on a node of 64 would run 64 threads against its quota, which is tens of times slower."""
    assert cores.limits({}, cgroup_v2(tmp_path, text)).get("cgroup") == limit


@pytest.mark.parametrize(
    ("quota", "period", "limit"), [("150000\n", "100000\n", 1), ("400000", "100000", 4), ("-1\n", "100000\n", None)]
)
def test_the_quota_of_cgroup_v1_is_a_limit(quota: str, period: str, limit: int | None, tmp_path: Path) -> None:
    """On a cluster with an older kernel, a container would run more threads than its quota allows."""
    assert cores.limits({}, cgroup_v1(tmp_path, quota, period)).get("cgroup") == limit


@pytest.mark.parametrize("version", [1, 2])
def test_each_cgroup_above_may_limit(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a Slurm job, some groups below the root, would be ignored, or that of its step would replace it."""
    own = tmp_path / "own"
    own.write_text("0::/slurm/job_7/step_0\n" if version == 2 else "9:memory:/other\n4:cpu,cpuacct:/slurm/job_7/step_0\n")
    monkeypatch.setattr(cores, "OWN_CGROUP", own)
    job = tmp_path / ("slurm" if version == 2 else "cpu/slurm") / "job_7"
    for folder, quota in ((job / "step_0", 600_000), (job, 300_000), (job.parent, 700_000)):
        folder.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (folder / "cpu.max").write_text(f"{quota} 100000\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.limits({}, tmp_path) == {"affinity": 8, "cgroup": 3}
    own.unlink()
    assert cores.limits({}, tmp_path) == {"affinity": 8}


GRANTED = {"SLURM_CPUS_PER_TASK": "8"}


@pytest.mark.parametrize(
    ("asked", "environment", "chosen", "warning"),
    [
        (0, {}, 8, ""),
        (0, GRANTED, 8, ""),
        (3, GRANTED, 3, ""),
        (
            0,
            {**GRANTED, "OMP_NUM_THREADS": "1"},
            8,
            "would leave 7 of the job's 8 cores idle and is ignored: use threads=1",
        ),
        (1, {**GRANTED, "OMP_NUM_THREADS": "1"}, 1, ""),
        (0, {"OMP_NUM_THREADS": "2"}, 2, "OMP_NUM_THREADS=2 leaves 6 of 8 cores idle: use threads=8"),
        (0, {"OMP_NUM_THREADS": "2,1"}, 2, "OMP_NUM_THREADS=2 leaves 6 of 8 cores idle: use threads=8"),
        (0, {"OMP_NUM_THREADS": "16"}, 8, ""),
        (0, {"OMP_NUM_THREADS": "four"}, 8, ""),
        (16, {}, 16, "16 threads on 8 cores wait for each other"),
        (0, {"OMP_WAIT_POLICY": "active"}, 8, "OMP_WAIT_POLICY=ACTIVE lets waiting threads spin"),
        (0, {"OMP_WAIT_POLICY": "PASSIVE"}, 8, ""),
    ],
)
def test_settings_that_reduce_the_speed_have_a_warning(
    asked: int, environment: dict[str, str], chosen: int, warning: str, tmp_path: Path
) -> None:
    """A job script's OMP_NUM_THREADS=1 would leave XGBoost one of 8 cores, whatever its settings, without a message."""
    result, why, warnings = threads.choose(asked, environment, tmp_path)
    assert result == chosen
    assert why.endswith("SLURM_CPUS_PER_TASK 8)" if "SLURM_CPUS_PER_TASK" in environment else "affinity 8)")
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


def test_the_smallest_limit_is_configured_unless_a_number_is_requested() -> None:
    """The libraries would get different numbers, or threads=3 would be ignored."""
    code = (
        "import json, os\nfrom ensemble.trees import threads\n"
        "chosen = threads.configure({})\n"
        "print(json.dumps([chosen, os.environ['OMP_NUM_THREADS'], os.environ['OMP_WAIT_POLICY']]))"
    )
    chosen, three = ["-c", code.format("")], ["-c", code.format(3)]  # in new processes, since OpenMP reads its settings once
    assert json.loads(run(chosen, SLURM_CPUS_PER_TASK="1").stdout) == [1, "1", "PASSIVE"]
    assert json.loads(run(three, SLURM_CPUS_PER_TASK="1").stdout) == [3, "3", "PASSIVE"]
    assert json.loads(run(chosen, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="ACTIVE").stdout) == [1, "1", "ACTIVE"]
    output = run(three, SLURM_CPUS_PER_TASK="1").stderr.splitlines()
    assert output[0].startswith("OMP_NUM_THREADS=3 OMP_WAIT_POLICY=PASSIVE: threads=3 is set, 1 cores are granted (")
    assert output[1].startswith("warning: 3 threads on 1 cores")


def test_configuring_after_the_import_is_an_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP would ignore the settings, and only the lower speed would show it."""
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(AssertionError, match="OpenMP has read its settings already"):
        threads.configure(1)


@pytest.mark.parametrize(
    ("number", "message"),
    [(-1, "give a number of cores, or 0"), (100_000, "give at most 1024, or leave threads= out")],
)
def test_an_impossible_number_of_threads_is_refused(number: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """threads=-1 means all cores in other programs; here the libraries would interpret it differently. With 100,000 threads
    OpenMP would end the process."""
    for name in ("xgboost", "lightgbm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UserError, match=f"threads={number} is impossible: {message}"):
        threads.configure(number)
