"""The scaling benchmark: its figures from finished runs, how it launches ranks, mistakes, and one real run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks import scaling
from benchmarks.scaling import Launch
from benchmarks.timing import timed

from ensemble import folders
from ensemble.errors import Failure, UserError

ROOT = Path(__file__).resolve().parents[3]
BENCHMARK = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), "scaling"]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
}  # fmt: skip
YAML = str(ROOT / "accelerate_configs" / "multi_cpu.yaml")


def write_run(folder: Path, ranks: int, samples_per_s: float, seconds: float = 90.0, gpu: str = "") -> Path:
    """The folder of a finished training, whose log has a slow first line and one other slow line."""
    folder.mkdir(parents=True)
    device = "cuda:0" if gpu else "cpu" if ranks == 1 else "cpu:0"
    folders.write_json(folder / "summary.json", {"ranks": ranks, "device": device, "seconds": seconds})
    folders.write_json(folder / "environment.json", {"gpus": [{"name": gpu, "memory_gb": 80.0}] if gpu else []})
    speeds = [1.0, samples_per_s, 0.1 * samples_per_s, samples_per_s]
    lines: list[dict[str, Any]] = [
        {"kind": "train", "step": 10 * place, "samples_per_s": speed, "data_wait": 0.5 if place == 1 else 0.02}
        for place, speed in enumerate(speeds, start=1)
    ]
    lines.append({"kind": "val", "step": 40, "average_precision": 0.3})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def table(folder: Path, gpu: str, price: float) -> list[dict[str, Any]]:
    """Three rounds, the second twice as fast: 4 ranks have 3, 2 and 2.5 times the speed of one."""
    runs = {
        ranks: [
            scaling.read(write_run(folder / f"{ranks} {number}", ranks, speed, 360 / ranks, gpu))
            for number, speed in enumerate(speeds)
        ]
        for ranks, speeds in {1: (100.0, 200.0, 100.0), 4: (300.0, 400.0, 250.0)}.items()
    }
    launches = [Launch(ranks=1, nodes=1, words=[]), Launch(ranks=4, nodes=2, words=[])]
    return scaling.table(launches, runs, price)


def test_speed_up_efficiency_hours_and_cost_of_ranks(tmp_path: Path) -> None:
    """A drift of the machine or a cold start would change the speed, or the cost would be that of one GPU."""
    one, four = table(tmp_path, "NVIDIA A100-SXM4-80GB", 3.6)
    assert (one["speed_up"]["median"], one["efficiency"]["median"], one["gpu_hours"]) == (1.0, 1.0, 0.1)
    assert four["samples_per_s"] == {"median": 300.0, "quartile_1": 275.0, "quartile_3": 350.0}
    assert four["speed_up"] == {"median": 2.5, "quartile_1": 2.25, "quartile_3": 2.75}
    assert four["efficiency"] == {"median": 0.625, "quartile_1": 0.5625, "quartile_3": 0.6875}
    assert (four["ranks"], four["nodes"], four["device"]) == (4, 2, "NVIDIA A100-SXM4-80GB")
    assert four["gpu_hours"] == 0.1  # a quarter of the time on four
    assert one["cost_per_million_samples"] == 10.0  # 1e6 ÷ 100 samples/s × 3.6 ÷ 3600
    assert four["cost_per_million_samples"] == pytest.approx(40 / 3, rel=1e-3)
    assert four["data_wait"]["median"] == 0.02
    assert four["rounds"] == [300.0, 400.0, 250.0]


def test_cpus_have_no_gpu_hours_and_no_price(tmp_path: Path) -> None:
    """A measurement on CPUs would have the hours or the cost of GPUs."""
    for row in table(tmp_path, "", 3.6):
        assert row["device"] == "cpu"
        assert row["rank_hours"] == 0.1
        assert "gpu_hours" not in row
        assert row["cost_per_million_samples"] is None


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    """A cost of 0 would be written."""
    assert [row["cost_per_million_samples"] for row in table(tmp_path, "NVIDIA L4", 0.0)] == [None, None]


def test_a_training_too_short_to_be_warm_is_refused(tmp_path: Path) -> None:
    """The speed of a cold start would be written, or the median of nothing would end in a traceback."""
    run = write_run(tmp_path / "run", 1, 100.0)
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 8, "samples_per_s": 1.0, "data_wait": 0.1}\n')
    with pytest.raises(UserError, match="a training of 8 steps is too short to measure"):
        scaling.read(run)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a Slurm job with 2 nodes."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")


@pytest.mark.usefixtures("job")
def test_a_job_starts_ranks_by_srun_on_as_few_nodes_as_can_be() -> None:
    """All ranks would be on one node, or use more nodes than necessary."""
    launches = scaling.plan((1, 3, 4, 6), 4, YAML)
    assert [(launch.ranks, launch.nodes) for launch in launches] == [(1, 1), (3, 1), (4, 1), (6, 2)]
    assert launches[-1].words == [
        "env", "RANKS_PER_NODE=3", "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
        "bash", ROOT / "slurm" / "node.sh", YAML,
    ]  # fmt: skip
    assert [launch.ranks for launch in scaling.plan((), 2, YAML)] == [1, 2, 4]


def test_the_numbers_of_ranks_depend_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs would be measured on its CPU, or with more ranks than GPUs."""
    for num_gpus, ranks in ((0, [1, 2]), (1, [1]), (6, [1, 2, 4])):
        monkeypatch.setattr(scaling, "num_gpus", lambda number=num_gpus: number)
        launches = scaling.plan((), 1, "")
        assert [launch.ranks for launch in launches] == ranks
        yamls = [Path(launch.words[launch.words.index("--config_file") + 1]) for launch in launches]
        assert all(yaml.is_file() for yaml in yamls)
        kind = "gpu" if num_gpus else "cpu"
        assert [yaml.stem for yaml in yamls] == [f"single_{kind}", *[f"multi_{kind}"] * (len(ranks) - 1)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": 1}, "rounds=1 is impossible: for quartiles it must be 2 or more"),
        ({"price_per_gpu_hour": -1.0}, "price_per_gpu_hour=-1.0 is impossible: it must be 0, for none, or more"),
        ({"ranks": (2, 4)}, "ranks=[2, 4] is impossible: the numbers must begin with 1, and rise, as in ranks=[1,2,4]"),
        ({"ranks": (1, 2, 2)}, "ranks=[1, 2, 2] is impossible: the numbers must begin with 1"),
        ({"ranks_per_node": 0}, "ranks_per_node=0 is impossible: it must be at least 1"),
        ({"configuration": "gone.yaml"}, "configuration=gone.yaml does not exist: name one of accelerate_configs/"),
        (
            {"configuration": YAML, "ranks": (1, 4, 8), "ranks_per_node": 2},
            "ranks=[1, 4, 8] is impossible: the job has 2 nodes, of ranks_per_node=2 each, which cannot hold 8",
        ),
        ({"configuration": YAML}, "folder= is empty, and other nodes do not see this one's temporary folder"),
        ({"configuration": YAML, "folder": f"{YAML}/x"}, "multi_cpu.yaml/x cannot be written (Not a directory)"),
        ({"ranks": (1, 2), "training": ("batch_size=9",)}, "nearest that can is training=[batch_size=8]"),
        ({"training": ("batchsize=9",)}, "did you mean 'batch_size'?"),
        ({"data": "gone"}, "there is no prepared data at gone"),
    ],
)
@pytest.mark.usefixtures("job")
def test_a_mistake_is_named_before_anything_is_measured(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After hours on a cluster there would be a traceback."""
    monkeypatch.setattr(scaling, "num_gpus", lambda: 0)
    for starts in ("timed", "prepared_market"):
        monkeypatch.setattr(scaling, starts, lambda *_: pytest.fail("something was started"))
    with pytest.raises(UserError) as caught:
        scaling.scaling(**settings)
    assert sentence in str(caught.value)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks would share a GPU, and their speed count as that of two GPUs."""
    monkeypatch.setattr(scaling, "num_gpus", lambda: 2)
    with pytest.raises(UserError, match="this machine has 2 GPUs, which cannot hold 4: name fewer, or ask for more"):
        scaling.plan((1, 4), 1, "")


def test_ranks_alternate_on_a_cpu_with_independent_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drift of the machine would affect one number of ranks only, or a figure of the README would be missing."""
    commands: list[list[str]] = []

    def run(command: list[Any]) -> dict[str, float]:
        """A training with 100 samples/s on one rank, and 70 on each of two ranks."""
        words = [str(word) for word in command]
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        commands.append(words)
        ranks = int(words[words.index("--num_processes") + 1])
        write_run(Path(settings["out"]), ranks, {1: 100.0, 2: 140.0}[ranks])
        return {}

    monkeypatch.setattr(scaling, "num_gpus", lambda: 0)
    monkeypatch.setattr(scaling, "prepared_market", lambda scratch, *_: Path(scratch))
    monkeypatch.setattr(scaling, "timed", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    results = scaling.scaling(rounds=2, folder=str(tmp_path), training=["batch_size=300"])
    launched = [(words[words.index("--num_processes") + 1], words[1], words[-1]) for words in commands]
    one, two, half, all_cores = (
        ("1", "OMP_NUM_THREADS=1", "batch_size=300"),
        ("2", "OMP_NUM_THREADS=1", "batch_size=300"),
        ("1", "OMP_NUM_THREADS=1", "batch_size=150"),
        ("1", "OMP_NUM_THREADS=3", "batch_size=300"),
    )
    assert launched == [one, two, half, half, all_cores] * 2
    assert [row["efficiency"]["median"] for row in results["by_ranks"]] == [1.0, 0.7]
    assert results["trainings_alone"]["efficiency"] == {"median": 1.0, "quartile_1": 1.0, "quartile_3": 1.0}
    assert results["trainings_alone"]["samples_per_s"]["median"] == 200.0
    assert (results["all_cores"]["threads"], results["all_cores"]["data_wait"]["median"]) == (3, 0.02)
    assert (results["batch_size"], results["training"]) == (300, ["max_epochs=1", "batch_size=300"])


def test_missing_ranks_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that starts one rank instead of two would give an efficiency of a half."""

    def run(command: list[Any]) -> None:
        write_run(Path(next(word for word in command if str(word).startswith("out="))[4:]), 1, 100.0)

    monkeypatch.setattr(scaling, "timed", run)
    monkeypatch.setattr(scaling.folders, "read_manifest", lambda *_: {})
    with pytest.raises(Failure, match="1 ranks ran instead of 2"):
        scaling.scaling(rounds=2, ranks=(1, 2), configuration=YAML, folder=str(tmp_path), data="x")


def test_the_error_of_a_failed_training_is_repeated() -> None:
    """The end of the launcher's table of failures would be shown instead of the error of a rank."""
    code = "import sys; print('error: batch_size=3 is odd', 'Traceback', 900 * '=', sep='\\n', file=sys.stderr); sys.exit(1)"
    with pytest.raises(UserError, match=r"ended with 1: batch_size=3 is odd$"):
        timed([sys.executable, "-c", code])


@pytest.mark.torture
def test_a_real_measurement(prepared: Path, tmp_path: Path) -> None:
    """After a change of the launcher, train.py or the files of a run, the figures could not be measured again."""
    training = "training=[max_epochs=0.5,batch_size=64,evaluations_per_epoch=1]"
    words = [f"data={prepared}", f"results={tmp_path / 'results'}", f"folder={tmp_path / 'runs'}", "rounds=2", training]
    done = subprocess.run(
        [*BENCHMARK, f"configuration={YAML}", *words],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = folders.read_json(tmp_path / "results" / "scaling.json")
    assert results["scaling"].startswith("strong: the global batch is the same")
    assert (results["batch_size"], results["rounds"], results["price_per_gpu_hour"]) == (64, 2, None)
    assert [(row["ranks"], row["nodes"], row["device"]) for row in results["by_ranks"]] == [(1, 1, "cpu"), (2, 1, "cpu")]
    assert all(min(row["rounds"]) > 0 and 0 <= row["data_wait"]["median"] <= 1 for row in results["by_ranks"])
    assert results["environment"]["command"].startswith("python scripts/benchmark.py scaling")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_stopped_measurement_leaves_no_process_and_no_file(prepared: Path, tmp_path: Path) -> None:
    """A training would continue after the end of the job, and fill the shared disk."""
    runs = tmp_path / "runs"
    words = [
        f"data={prepared}",
        f"folder={runs}",
        f"results={tmp_path / 'results'}",
        "ranks=[1]",
        "training=[max_epochs=999]",
    ]
    started = subprocess.Popen(
        [*BENCHMARK, *words],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while not any(runs.glob("*/*/metrics.jsonl")):
            assert time.monotonic() < end, "the training did not write its log"
            time.sleep(0.1)
        (training,) = (path.parent for path in runs.glob("*/*/metrics.jsonl"))
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 143
    finally:
        started.kill()
        started.communicate()
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if str(training) in line]
    assert list(runs.iterdir()) == []
    assert not (tmp_path / "results").exists()
