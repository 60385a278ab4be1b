"""Trainings of all recipes on an NVIDIA GPU: whole and resumed runs have equal bits, and NCCL gets no tensors of the CPU."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import is_torchao_available
from benchmarks import roofline
from launcher import ACCELERATE, ROOT, TIMEOUT_S, TRAIN, kill, run, started
from run_weights import same, weights

from ensemble.errors import UserError
from ensemble.neural import speed
from ensemble.neural.settings import TrainConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_torchao = pytest.mark.skipif(not is_torchao_available(), reason="needs the package torchao")
CONFIGURATIONS = ROOT / "accelerate_configs"
EPOCHS = {"hot_sellers": 0.5, "next_item": 1, "table": 1, "sudoku": 0.1, "emulator": 0.5}
"""Epochs by recipe: some dozens of steps, after which an evaluation and several checkpoints are written."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated data of the recipes."""
    return tmp_path_factory.mktemp("data")


def command(yaml: str, recipe: str, data: Path, out: Path, *words: Any) -> list[Any]:
    paths = [f"data={roofline.prepared(data, recipe)}", f"out={out}"]
    settings = [*roofline.WORDS[recipe], *paths, f"max_epochs={EPOCHS[recipe]}", "trackers=[]"]
    return [*ACCELERATE, "--config_file", CONFIGURATIONS / yaml, *words, TRAIN, "--recipe", recipe, *settings]


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16", pytest.param("fp8", marks=needs_torchao)])
@pytest.mark.parametrize("recipe", roofline.WORDS)
def test_a_run_that_is_killed_and_resumed_has_the_bits_of_another(
    recipe: str, precision: str, data: Path, tmp_path: Path
) -> None:
    """A kernel would add in another order in each run, or a part of the state on the GPU would not be restored."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, errors = run([*command("single_gpu.yaml", recipe, data, whole), f"precision={precision}"], tmp_path)
    assert code == 0, errors
    resumed = [*command("single_gpu.yaml", recipe, data, killed), f"precision={precision}", "checkpoint_steps=4"]
    with started(resumed, tmp_path, tmp_path / "log") as process:
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline and len([*killed.glob("checkpoints/step-*")]) < 2:
            time.sleep(0.01)
        kill(process)
    code, errors = run([*resumed, "--resume", "auto"], tmp_path)
    assert code == 0, errors
    assert same(weights(whole), weights(killed))


@pytest.mark.parametrize("recipe", roofline.WORDS)
def test_a_rank_with_nccl_trains_as_one_without(recipe: str, data: Path, tmp_path: Path) -> None:
    """A tensor of the CPU would be given to NCCL, as in an evaluation."""
    for name, yaml, words in (("alone", "single_gpu.yaml", ()), ("nccl", "multi_gpu.yaml", ("--num_processes", "1"))):
        code, errors = run(command(yaml, recipe, data, tmp_path / name, *words), tmp_path)
        assert code == 0, errors
    assert same(weights(tmp_path / "alone"), weights(tmp_path / "nccl"))


def test_more_ranks_than_gpus_are_refused(data: Path, tmp_path: Path) -> None:
    """Each rank without a GPU would end in a traceback of CUDA, `invalid device ordinal`."""
    gpus = torch.cuda.device_count()
    words = command("multi_gpu.yaml", "emulator", data, tmp_path / "run", "--num_processes", str(gpus + 1))
    code, errors = run(words, tmp_path)
    assert code == 1
    sentence = f"{gpus + 1} processes on this machine, each with a GPU of its own, but PyTorch finds {gpus}: launch with"
    assert errors.count(f"error: the launcher (--num_processes) asks for {sentence}") == 1, errors
    assert "invalid device ordinal" not in errors


@needs_torchao
@pytest.mark.filterwarnings("ignore")  # torchao's own
def test_fp8_trains_the_parameters_of_the_optimizer_or_is_refused() -> None:
    """torchao would replace parameters, and the optimizer would update the old ones; or bf16 would be used."""
    accelerator = Accelerator(**speed.accelerator_options(TrainConfig(precision="fp8")))
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    speed.refuse_fp8_without_effect(model)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    with pytest.raises(UserError, match="precision=fp8 has no effect on this model"):
        speed.refuse_fp8_without_effect(
            accelerator.prepare(torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(4))))
        )
