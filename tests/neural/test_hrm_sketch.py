"""The HRM sketch on the training loop: state that is carried, two optimizers, a sparse gradient that is the rank's own."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from ensemble.neural import loop, speed
from ensemble.neural.settings import TrainConfig

torch.set_num_threads(1)
sketch: Any = runpy.run_path(str(Path(__file__).with_name("hrm_sketch.py")))
NUM_ROWS = 35  # in batches of 16, an epoch ends with 3


def settings(out: Path, **changed: Any) -> TrainConfig:
    common = {"data": "sudokus", "batch_size": 16, "learning_rate": 3e-3, "weight_decay": 0.1, "warmup_steps": 2}
    small = {"max_epochs": 3, "clip_norm": 0, "patience": 100, "evaluations_per_epoch": 1, "trackers": (), "log_every": 1}
    return TrainConfig(out=str(out), **(common | small | changed))


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind]


def last_checkpoint(run: Path) -> dict[str, torch.Tensor]:
    folder = max((run / "checkpoints").glob("step-*"))
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}


def test_it_learns(accelerator: Accelerator, tmp_path: Path) -> None:
    """One of the two optimizers would step away from the solution, or the body not at all."""
    recipe = sketch["Recipe"](256)
    loop.train(recipe, settings(tmp_path / "run", batch_size=32, max_epochs=4, schedule="constant"), accelerator)
    losses = [line["loss"] for line in lines(tmp_path / "run", "train")]
    assert sum(losses[-8:]) < 0.65 * sum(losses[:8])


def test_only_halted_places_take_a_new_puzzle() -> None:
    """A place would lose the puzzle that it thinks about, keep one that is done, or begin it with another's thoughts."""
    torch.manual_seed(0)
    recipe = sketch["Recipe"](NUM_ROWS)
    rows, model = recipe.rows("train"), recipe.model()
    first, second = (rows.gather(torch.arange(begin, begin + 4).numpy()) for begin in (0, 4))
    _, _, state = recipe.step(model, first, None)
    state["halted"] = torch.tensor([True, False, True, False])
    _, count, after = recipe.step(model, second, state)
    assert int(count) == 4
    assert after["steps"].tolist() == [1, 2, 1, 2]
    for name in ("puzzle", "solution", "puzzle_id"):
        assert torch.equal(after[name][[0, 2]], second[name][[0, 2]])
        assert torch.equal(after[name][[1, 3]], first[name][[1, 3]])
    _, _, fresh = recipe.step(model, second, None)
    for name in ("high", "low"):
        assert not after[name].requires_grad
        assert torch.allclose(after[name][[0, 2]], fresh[name][[0, 2]], atol=1e-6)
        assert not torch.allclose(after[name][[1, 3]], fresh[name][[1, 3]], atol=1e-2)


def test_a_place_halts_when_it_wants_to_or_must() -> None:
    """It would think for ever, or exploration would not hold it back."""
    recipe = sketch["Recipe"](NUM_ROWS, 3)
    rows, model = recipe.rows("train"), recipe.model()
    batch = rows.gather(torch.arange(4).numpy())
    batch["patience"] = torch.tensor([0, 2, 3, 0])
    for bias, expected in (([1.0, 0.0], ["1", "2", "3", "1"]), ([0.0, 1.0], ["3"] * 4)):
        model.halting.bias.data = torch.tensor(bias)
        state, halted_after = None, [""] * 4
        for segment in "123":
            _, _, state = recipe.step(model, batch, state)
            halted = state["halted"].tolist()
            halted_after = [seen or segment * done for seen, done in zip(halted_after, halted, strict=True)]
        assert halted_after == expected


def test_the_tables_gradient_shows_in_one_that_all_ranks_share() -> None:
    """Infinity in a gradient of which DDP and the norm know nothing would be stepped with, on one rank or on all."""
    recipe = sketch["Recipe"](NUM_ROWS)
    model = recipe.model()
    for begin in (0, 16):  # as in accumulation
        loss_sum, _, _ = recipe.step(model, recipe.rows("train").gather(torch.arange(begin, begin + 16).numpy()), None)
        loss_sum.backward()
    assert model.puzzle_embedding.table.grad._nnz() == 32
    of_table = model.puzzle_embedding.table.grad.to_dense().sum(0)
    assert of_table.norm() > 0.01
    assert torch.allclose(model.positions.grad[0], of_table, atol=1e-6)


