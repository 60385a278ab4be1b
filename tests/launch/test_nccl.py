"""Several ranks with NCCL, all of them on one GPU: resumed, sharded and lost, and their predictions."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import psutil
import pytest
import torch
from benchmarks import roofline
from run_weights import same, weights
from safetensors.torch import load_file

from ensemble import predictions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NUM_RANKS = 2
SHARDED_WORKER, FAILING_WORKER = (Path(__file__).with_name(f"{name}.py") for name in ("sharded_worker", "failing_ranks"))
EPOCHS = {"hot_sellers": 0.3, "next_item": 0.5, "table": 0.5, "sudoku": 0.1, "emulator": 0.2}
"""Epochs by recipe: some dozens of steps, after which an evaluation and several checkpoints are written."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated data of the recipes."""
    return tmp_path_factory.mktemp("data")


def command(recipe: str, data: Path, out: Path, *words: Any) -> list[Any]:
    paths = [f"data={roofline.prepared(data, recipe)}", f"out={out}"]
    settings = [*roofline.WORDS[recipe], *paths, f"max_epochs={EPOCHS[recipe]}", "trackers=[]"]
    return [launcher.TRAIN, "--recipe", recipe, *settings, *words]


@pytest.mark.parametrize(
    ("recipe", "precision", "yaml"),
    [
        *((recipe, "bf16", "multi_node") for recipe in roofline.WORDS),
        *(("hot_sellers", precision, "multi_node") for precision in ("no", "fp16")),
        ("hot_sellers", "bf16", "multi_gpu_sharded"),
        ("emulator", "no", "multi_gpu_sharded"),
    ],
)
def test_ranks_that_are_killed_and_resumed_have_the_bits_of_others(
    recipe: str, precision: str, yaml: str, data: Path, tmp_path: Path
) -> None:
    """Gradients would be added in another order in each run, or a part of the state on a GPU would not be restored."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    launcher.run_machines(yaml, NUM_RANKS, [*command(recipe, data, whole), f"precision={precision}"], tmp_path)
    resumed = [*command(recipe, data, killed), f"precision={precision}", "checkpoint_steps=4", "--resume", "auto"]
    with launcher.machines(yaml, NUM_RANKS, resumed, tmp_path) as launchers:
        deadline = time.monotonic() + launcher.TIMEOUT_S
        while launchers[0].poll() is None and time.monotonic() < deadline:
            if len([*killed.glob("checkpoints/step-*")]) > 1:
                break
            time.sleep(0.01)
        assert launchers[0].poll() is None, "it ended before it was killed"
        for process in launchers:
            launcher.kill(process)
    launcher.run_machines(yaml, NUM_RANKS, resumed, tmp_path)
    assert same(weights(whole), weights(killed))


def test_sharded_ranks_have_the_result_of_one_and_resume_exactly(tmp_path: Path) -> None:
    """Gradients or their norm would be those of a shard, or a moment would be lost between the GPU and a checkpoint."""
    one, two, resumed = (tmp_path / name for name in ("one", "two", "resumed"))
    for folder in (one, two, resumed):
        folder.mkdir()
    code, errors = launcher.run([sys.executable, SHARDED_WORKER, "train", one], tmp_path)
    assert code == 0, errors
    wrap = ["--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "20"]
    words = ["--mixed_precision", "no", *wrap, SHARDED_WORKER, "train"]
    launcher.run_machines("multi_gpu_sharded", NUM_RANKS, [*words, two], tmp_path)
    launcher.run_machines("multi_gpu_sharded", NUM_RANKS, [*words, resumed, two / "checkpoint"], tmp_path)
    code, errors = launcher.run([sys.executable, SHARDED_WORKER, "read", one, two / "checkpoint"], tmp_path)
    assert code == 0, errors
    assert same(load_file(one / "read0.safetensors"), load_file(two / "saved.safetensors"))
    expected, whole, continued = (load_file(folder / "final.safetensors") for folder in (one, two, resumed))
    assert same(whole, continued)
    assert expected.keys() == whole.keys()
    for name, tensor in expected.items():
        error = torch.linalg.vector_norm(tensor.double() - whole[name].double())
        assert error <= 1e-12 * torch.linalg.vector_norm(tensor.double()), name


def test_ranks_predict_what_one_predicts(data: Path, tmp_path: Path) -> None:
    """Predictions of ranks would be in another order, or some would be missing or twice in the file."""
    run, prepared = tmp_path / "run", roofline.prepared(data, "hot_sellers")
    launcher.run_machines("multi_node", NUM_RANKS, [*command("hot_sellers", data, run), "precision=no"], tmp_path)
    words = [launcher.PREDICT, f"member={run}", f"data={prepared}"]
    launcher.run_machines("multi_node", NUM_RANKS, [*words, f"out={tmp_path / 'two'}"], tmp_path)
    code, errors = launcher.run([sys.executable, *words, f"out={tmp_path / 'one'}"], tmp_path)
    assert code == 0, errors
    for split in ("blend", "test", "forecast"):
        one, two = (predictions.read(tmp_path / name / f"run.{split}.parquet") for name in ("one", "two"))
        assert np.array_equal(one.row_id, two.row_id)
        assert two.prediction == pytest.approx(one.prediction, rel=1e-4)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, " died, last seen at step "), (signal.SIGSTOP, " has not responded since step ")],
    ids=["kill", "stop"],
)
def test_a_training_that_loses_a_rank_reports_it(number: signal.Signals, words: str, data: Path, tmp_path: Path) -> None:
    """The other rank would end in a traceback of NCCL or wait for its GPU, with the status `running`."""
    out = tmp_path / "run"
    training = [*command("hot_sellers", data, out, "timeout_s=20", "log_every=1"), "max_epochs=50", "patience=1000"]
    with launcher.machines("multi_node", NUM_RANKS, training, tmp_path) as launchers:
        deadline = time.monotonic() + launcher.TIMEOUT_S
        while not (out / "train.log").exists() or len((out / "train.log").read_text().splitlines()) < 20:
            assert launchers[0].poll() is None, (tmp_path / "errors-0").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(launchers[1].pid).children(recursive=True)
        (rank_1,) = [member for member in family if member.environ().get("RANK") == "1"]
        rank_1.send_signal(number)
        assert launchers[0].wait(launcher.TIMEOUT_S) == 1
    sentence, *_ = failures(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert f", pid {rank_1.pid}) " in sentence
    assert words in sentence
    assert (out / "status").read_text() == f"lost\n{sentence.removeprefix('failed: ')}\n"


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        ("kill", "lost", "died, last seen at step 37: the launcher prints its exit code (-9: often out of memory)"),
        ("stop", "lost", "has not responded since step 37, "),
        ("raise", "failed", "failed at step 37: ValueError: a row is damaged"),
    ],
)
def test_a_rank_that_waits_for_its_gpu_ends(failure: str, status: str, words: str, tmp_path: Path) -> None:
    """A rank whose main thread waits for a kernel of NCCL gets no exception: it would wait until someone ends the job."""
    with launcher.machines("multi_node", NUM_RANKS, [FAILING_WORKER, tmp_path, failure, "37"], tmp_path) as launchers:
        assert launchers[0].wait(launcher.TIMEOUT_S) == 1
    assert words in failures(tmp_path)[0]
    assert (tmp_path / "status").read_text().splitlines()[0] == status


def failures(folder: Path) -> list[str]:
    """The sentences of rank 0 about the rank that it lost."""
    return [line for line in (folder / "errors-0").read_text().splitlines() if line.startswith("failed: ")]
