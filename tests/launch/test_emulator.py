"""emulator on two ranks, and on four in `make torture`: the same statistics, gradients and learning curve as on one."""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import launcher
import pytest
import scripts_run
import small_emulators
import torch
from accelerate import Accelerator
from recorded_ranks import error
from safetensors.torch import load_file

LONG = bool(os.environ.get("TORTURE_LONG"))
WORKER = str(Path(__file__).with_name("emulator_worker.py"))
torch.set_num_threads(1)
worker: Any = runpy.run_path(WORKER)
Recorded = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Rows of sea ice in many chunks, and more blocks of statistics than ranks."""
    folder = tmp_path_factory.mktemp("data")
    ice = small_emulators.sea_ice(folder, chunk_points=200)
    return {"ice": str(ice), "ring": str(small_emulators.lorenz96(folder))}


@pytest.fixture(scope="module", params=[2, 4] if LONG else [2])
def launched(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder with the records of all ranks of a launched training."""
    out = tmp_path_factory.mktemp(f"launched_{request.param}")
    options = ["--num_processes", request.param, "--monitor_interval", "0.1"]
    words = [*launcher.MULTI_CPU, *options, WORKER, out, *data.values()]
    code, errors = scripts_run.launched(*words, folder=launcher.ROOT, PYTHONPATH=launcher.WITH_HELPERS)
    assert code == 0, errors
    return out


@pytest.fixture(scope="module")
def alone(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the record of the same training in this process."""
    out = tmp_path_factory.mktemp("alone")
    for name, (which, changed) in worker["RUNS"].items():
        accelerator = Accelerator(cpu=True)
        recorded = worker["train"](worker["make"](data[which], **changed), worker["settings"](out / name, 1), accelerator)
        torch.save(recorded, out / name / "recorded.pt")
    return out


def both(launched: Path, alone: Path, name: str) -> tuple[list[Recorded], Recorded]:
    """The record of each rank, and that of this process."""
    ranks = [load_file(file) for file in sorted((launched / name).glob("*.safetensors"))]
    assert len(ranks) == int(launched.name.split("_")[1][0])
    return ranks, torch.load(alone / name / "recorded.pt", weights_only=True)


def curve(run: Path, kind: str, key: str) -> torch.Tensor:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line[key] for line in lines if line["kind"] == kind], dtype=torch.float64)


@pytest.mark.parametrize("name", ["sea_ice", "lorenz96"])
def test_statistics_have_the_same_bits(launched: Path, alone: Path, name: str) -> None:
    """Ranks would scale inputs in another way than one process, or than each other."""
    ranks, expected = both(launched, alone, name)
    names = [key for key in expected if key.startswith(("exact.", "input_", "output_"))]
    assert len(names) == 9
    for recorded in ranks:
        assert all(recorded[key].numpy().tobytes() == expected[key].numpy().tobytes() for key in names)


@pytest.mark.parametrize("name", ["sea_ice", "lorenz96"])
def test_gradients_and_weights_are_those_of_one_process(launched: Path, alone: Path, name: str) -> None:
    """The gradient would be a mean over unequal ranks, depend on how a batch is divided, or lack the Jacobian term."""
    ranks, expected = both(launched, alone, name)
    assert error(expected["weights"][-1], expected["weights"][0]) > 0.01, "nothing was learned"
    for recorded in ranks:
        assert error(recorded["gradients"], expected["gradients"]) <= 1e-9
        assert error(recorded["weights"], expected["weights"]) <= 1e-9


@pytest.mark.parametrize("name", ["sea_ice", "lorenz96"])
def test_the_learning_curve_is_that_of_one_process(launched: Path, alone: Path, name: str) -> None:
    """Losses or scores would be means of ranks, whose shares differ in length."""
    for kind, keys in {"train": ("loss", "learning_rate"), "val": ("r_squared", "jacobian_error")}.items():
        for key in keys:
            recorded, expected = curve(launched / name, kind, key), curve(alone / name, kind, key)
            assert recorded.shape == expected.shape
            assert len(recorded) >= 3
            assert torch.allclose(recorded, expected, rtol=1e-5, atol=0), key


def test_a_dry_run_on_several_ranks(data: dict[str, str], tmp_path: Path) -> None:
    """The statistics of the data are computed by all ranks together: one that asks alone would wait, or fail."""
    words = ["--recipe", "emulator", f"data={data['ice']}", f"out={tmp_path / 'run'}", "--dry-run"]
    code, errors = scripts_run.launched(*launcher.MULTI_CPU, launcher.TRAIN, *words, folder=tmp_path)
    assert code == 0, errors
    assert not (tmp_path / "run").exists()
