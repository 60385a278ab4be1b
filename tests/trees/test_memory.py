"""The memory that is available to a training, and the memory mode in which it trains."""

import os
from pathlib import Path
from typing import Any

import pytest
import tree_members
from tree_members import interrupt, model, run

from ensemble import cores, folders
from ensemble.errors import UserError
from ensemble.trees import memory, train
from ensemble.trees.distributed import RankGroup
from ensemble.trees.settings import TreesConfig

MEGABYTE = 1 << 20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a cgroup, on a machine with 1000 MB left."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {1000 * 1024} kB\nHugePages_Total: 0\n")
    monkeypatch.setattr("ensemble.memory.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(cores, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/job\n9:memory:/job\n")
    return tmp_path


def group(folder: Path, version: int, most: str, now_mb: int, pages_mb: int) -> None:
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}.get(
        version, ("memory.max", "memory.current", "inactive_file")
    )
    folder.mkdir(parents=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{now_mb * MEGABYTE}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {pages_mb * MEGABYTE}\n")


def test_the_machine_is_the_first_limit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training would be killed on a machine whose memory other programs use."""
    assert memory.available(machine) == 1000 * MEGABYTE
    monkeypatch.setattr("ensemble.memory.MEMINFO", machine / "nothing")
    assert memory.available(machine) is None


@pytest.mark.parametrize("version", [1, 2])
def test_the_cgroup_is_a_limit(version: int, machine: Path) -> None:
    """A job with 500 MB on a node of a terabyte would be killed, or cached pages of a file would count as used memory."""
    group(machine / ("job" if version == 2 else "memory/job"), version, str(500 * MEGABYTE), 400, 150)
    assert memory.available(machine) == (500 - 400 + 150) * MEGABYTE


@pytest.mark.parametrize(("version", "most"), [(2, "max"), (1, "9223372036854771712")])
def test_a_cgroup_without_a_limit_is_none(version: int, most: str, machine: Path) -> None:
    """Every training would keep its rows on disk, or end in a traceback."""
    group(machine / ("job" if version == 2 else "memory/job"), version, most, 400, 150)
    assert memory.available(machine) == 1000 * MEGABYTE


def test_low_memory_mode_if_memory_is_short() -> None:
    """A training would be killed for its memory although it could have run with memory=low."""
    gigabyte = 10**9
    needs = memory.needed("xgboost", 10_000_000, 50)
    assert 2 * gigabyte < needs < 5 * gigabyte
    assert memory.needed("lightgbm", 10_000_000, 50) < needs
    assert memory.mode_for(needs, needs) == "in_core"
    assert memory.mode_for(needs, needs - 1) == "low"
    assert memory.mode_for(needs, None) == "in_core"


def config(library: str, data: Path, out: Path, **settings: Any) -> TreesConfig:
    values = {"num_rounds": 28, "early_stopping_rounds": 28, "chunk_rounds": 7, "checkpoint_s": 0.0, **settings}
    return tree_members.config_of(library, data, out, **values)


def test_memory_is_counted_for_the_rows_of_a_refit(library: str, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training with refit=true would be killed in its second half, in which it learns from more rows."""
    manifest = folders.read_manifest(prepared)
    sizes = {name: split["rows"] for name, split in manifest["splits"].items()}
    num_features = len(manifest["features"])
    for is_refit, splits in ((False, ["train"]), (True, ["train", "validation", "blend"])):
        num_rows = sum(sizes[name] for name in splits) + sizes["validation"]
        settings = tree_members.config_of(library, prepared, refit=is_refit)
        for lacking, mode in ((0, "in_core"), (1, "low")):
            left = memory.needed(library, num_rows, num_features) - lacking
            monkeypatch.setattr(memory, "available", lambda left=left: left)
            assert train.memory_mode(settings, manifest, RankGroup()) == mode


def test_low_memory_resumes_to_the_same_bits(
    library: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is requeued would end with another model, or files of rows would be left beside every member."""
    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 500)  # several files
    monkeypatch.setitem(memory.SAMPLED_ROWS, "low", 1000)
    settings = config(library, prepared, tmp_path / "again", memory="low")
    output = train.train(config(library, prepared, tmp_path / "whole", memory="low"))
    assert output["memory"] == "low"
    interrupt(settings)
    interrupt(settings, 1, "last")
    (tmp_path / "again.checkpoint/.pages-0").mkdir()  # killed by force
    (tmp_path / "again.checkpoint/.pages-0/rows").write_text("half")
    train.train(settings, "auto")
    assert model(tmp_path / "again") == model(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "whole"]
    train.train(config(library, prepared, tmp_path / "in_core", memory="in_core"))
    assert (model(tmp_path / "in_core") == model(tmp_path / "whole")) == (library == "xgboost")


def test_a_resumed_training_keeps_its_memory_mode(
    library: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that is requeued on a node with more memory would mix two kinds of bins."""
    monkeypatch.setitem(memory.SAMPLED_ROWS, "low", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available", lambda: 1)
        interrupt(config(library, prepared, tmp_path / "out"))
    assert "memory=low: training in memory may need " in capsys.readouterr().err
    if library == "lightgbm":
        with pytest.raises(UserError, match=r"was written with memory=low, and with in_core the trees would differ"):
            train.train(config(library, prepared, tmp_path / "out", memory="in_core"), "auto")
    summary = train.train(config(library, prepared, tmp_path / "out"), "auto")
    assert summary["memory"] == ("low" if library == "lightgbm" else "in_core")
    train.train(config(library, prepared, tmp_path / "low", memory="low"))
    assert model(tmp_path / "out") == model(tmp_path / "low")


def test_the_summary_contains_the_peak_memory(prepared: Path, tmp_path: Path) -> None:
    """The memory to request for a job would be unknown, or include that of earlier work or of the parent process."""
    code = """
import os
import sys
from ensemble.trees import threads; threads.configure(1)
from ensemble.trees import train as member
from ensemble.trees.settings import TreesConfig
before = bytes(range(256)) * (int(sys.argv[1]) * 4000)
whole, held = member.library_module, []
member.library_module = lambda name: held.append(bytes(range(256)) * (int(sys.argv[2]) * 4000)) or whole(name)
print(member.train(TreesConfig(data=sys.argv[3], out=sys.argv[4], num_rounds=2, threads=1))["peak_memory_mb"])
"""
    parent = bytes(range(256)) * 1_600_000
    peaks = []
    for before_mb, during_mb in ((200, 0), (0, 200)):
        done = run(["-c", code, before_mb, during_mb, prepared, tmp_path / str(len(peaks))])
        assert done.returncode == 0, done.stderr
        peaks.append(float(done.stdout))
    del parent
    # Of the second of two equal trainings in a process
    again = code.replace(
        "print(",
        "member.train(TreesConfig(data=sys.argv[3], out=sys.argv[4] + '-', num_rounds=2, threads=1))\nheld.clear()\nprint(",
    )
    done = run(["-c", again, 0, 30, prepared, tmp_path / "again"])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 25 or not os.access("/proc/self/clear_refs", os.W_OK)
    assert 20 < peaks[0] < 300
    assert peaks[1] == pytest.approx(peaks[0] + 205, abs=40)
