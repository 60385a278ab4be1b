"""The work that a process repeats (turns.py), for each side of each comparison, as the library's documentation describes it.

Except for the panel, the data are in memory before the work begins.
"""

import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.next_item import run as next_item_run
from benchmarks.next_item.run import DROPOUT, LEARNING_RATE, NUM_HEADS, NUM_LAYERS, USERS_AT_ONCE, WIDTH, NextItemRun, Work

NUM_ROWS, BATCH = 64 * 1024, 256
NUM_SEQUENCES, MAX_LENGTH, NUM_USERS = 128, 200, 512
BEST = 10
"""Items that are returned for each user."""


def work_of(area: str, side: str, folder: str) -> Work:
    """The work of a side of a comparison, in a folder of data."""
    return WORKS[area](side, Path(folder))


# ------------------------------------------------------------------------------------------------------------------ loop


def loop(name: str, folder: Path) -> Work:
    """Work that trains a new model, and returns the mean CPU seconds of a step after the warm-up. name : MODEL_LOOP."""
    import torch
    from accelerate import Accelerator

    from benchmarks import overhead

    torch.set_num_threads(1)
    model, side = name.split("_")
    recipe, accelerator = overhead.Regression(model), Accelerator(cpu=True)
    recipe.clock = time.process_time
    train = overhead.ours if side == "ours" else other_loops()[side]
    return lambda: float(overhead.step_seconds(train, recipe, accelerator).mean())


def measure_rank(accelerator: Any, rounds: int, packages: str) -> dict[str, Any]:
    """For each model, compare each other loop with ours on the launched ranks; `packages` has the other libraries."""
    from benchmarks import overhead

    sys.path.append(packages)
    return {
        f"{model}_{name}": overhead.compare_loops(train, model, accelerator, rounds, "other")
        for model, (name, train) in itertools.product(overhead.MODELS, other_loops().items())
    }


def other_loops() -> dict[str, Any]:
    """The training loops that ours is compared with, by name."""
    from benchmarks import overhead

    return {"plain": overhead.plain, "fabric": fabric_loop, "accelerate": accelerate_loop}


