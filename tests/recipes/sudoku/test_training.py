"""The recipe's step, rows and metrics, and a training from prepared data to prediction files."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest
import small_sudokus
import torch
from accelerate import Accelerator
from recorded_ranks import last_checkpoint
from safetensors.torch import load_file

from ensemble import configuration, folders, predictions
from ensemble.errors import UserError
from ensemble.neural import loop, preflight, speed
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import TrainConfig, config_class
from ensemble.predictor import members
from ensemble.recipes.sudoku import training
from ensemble.recipes.sudoku.losses import cross_entropy
from ensemble.recipes.sudoku.training import OFFERED

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_sudokus.prepared(tmp_path_factory.mktemp("sudokus"))


def recipe(data: Path, **changed: Any) -> training.Sudoku:
    return training.make(small_sudokus.config(**changed), str(data))


def batch_of(solver: training.Sudoku, epoch: int = 0) -> dict[str, torch.Tensor]:
    return solver.rows("train").gather(np.arange(6), epoch)


def is_valid(boards: torch.Tensor) -> bool:
    """Whether every row, column and box of 4 × 4 boards has each digit once."""
    grids = boards.view(-1, 4, 4)
    boxes = grids.view(-1, 2, 2, 2, 2).transpose(2, 3).reshape(-1, 4, 4)
    return all(bool((unit.sort(-1).values == torch.arange(1, 5)).all()) for unit in (grids, grids.transpose(1, 2), boxes))


def test_training_rows_are_images_with_more_clues(data: Path) -> None:
    """A puzzle would contradict its solution, or be the same in each epoch."""
    solver = recipe(data, reveal=0.5)
    rows = solver.rows("train")
    every = rows.gather(np.arange(len(rows)))
    assert is_valid(every["solution"])
    given = every["puzzle"] > 0
    assert torch.equal(every["puzzle"][given], every["solution"][given])
    clues = given.sum(1)
    assert clues.min() == 8
    assert 0.3 < (clues > 8).float().mean() < 0.7
    other = rows.gather(np.arange(len(rows)), 1)
    assert (other["solution"] != every["solution"]).any(1).float().mean() > 0.9
    some = rows.gather(np.array([30, 2]))
    assert all(torch.equal(some[name], every[name][[30, 2]]) for name in some), "what is drawn depends on the batch"
    assert (recipe(data, reveal=0.0).rows("train").gather(np.arange(35))["puzzle"] > 0).sum(1).eq(8).all()


def test_an_epoch_has_several_images_of_a_puzzle(data: Path) -> None:
    """Images would be the same, or of a puzzle of another split."""
    rows = recipe(data, images=3, reveal=0.0).rows("train")
    assert len(rows) == 3 * 35
    result = rows.gather(np.array([4, 39, 74]))
    assert is_valid(result["solution"])
    assert len(result["solution"].unique(dim=0)) == 3
    assert len(recipe(data, images=3).rows("validation")) == 10


def test_fewer_clues_are_revealed_in_later_epochs(data: Path) -> None:
    """Training would end with easier puzzles than those of the test."""
    rows = recipe(data, reveal=1.0, reveal_epochs=10).rows("train")
    shares = [(rows.gather(np.arange(35), epoch)["puzzle"] > 0).sum(1).gt(8).float().mean() for epoch in (0, 5, 10, 11)]
    assert shares[0] > 0.85
    assert 0.2 < shares[1] < 0.8
    assert shares[2:] == [0, 0]
    assert (recipe(data, reveal_epochs=0).rows("train").gather(np.arange(35), 99)["puzzle"] > 0).sum(1).gt(8).any()


def test_at_least_a_part_of_the_blanks_is_revealed_at_first(data: Path) -> None:
    """Boards with few clues would not be learned, or blank cells would be revealed until the end."""
    rows = recipe(data, reveal=1.0, reveal_least=0.8, reveal_epochs=10).rows("train")
    shares = [((rows.gather(np.arange(35), epoch)["puzzle"] > 0).sum(1) - 8).float().mean() / 8 for epoch in (0, 10)]
    assert 0.8 < shares[0] < 0.98
    assert shares[1] == 0


SIZES: list[dict[str, Any]] = [
    {},
    {"variant": "trm", "num_layers": 3, "mixing": "tokens"},
    {"mixing": "attention", "positions": "learned", "puzzle_embedding": True},
]


@pytest.mark.parametrize("settings", SIZES)
def test_the_size_of_a_model_is_known_before(data: Path, settings: dict[str, Any]) -> None:
    """A model that fits would be refused, or one that does not fit would be built until the system kills the process."""
    solver = recipe(data, **settings)
    assert solver.size(4).num_parameters == sum(parameter.numel() for parameter in solver.model().parameters())
    saved = preflight.activation_bytes(solver.model(), lambda: solver.step(solver.model(), batch_of(solver), None)[0])
    assert 0 < solver.size(6).batch_bytes < saved


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 10**6},
        {"inner_width": 10**9},
        {"num_layers": 10**9},
        {"starts": 10**9},
        {"images": 10**10},
        {"variant": "trm", "low_cycles": 10**8},
    ],
)
def test_what_does_not_fit_into_memory_is_refused(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """The system would kill the training without a message."""
    config = config_class("sudoku")(data=str(data), out=str(tmp_path / "run"), recipe=small_sudokus.config(**settings))
    with pytest.raises(UserError, match=r"the training needs at least .* GB of memory \(.* GB are available: reduce recipe"):
        loop.train(training.make(config.recipe, str(data)), config, Accelerator(cpu=True))
    assert not (tmp_path / "run").exists()


def test_rows_of_other_splits_are_as_prepared(data: Path) -> None:
    """Scores would be those of other puzzles than the data's."""
    rows = recipe(data).rows("test")
    result = rows.gather(np.arange(len(rows)), 3)
    assert np.array_equal(result["puzzle"].numpy(), rows.columns["puzzle"].all())
    assert result["patience"].eq(0).all()


