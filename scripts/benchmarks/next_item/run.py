"""The work that a process of the benchmarks of next_item repeats (turns.py).

The process is started in a folder with prepared/, data/pairs.txt and data/times.txt (see data.py). Except for a preparation,
the data are in memory before the work begins. The reference is pmixer/SASRec.pytorch, or pmixer/TiSASRec.pytorch with times:
their unchanged model.py and utils.py, found through PYTHONPATH. Their main.py is a script, whose training step is repeated
here with the same calls in the same order.
"""

import importlib
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

WIDTH, NUM_LAYERS, NUM_HEADS, DROPOUT = 50, 2, 1, 0.2
SPAN = 256
"""The longest interval of TiSASRec; longer ones are clipped to it. With the interval 0 there are `SPAN` + 1 intervals."""
LEARNING_RATE = 1e-3
USERS_AT_ONCE = 256
"""Users of a batch for which our side ranks items."""
NUM_GROUPS = 8
"""Groups of sequences of similar length in a batch: the recipe's default on a CPU."""
FEW = 2
"""Sequences of the warm-up. Libraries load further modules when they are first used."""

Work = Callable[[], object]


class NextItemRun(NamedTuple):
    """The work of a process, and its size."""

    work: Literal["step", "evaluate", "prepare"] = "step"
    """A training step, ranking items for users, or preparing data."""
    side: Literal["ours", "reference"] = "ours"
    """This project, or the reference, whose modules are found through PYTHONPATH."""
    time_aware: bool = False
    """TiSASRec; otherwise SASRec."""
    num_streams: int = 0
    """Streams of mHC; 0 for residuals."""
    max_length: int = 50
    """The largest number of items of a sequence."""
    num_sequences: int = 128
    """Sequences of a batch, or users to rank items for."""
    loss: Literal["bce", "cross_entropy"] = "bce"
    """The loss of our training step; that of the reference is bce."""


def work_of(*settings: Any) -> Work:
    """The work of a process, given the values of a `NextItemRun`."""
    run = NextItemRun(*settings)
    return WORKS[run.side, run.work](run)


# ------------------------------------------------------------------------------------------------------------------ ours


def _recipe(settings: NextItemRun) -> Any:
    import torch

    from ensemble.recipes.next_item import training
    from ensemble.recipes.next_item.settings import RecipeConfig

    torch.manual_seed(0)
    config = RecipeConfig(
        time_aware=settings.time_aware, num_streams=settings.num_streams, max_length=settings.max_length, width=WIDTH,
        num_layers=NUM_LAYERS, num_heads=NUM_HEADS, dropout=DROPOUT, num_intervals=SPAN + 1, loss=settings.loss,
        num_groups=NUM_GROUPS,
    )  # fmt: skip
    return training.make(config, "prepared")


def _chosen(rows: Any, settings: NextItemRun) -> np.ndarray:
    """The numbers of the sequences in the batch, the same for both sides."""
    return np.random.default_rng(0).choice(len(rows), settings.num_sequences, replace=False)


def training_step(optimizer: Any, loss_of: Callable[..., Any]) -> Callable[..., None]:
    """A function that makes a training step with the loss that `loss_of` computes from the same arguments."""

    def step(*arguments: Any) -> None:
        optimizer.zero_grad()
        loss = loss_of(*arguments)
        loss.backward()
        optimizer.step()
        assert math.isfinite(loss.item())

    return step


def _our_step(settings: NextItemRun) -> Work:
    recipe = _recipe(settings)
    model, rows = recipe.model(), recipe.rows("train")
    (optimizer,) = recipe.optimizers(model, LEARNING_RATE, 0.0)

    def loss_of(batch: Any) -> Any:
        loss_sum, count, _ = recipe.step(model, batch, None)
        return loss_sum / count

    step = training_step(optimizer, loss_of)
    chosen = _chosen(rows, settings)
    step(rows.gather(chosen[:FEW]))
    batch = rows.gather(chosen)
    return lambda: step(batch)


def _our_evaluation(settings: NextItemRun) -> Work:
    import torch

    recipe = _recipe(settings)
    model, rows = recipe.model().eval(), recipe.rows("test")

    def evaluate(users: np.ndarray) -> None:
        parts = np.array_split(users, math.ceil(len(users) / USERS_AT_ONCE))
        with torch.no_grad():
            predictions = [recipe.predict(model, rows.gather(part)) for part in parts]
        recipe.metrics({name: torch.cat([part[name] for part in predictions]).numpy() for name in predictions[0]})

    evaluate(np.arange(FEW))
    return lambda: evaluate(np.arange(settings.num_sequences))


def _our_preparation(settings: NextItemRun) -> Work:
    from ensemble.recipes.next_item import prepare as sequences
    from ensemble.recipes.next_item.settings import PrepareConfig

    file = "data/times.txt" if settings.time_aware else "data/pairs.txt"
    config = PrepareConfig(source=(file,), out="prepared_again", overwrite=True)
    return lambda: sequences.prepare(config)


# ---------------------------------------------------------------------------------------------------------- the reference