def _start(recipe: Any, config: Any, ranks: int, rank: int = 0, readers: int = 1) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, schedule and batches of the other loops, as in `overhead.plain`.

    Each of `ranks` has an equal share of a batch. With `readers=ranks` the DataLoader of each rank has only its own rows;
    with one reader it has all rows, which Accelerate divides. The DataLoader has a batch size, unlike that of
    `overhead.plain`: without one, `prepare` of Accelerate 1.15 ignores the sampler and reads each row as a batch.
    """
    import torch

    from benchmarks import overhead

    rows = recipe.rows("train")
    model, optimizer, schedule = overhead.start(recipe, config)
    order = np.random.default_rng([config.seed, 0]).permutation(len(rows))[rank::readers].tolist()
    size = config.batch_size // ranks
    batches: Any = torch.utils.data.DataLoader(rows, size, sampler=order, collate_fn=lambda batch: batch)
    return model, optimizer, schedule, batches


def fabric_loop(recipe: Any, config: Any, accelerator: Any) -> None:
    """Lightning Fabric, as in its guide "Convert PyTorch code to Fabric"."""
    from lightning_fabric import Fabric

    ranks, rank = accelerator.num_processes, accelerator.process_index
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    model, optimizer, schedule, batches = _start(recipe, config, ranks, rank, ranks)
    model, optimizer = fabric.setup(model, optimizer)
    total = 0.0
    for batch in fabric.setup_dataloaders(batches, use_distributed_sampler=False):  # the rank's own
        optimizer.zero_grad()
        loss_sum, count, _ = recipe.step(model, batch, None)
        loss = loss_sum / count
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=config.clip_norm)
        optimizer.step()
        schedule.step()
        total += loss.item()
    assert math.isfinite(total)


def accelerate_loop(recipe: Any, config: Any, accelerator: Any) -> None:
    """Accelerate, as in its examples complete_nlp_example.py and gradient_accumulation.py."""
    model, optimizer, schedule, batches = accelerator.prepare(*_start(recipe, config, accelerator.num_processes))
    model.train()
    total = 0.0
    for batch in batches:
        with accelerator.accumulate(model):
            loss_sum, count, _ = recipe.step(model, batch, None)
            loss = loss_sum / count
            total += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert math.isfinite(total)
    accelerator.free_memory()


# ---------------------------------------------------------------------------------------------------------------- loader


class Table:
    """Rows of 32 numbers and a target, read one by one."""

    def __init__(self, num_rows: int = NUM_ROWS):
        generator = np.random.default_rng(0)
        self.x, self.y = (generator.standard_normal(shape, np.float32) for shape in ((num_rows, 32), num_rows))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.float32]:
        return self.x[row], self.y[row]

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Any:
        """The tensors of a whole batch, for our Feed and for `torch_whole_batches`."""
        import torch

        return {"x": torch.from_numpy(self.x[rows]), "y": torch.from_numpy(self.y[rows])}


def loader(side: str, folder: Path, table: Table | None = None) -> Work:
    """Work that reads an epoch of shuffled batches, and returns the number of rows."""
    import torch

    torch.set_num_threads(1)
    table = table or Table()
    makers: dict[str, Any] = {
        "ours": _our_batches, "torch": _torch_batches, "torch_whole_batches": _whole_batches,
        "datasets": _datasets_batches, "datasets_whole_batches": partial(_datasets_batches, whole=True),
        "torchdata": _torchdata_batches, "grain": _grain_batches,
    }  # fmt: skip
    make = makers[side](table, folder)
    return lambda: sum(len(batch["y"] if isinstance(batch, dict) else batch[1]) for batch in make())


def _our_batches(table: Table, folder: Path) -> Callable[[], Iterable[Any]]:
    import torch

    from ensemble.neural.loader import BatchPlan, Feed

    def batches() -> Iterable[Any]:
        plan = BatchPlan(len(table), BATCH, 0, 1, 0, seed=0)
        micro_batches = plan.micro_batches(0, plan.steps_per_epoch)
        with Feed(table, micro_batches, device=torch.device("cpu"), num_workers=0, prefetch_factor=0) as feed:
            yield from (batch for _, batch in feed)

    return batches


def _torch_batches(table: Table, folder: Path) -> Callable[[], Iterable[Any]]:
    import torch

    rows = torch.utils.data.TensorDataset(torch.from_numpy(table.x), torch.from_numpy(table.y))
    data = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)
    return lambda: data


def _whole_batches(table: Table, folder: Path) -> Callable[[], Iterable[Any]]:
    """PyTorch with a dataset that gathers whole batches: the fastest way with PyTorch, which users must write themselves."""
    import torch

    class Whole(torch.utils.data.Dataset[Any]):
        def __getitem__(self, rows: list[int]) -> Any:
            return table.gather(np.asarray(rows))

    def batches() -> Iterable[Any]:
        order = torch.randperm(len(table)).numpy()
        chosen = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
        return torch.utils.data.DataLoader(Whole(), sampler=chosen, batch_size=None)

    return batches


def _datasets_batches(table: Table, folder: Path, whole: bool = False) -> Callable[[], Iterable[Any]]:
    """`datasets` in the format of torch; with `whole` by a BatchSampler, which its guide recommends for speed."""
    import torch
    from datasets import Dataset, Features, List, Value, load_from_disk

    path = tempfile.mkdtemp(dir=folder)
    kinds = Features({"x": List(Value("float32"), length=32), "y": Value("float32")})
    Dataset.from_dict({"x": table.x, "y": table.y}, features=kinds).save_to_disk(path)
    rows: Any = load_from_disk(path).with_format("torch")
    if whole:
        sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows), BATCH, drop_last=False)
        data = torch.utils.data.DataLoader(rows, sampler=sampler, batch_size=None)
    else:
        data = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)
    return lambda: data


def _torchdata_batches(table: Table, folder: Path) -> Callable[[], Iterable[Any]]:
    import torch
    from torchdata import nodes

    def batches() -> Iterable[Any]:
        sampler = torch.utils.data.RandomSampler(table)
        rows = nodes.Batcher(nodes.MapStyleWrapper(table, sampler), BATCH, drop_last=False)
        return nodes.Loader(nodes.Mapper(rows, torch.utils.data.default_collate))

    return batches


def _grain_batches(table: Table, folder: Path) -> Callable[[], Iterable[Any]]:
    from grain import python as grain

    rows = grain.MapDataset.source(table).shuffle(seed=0).batch(BATCH)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return lambda: rows.to_iter_dataset(options)


# ------------------------------------------------------------------------------------------------------------- next_item


def next_item(name: str, folder: Path) -> Work:
    """Work that makes a training step, or ranks all new items for some users. name : WORK_SIDE."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    work, side = name.split("_")
    if side == "ours":
        kind, number = ("step", NUM_SEQUENCES) if work == "step" else ("evaluate", NUM_USERS)
        settings: Any = {"work": kind, "max_length": MAX_LENGTH, "num_sequences": number}
        return next_item_run.work_of(*NextItemRun(**settings))
    users = _sequences(folder)
    make = {"recbole": _recbole, "rectools": _rectools}[side]
    return make(users, max(map(max, users)), work)