def test_exploration_keeps_some_puzzles_from_halting(data: Path) -> None:
    """No slot would ever continue after the network predicted halting too early."""
    patience = recipe(data, exploration=0.5).rows("train").gather(np.arange(35))["patience"]
    assert set(patience.tolist()) == {0, 2, 3, 4}
    assert 0.2 < (patience > 0).float().mean() < 0.8


def test_only_halted_places_take_what_is_offered(data: Path) -> None:
    """A puzzle would be replaced before it has halted, or stay afterwards."""
    solver = recipe(data)
    model = solver.model()
    _, count, state = solver.step(model, batch_of(solver), None)
    assert count == 6
    state["halted"] = torch.tensor([True, False, False, True, False, False])
    state["steps"] = torch.tensor([2, 2, 3, 1, 1, 2])
    offered = batch_of(solver, 1)
    _, _, after = solver.step(model, offered, state)
    for name in OFFERED:
        assert torch.equal(after[name][[0, 3]], offered[name][[0, 3]])
        assert torch.equal(after[name][[1, 2, 4, 5]], state[name][[1, 2, 4, 5]])
    assert after["steps"].tolist() == [1, 3, 4, 1, 2, 3]
    _, _, fresh = solver.step(model, offered, None)
    for name in ("high", "low"):
        torch.testing.assert_close(after[name][[0, 3]], fresh[name][[0, 3]], rtol=0, atol=1e-6)
        assert not torch.allclose(after[name][[1, 2, 4, 5]], fresh[name][[1, 2, 4, 5]], atol=1e-2)
    assert after["halted"].tolist() == [False, False, True, False, False, False], "the last segment ends a puzzle"
    assert not any(tensor.requires_grad for tensor in after.values())
    assert solver.metrics({name: np.array(1.0) for name in ("puzzles", "exact", "blanks", "right_blanks", "segments")}
                      | {"not_finite": np.array(0)})["used"] == pytest.approx(2 / 6)  # fmt: skip


