"""State that is carried from batch to batch belongs to places in the global batch, however that is cut."""

import numpy as np
import pytest
import torch

from ensemble.neural.carry import Carry
from ensemble.neural.loader import BatchPlan


def run(num_ranks: int, micro_batch_size: int, first: int, last: int, carries: list[Carry] | None = None) -> list[Carry]:
    """Each place remembers the sum of the row numbers that it has seen; 10 rows in batches of 4: tails are ragged."""
    carries = carries or [Carry() for _ in range(num_ranks)]
    for rank, carry in enumerate(carries):
        for micro in BatchPlan.make(10, 4, micro_batch_size, num_ranks, rank, 0).micro_batches(first, last):
            rows = torch.from_numpy(np.asarray(micro.rows, np.float64))
            before = carry.take(micro)
            assert before is None or len(before["seen"]) == len(rows)
            carry.put(micro, {"seen": rows if before is None else before["seen"] + rows})
            if micro.is_last_of_step:
                carry.commit()
    return carries


def of_all(carries: list[Carry]) -> dict[str, torch.Tensor]:
    return {name: tensor for carry in carries for name, tensor in carry.tensors().items()}


def places(carries: list[Carry]) -> list[float]:
    pieces = {int(key.split(".")[0]): tensor for key, tensor in of_all(carries).items()}
    return torch.cat([pieces[begin] for begin in sorted(pieces)]).tolist()


@pytest.mark.parametrize(("num_ranks", "micro_batch_size"), [(1, 4), (1, 1), (2, 2), (2, 1), (4, 1)])
def test_a_place_remembers_the_same_however_the_batch_is_cut(num_ranks: int, micro_batch_size: int) -> None:
    """With accumulation the state of one micro-batch would flow into the next, and more ranks would learn something else."""
    assert places(run(num_ranks, micro_batch_size, 0, 7)) == places(run(1, 2, 0, 7))


@pytest.mark.parametrize(("num_ranks", "micro_batch_size"), [(1, 4), (2, 1), (4, 1)])
def test_a_checkpoint_goes_on_under_another_cut(num_ranks: int, micro_batch_size: int) -> None:
    """A run that is resumed on another number of ranks would forget its state, or give it to other places."""
    saved = of_all(run(2, 2, 0, 4))
    carries = [Carry() for _ in range(num_ranks)]
    for rank, carry in enumerate(carries):
        carry.restore(saved, BatchPlan.make(10, 4, micro_batch_size, num_ranks, rank, 0), torch.device("cpu"))
    assert places(run(num_ranks, micro_batch_size, 4, 9, carries)) == places(run(1, 4, 0, 9))


def test_a_step_that_is_not_taken_leaves_nothing_behind() -> None:
    """The state of a batch that was skipped, which may be NaN, would poison all that follow."""
    (carry,) = run(1, 4, 0, 1)
    before = places([carry])
    (micro,) = BatchPlan.make(10, 4, 4, 1, 0, 0).micro_batches(1, 2)
    carry.put(micro, {"seen": torch.full((4,), torch.nan)})
    carry.discard()
    carry.commit()
    assert places([carry]) == before


def test_a_first_step_that_is_a_tail_is_not_kept() -> None:
    """fp16 skips its first steps: the whole batch after the tail would get a state of too few rows."""
    carry = Carry()
    *_, tail, whole = BatchPlan.make(10, 4, 4, 1, 0, 0).micro_batches(0, 4)
    carry.put(tail, {"seen": torch.zeros(len(tail.rows))})
    carry.commit()
    assert carry.take(whole) is None