def _sequences(folder: Path) -> list[np.ndarray]:
    """The items of each user in the order of time, without the last one, which is the target of test."""
    users, items = np.loadtxt(folder / "data" / "pairs.txt", dtype=np.int64, delimiter=" ").T
    return [part[:-1] for part in np.split(items, np.flatnonzero(np.diff(users)) + 1)]


def _chosen(users: list[np.ndarray], work: str) -> list[np.ndarray]:
    """The sequences of the users for whom items are ranked, or of the users in the batch of a training step."""
    if work == "rank":
        return users[:NUM_USERS]
    return [users[number] for number in np.random.default_rng(0).permutation(len(users))[:NUM_SEQUENCES]]


def _training(model: Any, loss_of: Callable[[], Any]) -> Work:
    """A training step with the loss that `loss_of` computes."""
    import torch

    model.train()
    return next_item_run.training_step(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), loss_of)


def _recbole(users: list[np.ndarray], num_items: int, work: str) -> Work:
    """RecBole's model with its BPR loss; ranking as in `_full_sort_batch_eval` and `Collector.eval_batch_collect`.

    A sequence of RecBole has one target, the item after its end. An epoch of RecBole has a sequence for each item of a user.
    """
    import torch
    from recbole.model.sequential_recommender.sasrec import SASRec

    config = {
        "USER_ID_FIELD": "user_id", "ITEM_ID_FIELD": "item_id", "LIST_SUFFIX": "_list", "NEG_PREFIX": "neg_",
        "ITEM_LIST_LENGTH_FIELD": "item_length", "MAX_ITEM_LIST_LENGTH": MAX_LENGTH, "device": "cpu", "n_layers": NUM_LAYERS,
        "n_heads": NUM_HEADS, "hidden_size": WIDTH, "inner_size": WIDTH, "hidden_dropout_prob": DROPOUT,
        "attn_dropout_prob": DROPOUT, "hidden_act": "relu", "layer_norm_eps": 1e-12, "initializer_range": 0.02,
        "loss_type": "BPR",
    }  # fmt: skip
    model = SASRec(config, SimpleNamespace(num=lambda field: num_items + 1))
    chosen = _chosen(users, work)

    def interaction(sequences: list[np.ndarray]) -> dict[str, Any]:
        items = np.zeros((len(sequences), MAX_LENGTH), np.int64)
        for row, sequence in zip(items, sequences, strict=True):
            row[: len(sequence[-MAX_LENGTH:])] = sequence[-MAX_LENGTH:]
        lengths = torch.from_numpy((items > 0).sum(1))
        return {"item_id_list": torch.from_numpy(items), "item_length": lengths}

    if work == "step":  # the target is the item before the last one, which is the target of validation
        negatives = np.random.default_rng(0).integers(1, num_items + 1, len(chosen))
        batch = interaction([sequence[:-2] for sequence in chosen])
        batch |= {"item_id": torch.tensor([sequence[-2] for sequence in chosen]), "neg_item_id": torch.from_numpy(negatives)}
        return _training(model, lambda: model.calculate_loss(batch))
    model.eval()

    def rank() -> None:
        with torch.no_grad():
            for begin in range(0, len(chosen), USERS_AT_ONCE):
                part = chosen[begin : begin + USERS_AT_ONCE]
                scores = model.full_sort_predict(interaction(part))
                rows = np.repeat(np.arange(len(part)), [len(sequence) for sequence in part])
                scores[:, 0] = -np.inf
                scores[torch.from_numpy(rows), torch.from_numpy(np.concatenate(part))] = -np.inf
                torch.topk(scores, BEST, dim=-1)

    return rank