def test_a_place_halts_when_its_logit_says_so_and_patience_allows(data: Path) -> None:
    """Exploration would have no effect, or a slot would halt before the fewest segments."""
    solver = recipe(data)
    model: Any = solver.model()
    torch.nn.init.constant_(model.to_halting.bias, 1.0)
    batch = batch_of(solver) | {"patience": torch.tensor([0, 2, 0, 3, 0, 0])}
    _, _, state = solver.step(model, batch, None)
    assert state["halted"].tolist() == [True, False, True, False, True, True]
    _, _, state = solver.step(model, batch, state)
    assert state["halted"].tolist() == [True, True, True, False, True, True]


def test_with_the_continue_loss_the_higher_logit_decides(data: Path) -> None:
    """A slot would halt although one more segment has a higher value, or never halt."""
    solver = recipe(data, continue_loss=True, segments=3)
    model: Any = solver.model()
    batch = batch_of(solver) | {"patience": torch.zeros(6, dtype=torch.long)}
    for bias, halts_after in (([1.0, 2.0], 3), ([-1.0, -2.0], 1)):
        model.to_halting.bias.data = torch.tensor(bias)
        state = None
        for segment in (1, 2, 3):
            _, _, state = solver.step(model, batch, state)
            assert state["halted"].all() == (segment % halts_after == 0)
            assert state["halted"].any() == state["halted"].all()


def test_the_gradient_of_the_puzzle_embedding_shows_in_a_shared_one(data: Path) -> None:
    """The optimizer would use infinite gradients of the table, which DDP and the norm do not cover."""
    solver = recipe(data, puzzle_embedding=True, positions="learned")
    model: Any = solver.model()
    for first in (0, 6):  # as in accumulation
        solver.step(model, solver.rows("train").gather(np.arange(first, first + 6)), None)[0].backward()
    assert model.puzzles.table.grad._nnz() == 12
    of_table = model.puzzles.table.grad.to_dense().sum(0)
    assert of_table.norm() > 1e-3
    torch.testing.assert_close(model.positions[0].grad[0], of_table, rtol=1e-4, atol=1e-6)


def test_the_loss_is_a_sum_over_puzzles(data: Path) -> None:
    """The gradient would depend on how the batch was cut."""
    solver = recipe(data)
    model, batch = solver.model(), batch_of(solver)
    whole, count, _ = solver.step(model, batch, None)
    pieces = [{name: tensor[part] for name, tensor in batch.items()} for part in ([0, 1], [2, 3, 4, 5])]
    parts = [solver.step(model, piece, None)[0] for piece in pieces]
    assert whole.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-6)
    expected = 6 * (np.log1p(np.exp(-5.0)) / 2)  # no place is solved, and the logit of halting is -5
    new, latent = torch.ones(6, dtype=torch.bool), torch.zeros(2, 6, 16, 16)
    result: Any = model(batch["puzzle"], torch.zeros(6, dtype=torch.long), new, *latent)
    expected += cross_entropy(result.digits, batch["solution"], "stablemax").sum().item()
    assert whole.item() == pytest.approx(expected)
    assert count == 6


def test_the_winner_takes_it_all(data: Path) -> None:
    """Training would make all starts equal."""
    solver = recipe(data, starts=3)
    model: Any = solver.model()
    batch = batch_of(solver)
    each = []
    for start in range(3):
        numbers, new = torch.full((6,), start), torch.ones(6, dtype=torch.bool)
        result = model(batch["puzzle"], numbers, new, *torch.zeros(2, 6, 16, 16))
        each.append(cross_entropy(result.digits, batch["solution"], "stablemax"))
    best = torch.stack(each).min(0)
    assert len(best.indices.unique()) > 1
    loss_sum, _, state = solver.step(model, batch, None)
    halting = 6 * np.log1p(np.exp(-5.0)) / 2
    assert loss_sum.item() == pytest.approx(best.values.sum().item() + halting, rel=1e-6)
    assert state["high"].shape == (6, 3, 16, 16)
    loss_sum.backward()
    halting_gradient = model.to_halting.weight.grad[0]
    assert halting_gradient.any(), "the head learns from all starts"


