"""The HRM sketch on two ranks, through the real launcher: the same learning as on one, and after a kill as without one."""

import re
import runpy
from pathlib import Path
from typing import Any

import launcher
import pytest
import torch
from accelerate import Accelerator
from recorded_ranks import error, last_checkpoint, recorded
from safetensors.torch import load_file

from ensemble.neural.loader import BatchPlan

WORKER = str(Path(__file__).with_name("hrm_worker.py"))
torch.set_num_threads(1)

worker: Any = runpy.run_path(WORKER)
sketch: Any = runpy.run_path(str(worker["SKETCH"]))


def launch_two_ranks(*words: Any) -> tuple[int, str]:
    """Exit code and standard error."""
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU, "--monitor_interval", "0.1", WORKER, *words]
    return launcher.run(command, launcher.ROOT, PYTHONPATH=launcher.WITH_HELPERS)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks left what they did before, in their last run, rank 1 was killed."""
    out = tmp_path_factory.mktemp("hrm")
    _, errors = launch_two_ranks(out, "begin")
    assert re.search(r"exitcode *: -9", errors), errors
    return out


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_the_gradient_is_that_of_one_process(launched: Path) -> None:
    """DDP's mean would stay in the gradient, which AdamATan2 hides in the weights since it is blind to scale."""
    found = recorded(launched, "one segment")
    recipe = sketch["Recipe"](worker["NUM_ROWS"], 1, torch.float64)
    torch.manual_seed(0)  # that of the settings: the model has a random buffer
    rows, model = recipe.rows("train"), recipe.model()
    body = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan = BatchPlan.make(worker["NUM_ROWS"], worker["BATCH_SIZE"], 0, 1, 0, 0)
    batches = list(plan.micro_batches(0, len(found["gradients"])))
    assert {len(micro.rows) for micro in batches} == {16, 3}
    for step, micro in enumerate(batches):
        torch.nn.utils.vector_to_parameters(found["weights"][step], body)
        model.puzzle_embedding.table.copy_(found["table"][step])
        loss_sum, count, _ = recipe.step(model, rows.gather(micro.rows, micro.epoch), None)
        gradient = torch.autograd.grad(loss_sum / count, body)
        assert error(found["gradients"][step], torch.cat([part.flatten() for part in gradient])) <= 1e-12, step


@pytest.mark.parametrize("name", ["uncut", "accumulated"])
def test_what_is_learned_does_not_depend_on_the_cut(
    launched: Path, name: str, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Carried states, exploration or the table's gradients would depend on ranks and micro-batches, or idle ranks count.

    Of the table's gradient only the sign counts, so it is the same to the bit.
    """
    found = recorded(launched, name)
    recipe = sketch["Recipe"](worker["NUM_ROWS"], 4, torch.float64)
    expected = worker["train"](recipe, worker["settings"](tmp_path / "alone", 1, 1), accelerator)
    assert error(found["weights"][-1], found["weights"][0]) > 0.01, "nothing was learned"
    assert (expected["table"][-1].abs() > 0).any(1).all(), "nothing was learned"
    assert error(found["weights"], expected["weights"]) <= 1e-10
    assert torch.equal(found["table"], expected["table"])


def test_the_table_is_stepped_by_the_sign_of_the_sum_over_ranks(launched: Path) -> None:
    """A sum of each rank's signs, rows that nobody used decayed, or ragged numbers of rows cut."""
    first, other = (load_file(launched / f"summed.{rank}.safetensors")["table"] for rank in range(2))
    assert torch.equal(first, other)
    assert torch.equal(first, worker["step_alone"](sketch["SparseSignSGD"], slice(None)))
    table, ids, gradients = worker["sparse_gradient"]()
    assert len(ids) == sum(worker["LENGTHS"])
    for row in range(len(table)):
        gradient = gradients[ids == row].sum(0)
        if gradient.any():
            table[row] = table[row] * (1 - 0.01 * 0.1) - 0.01 * gradient.sign()
    assert torch.equal(first, table)


def test_a_killed_run_goes_on_bit_for_bit(launched: Path) -> None:
    """The carried state, the moments or the table would start anew on some rank, or go to another's places."""
    killed = launched / "killed"
    assert not (killed / "final").exists()
    code, errors = launch_two_ranks(launched, "resume")
    assert code == 0, errors
    expected, found = last_checkpoint(launched / "uncut"), last_checkpoint(killed)
    assert {"carry.0.high", "carry.0.low", "carry.0.puzzle", "carry.8.halted"} <= expected.keys()
    assert len(expected["carry.8.steps"].unique()) > 1, "all places are in the same segment"
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_it_goes_on_on_another_number_of_ranks(launched: Path, accelerator: Accelerator, tmp_path: Path) -> None:
    """Places would lose what they carry, or get what others do."""
    recipe = sketch["Recipe"](worker["NUM_ROWS"], 4, torch.float64)
    begin = str(launched / "uncut" / "checkpoints" / "step-00000004")
    worker["train"](recipe, worker["settings"](tmp_path / "alone", 1, 1), accelerator, begin)
    expected, found = last_checkpoint(launched / "uncut"), last_checkpoint(tmp_path / "alone")
    for name in ("carry.{}.steps", "carry.{}.halted", "carry.{}.puzzle", "carry.{}.high"):
        of_two = torch.cat([expected[name.format(begin)] for begin in (0, 8)])
        assert torch.allclose(found[name.format(0)], of_two, rtol=0, atol=1e-10), name
    assert all(error(found[name], expected[name]) <= 1e-10 for name in load_file(launched / "uncut/final/model.safetensors"))
