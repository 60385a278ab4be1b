"""Training of next_item: gradients of any micro-batches, resuming to the same bits, bf16, compiled blocks, foreign items."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import walks
from accelerate import Accelerator
from toy import checkpoints, last, tensors

from ensemble import folders
from ensemble.arrow import TableWriter, open_table
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.recipes.next_item import hyper_connections, training
from ensemble.recipes.next_item.settings import RecipeConfig

torch.set_num_threads(1)
VARIANTS = [{"time_aware": time_aware, "num_streams": streams} for time_aware in (False, True) for streams in (0, 2)]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=["SASRec", "SASRec+mHC", "TiSASRec", "TiSASRec+mHC"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return walks.prepared(tmp_path_factory.mktemp("walks"))


def recipe_of(data: Path, **settings: Any) -> training.NextItem:
    return training.make(RecipeConfig(**{"max_length": 10, "width": 8, "dropout": 0.0, **settings}), str(data))


def shaken(recipe: training.NextItem) -> torch.nn.Module:
    """A model in training mode, without parameters that are 0."""
    torch.manual_seed(0)
    model = recipe.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def loss_and_gradient(
    recipe: training.NextItem, model: torch.nn.Module, cut: list[np.ndarray]
) -> tuple[float, torch.Tensor]:
    """The loss and gradient of a global batch in micro-batches: sums divided by the global count, as in the loop."""
    model.zero_grad()
    losses, counts = 0.0, 0.0
    for rows in cut:
        loss, count, _ = recipe.step(model, recipe.rows("train").gather(rows), None)
        loss.backward()
        losses, counts = losses + loss.item(), counts + count.item()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return losses / counts, gradient / counts


@every_variant
def test_the_gradient_does_not_depend_on_the_cut(variant: dict[str, Any], data: Path) -> None:
    """The model would depend on padding, on groups of similar length, or on the number of ranks."""
    recipe = recipe_of(data, **variant)
    model, rows = shaken(recipe), np.random.default_rng(0).permutation(len(recipe.rows("train")))[:29]
    whole = loss_and_gradient(recipe, model, [rows])
    for size, num_groups in ((8, 8), (1, 8), (29, 1), (5, 2)):
        recipe = recipe_of(data, **variant, num_groups=num_groups)
        actual = loss_and_gradient(recipe, model, np.split(rows, range(size, 29, size)))
        assert actual[0] == pytest.approx(whole[0], rel=1e-6)
        assert torch.linalg.norm(actual[1] - whole[1]) <= 2e-6 * torch.linalg.norm(whole[1]), (size, num_groups)


def run_config(data: Path, out: Path) -> Any:
    return config_class("next_item")(
        data=str(data), out=str(out), batch_size=16, micro_batch_size=8, max_epochs=1.5, learning_rate=0.01, warmup_steps=2,
        evaluations_per_epoch=1, patience=9, checkpoint_steps=2, trackers=(), log_every=1,
    )  # fmt: skip


def crash(recipe: training.NextItem, at_micro_batch: int) -> None:
    """Interrupt the recipe's step on this micro-batch, counted from 1; four calls are before the first one."""
    step, numbers = recipe.step, itertools.count(-3)

    def interrupted(*arguments: Any) -> Any:
        if next(numbers) == at_micro_batch:
            raise KeyboardInterrupt
        return step(*arguments)

    recipe.step = interrupted  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("variant", "loss"),
    list(zip(VARIANTS, ("sampled_softmax", "bce", "gbce", "cross_entropy"), strict=True)),
    ids=["SASRec", "SASRec+mHC", "TiSASRec", "TiSASRec+mHC"],
)
def test_a_resumed_run_ends_with_the_same_bits(
    variant: dict[str, Any], loss: str, data: Path, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Negatives or dropout masks would be drawn again after a kill in the middle of an epoch: the run would differ."""
    settings = {**variant, "loss": loss, "num_negatives": 3, "dropout": 0.3, "num_layers": 1, "num_groups": 2}
    whole, killed = run_config(data, tmp_path / "whole"), run_config(data, tmp_path / "killed")
    loop.train(recipe_of(data, **settings), whole, accelerator)
    recipe = recipe_of(data, **settings)
    crash(recipe, 6)
    with pytest.raises(KeyboardInterrupt):
        loop.train(recipe, killed, accelerator)
    assert checkpoints(killed) == ["step-00000002"]
    torch.manual_seed(99)
    loop.train(recipe_of(data, **settings), killed, accelerator, "last")
    expected, actual = tensors(last(whole)), tensors(last(killed))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


@every_variant
def test_in_bf16_the_loss_is_nearly_the_same_and_mhc_is_in_fp32(
    variant: dict[str, Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of H_res would sum to 1 ± 0.01, or a part of the loss would be summed in bfloat16."""
    recipe, seen, products = recipe_of(data, **variant, width=16), set(), set()
    sinkhorn = hyper_connections.sinkhorn
    monkeypatch.setattr(hyper_connections, "sinkhorn", lambda x, number: (seen.add(x.dtype), sinkhorn(x, number))[1])
    model, rows = shaken(recipe), [np.arange(40)]
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, inputs, output: products.add(output.dtype))
    expected = loss_and_gradient(recipe, model, rows)
    assert products == {torch.float32}
    products.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = loss_and_gradient(recipe, model, rows)
    assert actual[0] == pytest.approx(expected[0], rel=5e-3)
    assert torch.bfloat16 in products, "nothing was in bf16"
    assert torch.linalg.norm(actual[1] - expected[1]) <= 0.05 * torch.linalg.norm(expected[1])
    assert seen == ({torch.float32} if variant["num_streams"] else set())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not")  # by torch, about its own compiler
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by the compiler
def test_compiled_blocks_give_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler would take the intervals or lengths of one batch for constants. Its kernels are tested by PyTorch."""
    recipe = recipe_of(data, **VARIANTS[3], num_layers=1, num_groups=1)
    monkeypatch.setattr(hyper_connections.HyperConnection.__init__, "__defaults__", (2,))  # unrolled by the compiler
    model = shaken(recipe)
    cuts = [[np.arange(20)], [np.arange(20, 33)]]
    expected = [loss_and_gradient(recipe, model, cut) for cut in cuts]
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend="eager", dynamic=True)
    for cut, (loss, gradient) in zip(cuts, expected, strict=True):
        actual = loss_and_gradient(recipe, model, cut)
        assert actual[0] == pytest.approx(loss, rel=1e-6)
        assert torch.linalg.norm(actual[1] - gradient) <= 1e-5 * torch.linalg.norm(gradient)


def test_foreign_items_are_refused(data: Path, accelerator: Accelerator, tmp_path: Path) -> None:
    """Item 7 of one catalogue would be predicted as item 7 of another; a damaged number would cause a traceback."""
    loop.train(recipe_of(data), run_config(data, tmp_path / "run"), accelerator)
    (tmp_path / "other").mkdir()
    other = walks.prepared(tmp_path / "other", first_item=2)
    with pytest.raises(
        UserError,
        match=r"in another way than the training data of .*, with other values of catalogue: .* from the same files",
    ):
        NeuralMember(tmp_path / "run", accelerator, other)
    damaged = Path(shutil.copytree(data, tmp_path / "damaged"))
    events = open_table(data / "events")
    item = events["item"].to_numpy().copy()
    for number in (0, walks.NUM_ITEMS + 1):
        item[5] = number
        shutil.rmtree(damaged / "events")
        with TableWriter(damaged / "events", events.schema) as writer:
            writer.write(events.set_column(0, "item", pa.array(item)))
        (damaged / "manifest.json").unlink()
        folders.write_manifest(damaged, folders.read_json(data / "manifest.json"))
        with pytest.raises(UserError, match=f"events of .* are of item {number}, but items are numbered from 1 to 30"):
            recipe_of(damaged)
