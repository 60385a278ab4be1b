"""sudoku on two and four ranks, with the real launcher: the same result as on one rank, and after a kill."""

import re
import runpy
from pathlib import Path
from typing import Any

import launcher
import pytest
import scripts_run
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
    command = [*yaml, "--monitor_interval", "0.1", WORKER, *words]
    return scripts_run.launched(*command, folder=launcher.ROOT, PYTHONPATH=launcher.WITH_HELPERS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_sudokus.prepared(tmp_path_factory.mktemp("sudokus"))


@pytest.fixture(scope="module")
def launched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of two ranks; in the last run rank 1 was killed."""
    out = tmp_path_factory.mktemp("launched")
    _, errors = launch(launcher.MULTI_CPU, data, out, "begin")
    assert re.search(r"exitcode *: -9", errors), errors
    return out


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_the_gradient_is_that_of_one_process(launched: Path, data: Path) -> None:
    """The gradient would be DDP's mean over ranks, which the weights do not show: AdamATan2 does not depend on the scale."""
    actual = recorded(launched, "one segment")
    recipe = worker["make"](data, **worker["RUNS"]["one segment"][0])
    torch.manual_seed(0)  # the seed of the settings: the latent starts are random buffers
    rows, model = recipe.rows("train"), recipe.model()
    body = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = list(BatchPlan(len(rows), worker["BATCH_SIZE"], 0, 1, 0, 0).micro_batches(0, len(actual["gradients"])))
    assert {len(micro.rows) for micro in batches} == {16, 3}
    for step, micro in enumerate(batches):
        torch.nn.utils.vector_to_parameters(actual["weights"][step], body)
        loss_sum, count, _ = recipe.step(model, rows.gather(micro.rows, micro.epoch), None)
        gradient = torch.autograd.grad(loss_sum / count, body)
        assert error(actual["gradients"][step], torch.cat([part.flatten() for part in gradient])) <= 1e-12, step


@pytest.mark.parametrize("name", ["carried", "starts"])
def test_the_result_does_not_depend_on_how_batches_are_divided(
    launched: Path, data: Path, name: str, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Carried states, exploration or the winning start would depend on how a batch is divided, or idle ranks would count."""
    actual = recorded(launched, name)
    recipe = worker["make"](data, **worker["RUNS"][name][0])
    expected = worker["train"](recipe, worker["settings"](tmp_path / "one_rank", 1), accelerator)
    assert error(actual["weights"][-1], actual["weights"][0]) > 0.01, "nothing was learned"
    assert error(actual["weights"], expected["weights"]) <= 1e-10
    assert error(actual["gradients"], expected["gradients"]) <= 1e-6
    assert actual.keys() == expected.keys()
    assert torch.equal(actual["table"], expected["table"]), "only the sign of its gradient counts"


def test_both_optimizers_are_in_the_checkpoint(launched: Path) -> None:
    """The puzzle embedding would keep its initial values."""
    actual = recorded(launched, "carried")
    assert not actual["table"][0].any()
    assert actual["table"][-1].all()
    assert {"puzzles.table", "optimizer0.0.mean", "carry.0.high", "carry.8.steps"} <= last_checkpoint(
        launched / "carried"
    ).keys()


def test_a_killed_run_resumes_exactly(launched: Path, data: Path) -> None:
    """The carried state, the moments or the puzzle embedding would be reset on some rank, or go to other positions."""
    killed = launched / "killed"
    assert not (killed / "final").exists()
    code, errors = launch(launcher.MULTI_CPU, data, launched, "resume")
    assert code == 0, errors
    expected, actual = last_checkpoint(launched / "carried"), last_checkpoint(killed)
    assert len(torch.cat([expected["carry.0.steps"], expected["carry.8.steps"]]).unique()) > 1, "all are in one segment"
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_a_run_resumes_on_another_number_of_ranks(
    launched: Path, data: Path, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Positions of the batch would lose their carried states, or get those of other positions."""
    recipe = worker["make"](data, **worker["RUNS"]["carried"][0])
    begin = str(launched / "carried" / "checkpoints" / "step-00000004")
    worker["train"](recipe, worker["settings"](tmp_path / "one_rank", 1), accelerator, begin)
    expected, actual = last_checkpoint(launched / "carried"), last_checkpoint(tmp_path / "one_rank")
    for name in ("carry.{}.steps", "carry.{}.halted", "carry.{}.puzzle", "carry.{}.high", "carry.{}.low"):
        of_two = torch.cat([expected[name.format(first)] for first in (0, 8)])
        assert torch.allclose(actual[name.format(0)].double(), of_two.double(), rtol=0, atol=1e-8), name
    trained = load_file(launched / "carried/final/model.safetensors")
    assert all(error(actual[name].double(), expected[name].double()) <= 1e-8 for name in trained)


@pytest.mark.torture
def test_signs_on_four_ranks_are_those_of_one(data: Path, tmp_path: Path) -> None:
    """Sums in the order of more ranks would give another table."""
    code, errors = launch(FOUR_RANKS, data, tmp_path, "signs")
    assert code == 0, errors
    one_rank = worker["signs"](0, 1)["table"]
    four_ranks = [load_file(tmp_path / f"signs.4.{rank}.safetensors")["table"] for rank in range(4)]
    assert all(torch.equal(table, one_rank) for table in four_ranks)


def test_signs_are_the_same_on_one_and_two_ranks(launched: Path) -> None:
    """Signs of each rank's sum, sums in the order of ranks, or updates of unused rows would give another table.

    A rank would send the whole table, or its gradient, instead of the rows that it used.
    """
    one_rank = worker["signs"](0, 1)["table"]
    two_ranks = [load_file(launched / f"signs.2.{rank}.safetensors")["table"] for rank in range(2)]
    columns, most_ids = one_rank.shape[1], -(-len(worker["uses"]()[0]) // 2)
    sent = int(load_file(launched / "signs.2.0.safetensors")["sent"])
    assert 0 < sent <= 2 * (most_ids * (8 + 4 * columns) + 2 * 8)  # in two steps: ids, gradients, and how many there are
    assert all(torch.equal(table, one_rank) for table in two_ranks)
    ids, gradients = worker["uses"]()
    expected = torch.ones_like(one_rank)
    for row in ids[:-1].unique().tolist():
        sign = gradients[ids == row].double().sum(0).sign().float()
        for _ in range(2):
            expected[row] = expected[row] * (1 - 0.01 * 0.1) - 0.01 * sign
    assert torch.equal(one_rank, expected)