def test_continue_loss_learns_the_value_of_another_segment(data: Path) -> None:
    """The second logit would keep its initial value, and every slot would halt as soon as the first is higher."""
    solver = recipe(data, continue_loss=True)
    model: Any = solver.model()
    loss_sum, _, _ = solver.step(model, batch_of(solver), None)
    plain, _, _ = recipe(data).step(model, batch_of(solver), None)
    target = 1 / (1 + np.exp(5.0))
    added = 6 * 0.5 * (target * np.log1p(np.exp(5.0)) + (1 - target) * np.log1p(np.exp(-5.0)))
    assert loss_sum.item() == pytest.approx(plain.item() + added, rel=1e-5)
    torch.nn.init.constant_(model.to_halting.bias[:1], -1.0)
    solver.step(model, batch_of(solver), None)[0].backward()
    assert model.to_halting.weight.grad[1].any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_heads": 3}, "recipe.width=16 cannot be divided into 3 heads"),
        (
            {"positions": "rope"},
            "positions=rope is impossible: it must be one of none, learned, units with recipe.mixing=heads",
        ),
        ({"variant": "direct", "segments": 4}, "set recipe.segments=1"),
        (
            {"positions": "none", "mixing": "attention"},
            "positions=none .* rope, learned, units with recipe.mixing=attention",
        ),
        ({"reveal": 1.5}, "recipe.reveal=1.5 is impossible"),
        ({"reveal_least": -0.1}, "recipe.reveal_least=-0.1 is impossible"),
        ({"starts": 2, "continue_loss": True}, "continue_loss=true is impossible: it must be false with recipe.starts=2"),
        ({"segments": 0}, "recipe.segments=0 is impossible"),
        ({"puzzle_rate": math.inf}, "recipe.puzzle_rate=inf is impossible: it must be more than 0, and finite"),
    ],
)
def test_settings_that_cannot_be_are_refused(data: Path, changed: dict[str, Any], message: str) -> None:
    """The user would see a traceback, or training would ignore a setting."""
    with pytest.raises(UserError, match=message):
        recipe(data, **changed)


def test_any_width_can_be_mixed_over_tokens(data: Path) -> None:
    """A width that num_heads does not divide would be refused, although such a network has no heads."""
    solver = recipe(data, mixing="tokens", width=18, num_heads=4)
    assert torch.isfinite(solver.step(solver.model(), batch_of(solver), None)[0])


def run_settings(out: Path, **changed: Any) -> TrainConfig:
    """Steps of 16, 16 and 3 puzzles in an epoch."""
    small: dict[str, Any] = {
        "batch_size": 16,
        "max_epochs": 3,
        "learning_rate": 3e-3,
        "weight_decay": 0.1,
        "warmup_steps": 2,
    }
    small |= {"clip_norm": 0, "patience": 100, "evaluations_per_epoch": 1, "trackers": (), "log_every": 1}
    return TrainConfig(data="puzzles", out=str(out), **(small | changed))


def test_a_puzzle_embedding_with_fsdp_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training would end in PyTorch's table of kernels."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    solver = recipe(data, puzzle_embedding=True)
    with pytest.raises(UserError, match=r"recipe.puzzle_embedding=true does not support FSDP"):
        solver.optimizers(solver.model(), 1e-3, 0.0)


def test_the_schedule_scales_each_optimizers_own_rate(data: Path, tmp_path: Path) -> None:
    """The puzzle embedding would be trained at the rate of the other weights, or without a schedule."""
    solver, rates = recipe(data, puzzle_embedding=True), []
    make_optimizers = solver.optimizers

    def optimizers(*arguments: Any) -> list[torch.optim.Optimizer]:
        both = make_optimizers(*arguments)
        both[1].register_step_pre_hook(lambda *_: rates.append([each.param_groups[0]["lr"] for each in both]))
        return both

    solver.optimizers = optimizers  # type: ignore[method-assign]
    loop.train(solver, run_settings(tmp_path / "run", max_epochs=1, schedule="linear"), Accelerator(cpu=True))
    assert rates == [pytest.approx([3e-3 * scale, 0.01 * scale]) for scale in (0.5, 1.0, 0.5)]