def _reference_model(settings: NextItemRun, num_users: int, num_items: int) -> tuple[Any, Any]:
    """The model that main.py builds by default, except for the length of sequences; and the model's arguments."""
    import torch

    arguments = types.SimpleNamespace(
        device="cpu", maxlen=settings.max_length, hidden_units=WIDTH, num_blocks=NUM_LAYERS, num_heads=NUM_HEADS,
        dropout_rate=DROPOUT, norm_first=False, time_span=SPAN,
    )  # fmt: skip
    torch.manual_seed(0)
    module = importlib.import_module("model")
    if settings.time_aware:
        model, fill = module.TiSASRec(num_users, num_items, num_items, arguments), torch.nn.init.xavier_uniform_
    else:
        model, fill = module.SASRec(num_users, num_items, arguments), torch.nn.init.xavier_normal_
    for parameter in model.parameters():
        if parameter.dim() > 1:
            fill(parameter.data)
    return model, arguments


def _reference_step(settings: NextItemRun) -> Work:
    import torch

    recipe = _recipe(settings)
    rows, num_items = recipe.rows("train"), recipe.manifest["items"]
    model, _ = _reference_model(settings, len(rows), num_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    binary_cross_entropy = torch.nn.BCEWithLogitsLoss()

    def penalty() -> Any:
        if not settings.time_aware:
            return 0.0 * torch.sum(model.item_emb.weight**2)
        names = ("item_emb", "abs_pos_K_emb", "abs_pos_V_emb", "time_matrix_K_emb", "time_matrix_V_emb")
        return sum(5e-5 * torch.norm(getattr(model, name).weight) for name in names)

    def step(inputs: list[np.ndarray]) -> None:
        positive, negative = model(*inputs)
        one, zero = torch.ones(positive.shape), torch.zeros(negative.shape)
        optimizer.zero_grad()
        real = np.where(inputs[-2] != 0)
        loss = binary_cross_entropy(positive[real], one[real]) + binary_cross_entropy(negative[real], zero[real]) + penalty()
        loss.backward()
        optimizer.step()
        assert math.isfinite(loss.item())

    chosen = _chosen(rows, settings)
    step(padded(rows.gather(chosen[:FEW]), settings.max_length, num_items))
    inputs = padded(rows.gather(chosen), settings.max_length, num_items)
    return lambda: step(inputs)


def padded(batch: Any, length: int, num_items: int) -> list[np.ndarray]:
    """Our batch in the layout of the reference, padded on the left: users, items, perhaps intervals, targets, negatives."""
    groups = [group for group in range(NUM_GROUPS) if f"items.{group}" in batch]
    targets = np.zeros(sum(batch[f"items.{group}"].numel() for group in groups), np.int32)
    targets[batch["places"].numpy()] = batch["target"].numpy()
    sequences: list[list[np.ndarray]] = []
    begin = 0
    for group in groups:
        items = batch[f"items.{group}"].numpy()
        times = batch[f"times.{group}"].numpy() + 1 if f"times.{group}" in batch else items  # times that SASRec does not use
        for row_items, row_times in zip(items, times, strict=True):
            parts = row_items, targets[begin : begin + len(row_items)], row_times
            sequences.append([np.pad(part[row_items > 0], (length - (row_items > 0).sum(), 0)) for part in parts])
            begin += len(row_items)
    items_BL, targets_BL, times_BL = map(np.stack, zip(*sequences, strict=True))
    negatives_BL = np.random.default_rng(0).integers(1, num_items + 1, items_BL.shape)
    intervals = [np.minimum(abs(times_BL[:, :, None] - times_BL[:, None, :]), SPAN)] if "times.0" in batch else []
    return [np.arange(len(items_BL)), items_BL, *intervals, targets_BL, negatives_BL]


def _reference_evaluation(settings: NextItemRun) -> Work:
    utils = importlib.import_module("utils")
    train, validation, test, num_users, num_items, *more = utils.data_partition(_file(settings))
    model, arguments = _reference_model(settings, num_users, num_items)
    model.eval()

    def evaluate(num_users: int) -> None:
        users = range(1, num_users + 1)
        splits = [{user: split[user] for user in users} for split in (train, validation, test)]
        utils.evaluate(model, [*splits, num_users, num_items, *more], arguments)

    evaluate(FEW)
    return lambda: evaluate(settings.num_sequences)


def _reference_preparation(settings: NextItemRun) -> Work:
    utils = importlib.import_module("utils")

    def prepare() -> None:
        train, _, _, num_users, *_ = utils.data_partition(_file(settings))
        if settings.time_aware:
            utils.Relation(train, num_users, settings.max_length, SPAN)
        else:
            utils.build_index(_file(settings))

    return prepare


def _file(settings: NextItemRun) -> str:
    """The NAME by which the functions of the references read data/NAME.txt."""
    name = "times" if settings.time_aware else "pairs"
    assert Path(f"data/{name}.txt").exists()
    return name


WORKS: dict[tuple[str, str], Callable[[NextItemRun], Work]] = {
    ("ours", "step"): _our_step,
    ("ours", "evaluate"): _our_evaluation,
    ("ours", "prepare"): _our_preparation,
    ("reference", "step"): _reference_step,
    ("reference", "evaluate"): _reference_evaluation,
    ("reference", "prepare"): _reference_preparation,
}
