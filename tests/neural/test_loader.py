"""The cutting of global batches: what every rank sees, and what the DataLoader brings."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.errors import UserError
from ensemble.neural.loader import Batch, BatchPlan, MicroBatch, make_loader

SIZES = {
    "num_rows": st.integers(1, 150),
    "micro_batch_size": st.integers(1, 9),
    "num_ranks": st.integers(1, 5),
    "accumulation": st.integers(1, 4),
    "seed": st.integers(0, 3),
}


def plans(num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, seed: int) -> list[BatchPlan]:
    """The plan of each rank."""
    batch_size = micro_batch_size * num_ranks * accumulation
    return [BatchPlan.make(num_rows, batch_size, micro_batch_size, num_ranks, rank, seed) for rank in range(num_ranks)]


def by_step(plan: BatchPlan, first_step: int, last_step: int) -> list[list[MicroBatch]]:
    steps: list[list[MicroBatch]] = [[] for _ in range(first_step, last_step)]
    for micro in plan.micro_batches(first_step, last_step):
        steps[micro.step - first_step].append(micro)
    return steps


def counted(micro_batches: Iterator[MicroBatch] | list[MicroBatch]) -> np.ndarray:
    """The rows that count for something."""
    return np.concatenate([np.empty(0, np.int64), *(micro.rows for micro in micro_batches if not micro.idle)])


@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_every_row_is_seen_once_an_epoch(
    num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, seed: int
) -> None:
    """A row would be learned twice, or never, on some number of ranks or with a ragged tail."""
    ranks = plans(num_rows, micro_batch_size, num_ranks, accumulation, seed)
    for epoch in range(2):
        steps = epoch * ranks[0].steps_per_epoch, (epoch + 1) * ranks[0].steps_per_epoch
        seen = np.concatenate([counted(plan.micro_batches(*steps)) for plan in ranks])
        assert np.array_equal(np.sort(seen), np.arange(num_rows))


@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_a_global_batch_does_not_depend_on_how_it_is_cut(
    num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, seed: int
) -> None:
    """The same settings would learn from other batches on other hardware, and a resumed run on others than before."""
    whole = BatchPlan.make(num_rows, micro_batch_size * num_ranks * accumulation, 0, 1, 0, seed)
    num_steps = 2 * whole.steps_per_epoch
    ranks = [by_step(plan, 0, num_steps) for plan in plans(num_rows, micro_batch_size, num_ranks, accumulation, seed)]
    for step, (uncut,) in enumerate(by_step(whole, 0, num_steps)):
        union = np.concatenate([counted(rank[step]) for rank in ranks])
        assert np.array_equal(np.sort(union), np.sort(uncut.rows))
        assert len(uncut.rows) <= whole.batch_size


@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_ranks_go_in_step_and_each_has_a_row(
    num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, seed: int
) -> None:
    """A rank without rows would leave the others waiting in the all-reduce for ever."""
    ranks = [by_step(plan, 0, 2) for plan in plans(num_rows, micro_batch_size, num_ranks, accumulation, seed)]
    for step in range(2):
        assert len({len(rank[step]) for rank in ranks}) == 1
        for rank in ranks:
            assert [micro.is_last_of_step for micro in rank[step]] == [False] * (len(rank[step]) - 1) + [True]
            assert all(1 <= len(micro.rows) <= micro_batch_size for micro in rank[step])
            assert len(rank[step]) <= accumulation


@settings(max_examples=60, deadline=None)
@given(first_step=st.integers(0, 9), **SIZES)
def test_any_step_is_found_again_without_the_ones_before(
    first_step: int, num_rows: int, micro_batch_size: int, num_ranks: int, accumulation: int, seed: int
) -> None:
    """A resumed run would go on with other rows than the run that was not interrupted."""
    plan = plans(num_rows, micro_batch_size, num_ranks, accumulation, seed)[-1]
    for again, before in zip(by_step(plan, first_step, 10), by_step(plan, 0, 10)[first_step:], strict=True):
        assert [micro.rows.tolist() for micro in again] == [micro.rows.tolist() for micro in before]
        assert [micro.epoch for micro in again] == [micro.epoch for micro in before]


def test_the_order_changes_with_epoch_and_seed() -> None:
    """Every epoch would go through the rows in one order, or every seed train the same run."""
    orders = [
        tuple(counted(BatchPlan.make(100, 10, 0, 1, 0, seed).micro_batches(10 * epoch, 10 * epoch + 10)))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    assert tuple(range(100)) not in orders


@settings(max_examples=300, deadline=None)
@given(batch_size=st.integers(-3, 200), micro_batch_size=st.integers(-3, 60), num_ranks=st.integers(1, 9))
def test_sizes_that_do_not_divide_are_refused_with_the_nearest_that_do(
    batch_size: int, micro_batch_size: int, num_ranks: int
) -> None:
    """A batch would silently be smaller than asked for, or the advice in the message would fail in its turn."""
    if batch_size < 1 or batch_size % num_ranks:
        with pytest.raises(UserError, match=rf"batch_size={batch_size} .*: the nearest that can is \d+$") as raised:
            BatchPlan.make(500, batch_size, micro_batch_size, num_ranks, 0, 0)
        works = list(range(num_ranks, 300, num_ranks))
        nearest = min(abs(size - batch_size) for size in works)
        batch_size, asked = int(str(raised.value).split()[-1]), batch_size
        assert batch_size in works
        assert abs(batch_size - asked) == nearest
    works = [size for size in range(1, batch_size + 1) if batch_size % (size * num_ranks) == 0]
    if micro_batch_size not in (0, *works):
        with pytest.raises(UserError, match=r"the nearest that does is micro_batch_size=\d+$") as raised:
            BatchPlan.make(500, batch_size, micro_batch_size, num_ranks, 0, 0)
        nearest = min(abs(size - micro_batch_size) for size in works)
        micro_batch_size, asked = int(str(raised.value).split("=")[-1]), micro_batch_size
        assert micro_batch_size in works
        assert abs(micro_batch_size - asked) == nearest
    plan = BatchPlan.make(500, batch_size, micro_batch_size, num_ranks, 0, 0)
    assert plan.micro_batch_size * plan.num_ranks * plan.accumulation == plan.batch_size == batch_size


class Numbers:
    """Rows whose only column is their own number."""

    def __len__(self) -> int:
        return 50

    def gather(self, rows: np.ndarray) -> Batch:
        return {"number": torch.from_numpy(rows)}


def test_the_loader_brings_the_rows_in_order_and_leaves_the_global_generator_alone() -> None:
    """Dropout after --resume would differ from that of the uninterrupted run, as the new loader drew a number first."""
    pieces = [np.arange(begin, min(begin + 7, 50)) for begin in range(0, 50, 7)]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = [batch["number"].numpy() for batch in make_loader(Numbers(), pieces, 0, False)]
    assert [piece.tolist() for piece in found] == [piece.tolist() for piece in pieces]
    assert torch.equal(torch.get_rng_state(), before)