def _rectools(users: list[np.ndarray], num_items: int, work: str) -> Work:
    """RecTools' model with its BCE loss and one negative for each item; ranking by `recommend`."""
    import pandas as pd
    import torch
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel

    lengths = [len(sequence) for sequence in users]
    rows = pd.DataFrame({Columns.User: np.repeat(np.arange(len(users)), lengths), Columns.Item: np.concatenate(users)})
    rows[Columns.Weight], rows[Columns.Datetime] = 1.0, pd.to_datetime(np.arange(len(rows)), unit="s")
    data = Dataset.construct(rows)
    model = SASRecModel(
        n_blocks=NUM_LAYERS, n_heads=NUM_HEADS, n_factors=WIDTH, dropout_rate=DROPOUT, session_max_len=MAX_LENGTH,
        loss="BCE", n_negatives=1, recommend_batch_size=USERS_AT_ONCE, recommend_torch_device="cpu",
    )  # fmt: skip
    model._build_model_from_dataset(data)
    network = model.lightning_model
    network._xavier_normal_init()
    chosen = _chosen(users, work)
    if work == "step":
        sequences = [sequence[:-1][-MAX_LENGTH - 1 :] for sequence in chosen]  # without the target of validation
        batch = model.data_preparator._collate_fn_train([(list(items), [1.0] * len(items), {}) for items in sequences])

        def loss_of() -> torch.Tensor:  # as in `training_step`, which also calls the Trainer's `log`
            return network.loss_calculator(network.get_batch_logits(batch), batch["y"], batch["yw"])

        return _training(network.torch_model, loss_of)
    model.is_fitted = True
    return partial(model.recommend, np.arange(len(chosen)), data, k=BEST, filter_viewed=True)


# ----------------------------------------------------------------------------------------------------------------- panel


def panel(side: str, folder: Path) -> Work:
    """Work that computes the basic columns of the panel from a Parquet file of reviews, and writes a Parquet file."""
    from benchmarks.data import basic_panel

    source, out = folder / "reviews.parquet", folder / f"{side}.parquet"
    if side == "ours":
        return partial(basic_panel, str(source), str(out))
    return partial(pandas_panel, source, out)


def pandas_panel(source: Path, out: Path) -> None:
    """The same columns, by `groupby` and by cumulative sums at the edges of the windows, which `merge_asof` finds."""
    import pandas as pd

    reviews = pd.read_parquet(source, columns=["parent_asin", "timestamp", "rating", "helpful_vote", "verified_purchase"])
    reviews["week"] = (reviews["timestamp"] - 4 * 24 * 3600 * 1000) // (7 * 24 * 3600 * 1000)
    weeks = reviews.groupby(["parent_asin", "week"], as_index=False).agg(
        reviews=("rating", "size"), helpful_votes=("helpful_vote", "sum"), verified=("verified_purchase", "sum"),
        rating_mean=("rating", "mean"),
    )  # fmt: skip
    weeks["total"] = weeks.groupby("parent_asin")["reviews"].cumsum()
    by_week = weeks[["parent_asin", "week", "total"]].sort_values("week")

    def total_after(shift: int) -> pd.Series:
        edges = weeks[["parent_asin", "week"]].assign(week=weeks["week"] + shift, row=weeks.index).sort_values("week")
        totals = pd.merge_asof(edges, by_week, on="week", by="parent_asin").set_index("row")["total"]
        return totals.fillna(0).astype(int).reindex(weeks.index)

    weeks["previous_4w"] = weeks["total"] - total_after(-4)
    weeks["next_12w"] = total_after(12) - weeks["total"]
    weeks["growth"] = (weeks["next_12w"] / (weeks["previous_4w"] + 1)).astype("float32")
    rank = weeks.groupby("week")["growth"].rank(method="max", ascending=False)
    num_hot = (0.05 * weeks.groupby("week")["growth"].transform("size") + 1e-9).astype(int)
    weeks["hot"] = rank <= num_hot
    weeks.drop(columns="total").rename(columns={"parent_asin": "product_id"}).to_parquet(out)


WORKS: dict[str, Callable[[str, Path], Work]] = {"loop": loop, "loader": loader, "next_item": next_item, "panel": panel}
"""For each area of comparisons, the function that returns the work of a side, given the side's name and a folder of data."""
