"""sudoku on two and four ranks, through the real launcher: the same learning as on one, and after a kill as without one."""

import re
import runpy
from pathlib import Path
from typing import Any

import launcher
import pytest
import small_sudokus
import torch
from accelerate import Accelerator
from recorded_ranks import error, last_checkpoint, recorded
from safetensors.torch import load_file

from ensemble.neural.loader import BatchPlan

WORKER = str(Path(__file__).with_name("sudoku_worker.py"))
FOUR_RANKS = [*launcher.MULTI_CPU, "--num_processes", 4]
torch.set_num_threads(1)

worker: Any = runpy.run_path(WORKER)


def launch(yaml: list[Any], *words: Any) -> tuple[int, str]:
    """Exit code and standard error."""
    command = [*launcher.ACCELERATE, *yaml, "--monitor_interval", "0.1", WORKER, *words]
    return launcher.run(command, launcher.ROOT, PYTHONPATH=launcher.WITH_HELPERS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_sudokus.prepared(tmp_path_factory.mktemp("sudokus"))


@pytest.fixture(scope="module")
def launched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks left what they did before, in their last run, rank 1 was killed."""
    out = tmp_path_factory.mktemp("launched")
    _, errors = launch(launcher.MULTI_CPU, data, out, "begin")
    assert re.search(r"exitcode *: -9", errors), errors
    return out


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_the_gradient_is_that_of_one_process(launched: Path, data: Path) -> None:
    """DDP's mean over ranks would stay in the gradient, which AdamATan2 hides in the weights."""
    found = recorded(launched, "one segment")
    recipe = worker["make"](data, **worker["RUNS"]["one segment"][0])
    torch.manual_seed(0)  # that of the settings: the latent starts are random buffers
    rows, model = recipe.rows("train"), recipe.model()
    body = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = list(BatchPlan.make(len(rows), worker["BATCH_SIZE"], 0, 1, 0, 0).micro_batches(0, len(found["gradients"])))
    assert {len(micro.rows) for micro in batches} == {16, 3}
    for step, micro in enumerate(batches):
        torch.nn.utils.vector_to_parameters(found["weights"][step], body)
        loss_sum, count, _ = recipe.step(model, rows.gather(micro.rows, micro.epoch), None)
        gradient = torch.autograd.grad(loss_sum / count, body)
        assert error(found["gradients"][step], torch.cat([part.flatten() for part in gradient])) <= 1e-12, step


@pytest.mark.parametrize("name", ["carried", "starts"])
def test_what_is_learned_does_not_depend_on_the_cut(
    launched: Path, data: Path, name: str, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Carried states, exploration or the winning start would depend on how a batch is cut, or idle ranks would count."""
    found = recorded(launched, name)
    recipe = worker["make"](data, **worker["RUNS"][name][0])
    expected = worker["train"](recipe, worker["settings"](tmp_path / "alone", 1), accelerator)
    assert error(found["weights"][-1], found["weights"][0]) > 0.01, "nothing was learned"
    assert error(found["weights"], expected["weights"]) <= 1e-10
    assert error(found["gradients"], expected["gradients"]) <= 1e-6
    assert found.keys() == expected.keys()
    assert torch.equal(found["table"], expected["table"]), "only the sign of its gradient counts"


def test_both_optimizers_are_in_the_checkpoint(launched: Path) -> None:
    """The puzzle embedding would stay where it began."""
    found = recorded(launched, "carried")
    assert not found["table"][0].any()
    assert found["table"][-1].all()
    assert {"puzzles.table", "optimizer0.0.mean", "carry.0.high", "carry.8.steps"} <= last_checkpoint(
        launched / "carried"
    ).keys()


def test_a_killed_run_goes_on_bit_for_bit(launched: Path, data: Path) -> None:
    """The carried state, the moments or the puzzle embedding would start anew on some rank, or go to another's places."""
    killed = launched / "killed"
    assert not (killed / "final").exists()
    code, errors = launch(launcher.MULTI_CPU, data, launched, "resume")
    assert code == 0, errors
    expected, found = last_checkpoint(launched / "carried"), last_checkpoint(killed)
    assert len(torch.cat([expected["carry.0.steps"], expected["carry.8.steps"]]).unique()) > 1, "all are in one segment"
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_it_goes_on_on_another_number_of_ranks(launched: Path, data: Path, accelerator: Accelerator, tmp_path: Path) -> None:
    """Places would lose the states that they carry, or get those of other places."""
    recipe = worker["make"](data, **worker["RUNS"]["carried"][0])
    begin = str(launched / "carried" / "checkpoints" / "step-00000004")
    worker["train"](recipe, worker["settings"](tmp_path / "alone", 1), accelerator, begin)
    expected, found = last_checkpoint(launched / "carried"), last_checkpoint(tmp_path / "alone")
    for name in ("carry.{}.steps", "carry.{}.halted", "carry.{}.puzzle", "carry.{}.high", "carry.{}.low"):
        of_two = torch.cat([expected[name.format(first)] for first in (0, 8)])
        assert torch.allclose(found[name.format(0)].double(), of_two.double(), rtol=0, atol=1e-8), name
    trained = load_file(launched / "carried/final/model.safetensors")
    assert all(error(found[name].double(), expected[name].double()) <= 1e-8 for name in trained)


def test_signs_are_the_same_on_one_two_and_four_ranks(launched: Path, data: Path, tmp_path: Path) -> None:
    """The sign of each rank's own sum, sums in the order of the ranks, or rows that nobody used, would show."""
    code, errors = launch(FOUR_RANKS, data, tmp_path, "signs")
    assert code == 0, errors
    alone = worker["signs"](0, 1)
    of_two = [load_file(launched / f"signs.2.{rank}.safetensors")["table"] for rank in range(2)]
    of_four = [load_file(tmp_path / f"signs.4.{rank}.safetensors")["table"] for rank in range(4)]
    assert all(torch.equal(table, alone) for table in (*of_two, *of_four))
    ids, gradients = worker["uses"]()
    expected = torch.ones_like(alone)
    for row in ids[:-1].unique().tolist():
        sign = gradients[ids == row].double().sum(0).sign().float()
        for _ in range(2):
            expected[row] = expected[row] * (1 - 0.01 * 0.1) - 0.01 * sign
    assert torch.equal(alone, expected)