def test_atan2_is_the_formula_and_blind_to_scale() -> None:
    """Bias corrections in the wrong place, or an ε."""
    gradients = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ends = []
    for scale in (1.0, 2.0):
        weight = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
        optimizer = sketch["AdamATan2"]([weight], lr=0.1, weight_decay=0.5)
        for gradient in gradients:
            weight.grad = scale * gradient
            optimizer.step()
        ends.append(weight.detach())
    assert torch.equal(*ends)
    p, m, v = torch.ones(7, dtype=torch.float64), 0.0, 0.0
    for t, gradient in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        p = p * (1 - 0.1 * 0.5) - 0.1 / (1 - 0.9**t) * torch.atan2(m, v.sqrt() / (1 - 0.95**t) ** 0.5)
    assert torch.allclose(ends[0], p, rtol=1e-13)


def test_the_schedule_scales_each_optimizers_own_rate(accelerator: Accelerator, tmp_path: Path) -> None:
    """The table would be stepped at the body's rate, or at its own peak throughout."""
    recipe, rates, made = sketch["Recipe"](NUM_ROWS), [], sketch["Recipe"].optimizers

    def optimizers(*arguments: Any) -> list[torch.optim.Optimizer]:
        both = made(recipe, *arguments)
        both[1].register_step_pre_hook(lambda *_: rates.append([found.param_groups[0]["lr"] for found in both]))
        return both

    recipe.optimizers = optimizers
    loop.train(recipe, settings(tmp_path / "run", max_epochs=1, schedule="linear"), accelerator)
    assert rates == [pytest.approx([3e-3 * scale, 0.01 * scale]) for scale in (0.5, 1.0, 0.0)]


def test_a_run_that_was_cut_off_goes_on_bit_for_bit(accelerator: Accelerator, tmp_path: Path) -> None:
    """What places carry, the moments or the table would be lost, or the table replaced by its average."""
    common = {"max_epochs": 2, "micro_batch_size": 4, "ema_decay": 0.9, "checkpoint_steps": 2}
    whole, cut = (settings(tmp_path / name, **common) for name in ("whole", "cut"))
    loop.train(sketch["Recipe"](NUM_ROWS), whole, accelerator)
    recipe, num_calls = sketch["Recipe"](NUM_ROWS), 0
    once = recipe.step

    def step(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 16:  # in step 5, after one trial and 4, 4, 1 and 4 micro-batches
            raise KeyboardInterrupt
        return once(*arguments)

    recipe.step = step
    with pytest.raises(KeyboardInterrupt):
        loop.train(recipe, cut, accelerator)
    loop.train(sketch["Recipe"](NUM_ROWS), cut, accelerator, "last")
    expected, found = last_checkpoint(tmp_path / "whole"), last_checkpoint(tmp_path / "cut")
    assert "carry.12.low" in found
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    table = "puzzle_embedding.table"
    assert found[table].any()
    for name in ("best", "final"):
        assert load_file(tmp_path / "cut" / name / "model.safetensors").keys() >= {table, "start"}
    assert torch.equal(load_file(tmp_path / "cut/final/model.safetensors")[table], found[table]), "it was averaged"


def test_in_fp16_an_overflow_leaves_the_table_alone(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler finds no gradient that it checked and asserts, or the table keeps infinities."""
    monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
    monkeypatch.setattr(accelerator, "native_amp", False)
    monkeypatch.setattr(accelerator, "scaler", None)
    speed.use_fp16_on_cpu(accelerator)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    summary = loop.train(sketch["Recipe"](48), settings(tmp_path / "run"), accelerator)
    assert summary["precision"] == "fp16"
    skipped = lines(tmp_path / "run", "event")
    assert 0 < len(skipped) < 9
    assert all("fp16 overflowed" in line["event"] for line in skipped)
    table = load_file(tmp_path / "run/final/model.safetensors")["puzzle_embedding.table"]
    assert 0 < table.abs().max() <= 0.01 * (9 - len(skipped))