def test_muon_trains_the_matrices_of_the_layers_and_resumes(data: Path, tmp_path: Path) -> None:
    """A weight would be trained by no optimizer or by two, or the momentum would be lost in a checkpoint."""
    solver = recipe(data, muon_rate=0.005)
    model: Any = solver.model()
    adam, muon = solver.optimizers(model, 3e-3, 0.1)
    parts = [[weight for group in each.param_groups for weight in group["params"]] for each in (adam, muon)]
    assert {id(weight) for part in parts for weight in part} == {id(weight) for weight in model.parameters()}
    assert sum(map(len, parts)) == len(list(model.parameters()))
    matrices = [layer.perceptrons[0].widen.weight for layer in (model.low, model.high)]
    assert {id(weight) for weight in matrices} <= {id(weight) for weight in parts[1]}
    assert id(model.to_digits.weight) in {id(weight) for weight in parts[0]}
    for name, stops in (("whole", (2,)), ("cut", (1, 2))):
        for number, stop in enumerate(stops):
            settings = run_settings(tmp_path / name, max_epochs=stop, schedule="constant", warmup_steps=0)
            resumed = ("last", True) if number else ()
            loop.train(recipe(data, muon_rate=0.005), settings, Accelerator(cpu=True), *resumed)
    expected, result = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(expected[name], result[name]) for name in expected)


def test_a_run_that_was_cut_off_between_micro_batches_goes_on_bit_for_bit(data: Path, tmp_path: Path) -> None:
    """The carry, the moments or the puzzle embedding would be lost, or its average would replace the embedding."""
    common = {"max_epochs": 2, "micro_batch_size": 4, "ema_decay": 0.9, "checkpoint_steps": 2}
    whole, cut = (run_settings(tmp_path / name, **common) for name in ("whole", "cut"))
    loop.train(recipe(data, puzzle_embedding=True), whole, Accelerator(cpu=True))
    solver, num_calls = recipe(data, puzzle_embedding=True), 0
    solver_step = solver.step

    def step(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 16:  # in step 5, after one trial and 4, 4, 1 and 4 micro-batches
            raise KeyboardInterrupt
        return solver_step(*arguments)

    solver.step = step  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.train(solver, cut, Accelerator(cpu=True))
    loop.train(recipe(data, puzzle_embedding=True), cut, Accelerator(cpu=True), "last")
    expected, result = (last_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert "carry.12.low" in result
    assert expected.keys() == result.keys()
    assert all(torch.equal(expected[name], result[name]) for name in expected)
    table = "puzzles.table"
    assert result[table].any()
    for name in ("best", "final"):
        assert load_file(tmp_path / "cut" / name / "model.safetensors").keys() >= {table, "high_start", "low_start"}
    assert torch.equal(load_file(tmp_path / "cut/final/model.safetensors")[table], result[table]), "it was averaged"


def test_in_fp16_an_overflow_leaves_the_puzzle_embedding_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler would find no gradient that it checked and fail, or the table would keep infinite values."""
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
    monkeypatch.setattr(accelerator, "native_amp", False)
    monkeypatch.setattr(accelerator, "scaler", None)
    speed.use_fp16_on_cpu(accelerator)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    summary = loop.train(recipe(data, puzzle_embedding=True), run_settings(tmp_path / "run"), accelerator)
    assert summary["precision"] == "fp16"
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    skipped = [line for line in lines if line["kind"] == "event"]
    assert 0 < len(skipped) < 9
    assert all("fp16 overflowed" in line["event"] for line in skipped)
    table = load_file(tmp_path / "run/final/model.safetensors")["puzzles.table"]
    assert 0 < table.abs().max() <= 0.01 * (9 - len(skipped))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_sudokus.prepared(tmp_path_factory.mktemp("many"), 320)


@pytest.fixture(scope="module")
def trained(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that has learned some rules of 4 × 4 puzzles, in 250 small steps."""
    out = tmp_path_factory.mktemp("run") / "trm"
    network = {"variant": "trm", "width": 32, "inner_width": 64, "num_heads": 4, "reveal_epochs": 25}
    settings = {
        "data": str(many), "out": str(out), "batch_size": 32, "max_epochs": 25, "learning_rate": 5e-3, "patience": 100,
        "trackers": (), "warmup_steps": 10, "ema_decay": 0.9, "checkpoint_steps": 1000,
        "recipe": vars(small_sudokus.config(**network)),
    }  # fmt: skip
    config: Any = configuration.from_dict(config_class("sudoku"), settings)
    loop.train(training.make(config.recipe, str(many)), config, Accelerator(cpu=True))
    return out


def test_a_network_learns_and_writes_prediction_files(trained: Path, many: Path, tmp_path: Path) -> None:
    """Nothing would be learned, or a file would name other cells than it predicts."""
    manifest = folders.read_manifest(many)
    loaded = members.LoadedMember(NeuralMember(trained, Accelerator(cpu=True), many).predict)
    ((_, path, num_rows),) = members.write_splits(loaded, "trm", "neural", ["test"], many, manifest, tmp_path, trained)
    assert num_rows == 160
    result = predictions.read(path)
    assert result.output == "probabilities"
    assert result.classes == ("1", "2", "3", "4")
    rows = recipe(many).rows("test").columns
    assert np.array_equal(result.target.reshape(10, 16) + 1, rows["solution"].all())
    assert np.array_equal(result.cluster.reshape(10, 16)[:, 0], rows["row_id"].all())
    assert np.array_equal(result.row_id, np.repeat(rows["row_id"].all() * 16, 16) + np.tile(np.arange(16), 10))
    right = result.prediction.argmax(1) == result.target
    assert right.mean() > 0.6


def test_a_member_predicts_as_it_is_asked_to(trained: Path, many: Path, tmp_path: Path) -> None:
    """starts, votes and select would be ignored, or prediction files would not record them."""
    accelerator = Accelerator(cpu=True)
    plain = NeuralMember(trained, accelerator, many).predict(many, "test")
    options = {"starts": 2, "votes": 3, "select": "vote"}
    voted = NeuralMember(trained, accelerator, many, options).predict(many, "test")
    assert np.array_equal(plain["row_id"], voted["row_id"])
    assert not np.array_equal(plain["prediction"], voted["prediction"])
    words = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, launcher.PREDICT, f"member={trained}", f"data={many}", "splits=[test]", f"out={tmp_path}"]
    code, errors = launcher.run([*command, "name=voted", *words], tmp_path)
    assert code == 0, errors
    result = predictions.read(tmp_path / "voted.test.parquet")
    assert np.array_equal(result.prediction, voted["prediction"])
    assert result.config["votes"] == 3
    assert "votes" not in plain["config"]
    with pytest.raises(UserError, match="select=best is not a way"):
        NeuralMember(trained, accelerator, many, {**options, "select": "best"})


def test_metrics_count_puzzles_and_blanks(data: Path) -> None:
    """Clues would count as right cells, or half of a board as solved."""
    solver = recipe(data)
    rows = solver.rows("test").gather(np.arange(4))
    right = torch.nn.functional.one_hot(rows["solution"] - 1, 4).double()
    blank = [int((rows["puzzle"][row] == 0).nonzero()[0]) for row in range(4)]
    right[0, blank[0]] = 0.25
    right[0, blank[0], 3 - int(rows["solution"][0, blank[0]] - 1 == 3)] = 0.9
    solver.predict = lambda model, batch: {  # type: ignore[method-assign]
        "prediction": right, "target": (rows["solution"] - 1).float(), "segments": torch.tensor([1.0, 2.0, 3.0, 4.0])
    }  # fmt: skip
    sums = {name: tensor.double().sum(0).numpy() for name, tensor in solver.sums(solver.model(), rows).items()}
    result = solver.metrics(sums)
    assert result["exact"] == 0.75
    assert result["blanks"] == pytest.approx(1 - 1 / 32)
    assert result["segments"] == 2.5
    assert np.isnan(solver.metrics({**sums, "not_finite": np.array(1)})["exact"])
