"""Carried state belongs to positions in the global batch, however the batch is divided."""

import numpy as np
import pytest
import torch

from ensemble.errors import UserError
from ensemble.neural.carry import Carry
from ensemble.neural.loader import BatchPlan


def run(num_ranks: int, micro_batch_size: int, first: int, last: int, carries: list[Carry] | None = None) -> list[Carry]:
    """The state of each position is the sum of its row numbers; 10 rows in batches of 4, so the last batch is short."""
    carries = carries or [Carry() for _ in range(num_ranks)]
    for rank, carry in enumerate(carries):
        for micro in BatchPlan(10, 4, micro_batch_size, num_ranks, rank, 0).micro_batches(first, last):
            rows = torch.from_numpy(np.asarray(micro.rows, np.float64))
            before = carry.take(micro)
            assert before is None or len(before["sum"]) == len(rows)
            carry.put(micro, {"sum": rows if before is None else before["sum"] + rows})
            if micro.is_last_of_step:
                carry.commit()
    return carries


def merged_tensors(carries: list[Carry]) -> dict[str, torch.Tensor]:
    return {name: tensor for carry in carries for name, tensor in carry.tensors().items()}


def states(carries: list[Carry]) -> list[float]:
    pieces = {int(key.split(".")[0]): tensor for key, tensor in merged_tensors(carries).items()}
    return torch.cat([pieces[begin] for begin in sorted(pieces)]).tolist()


@pytest.mark.parametrize(("num_ranks", "micro_batch_size"), [(1, 4), (1, 1), (2, 2), (2, 1), (4, 1)])
def test_the_state_does_not_depend_on_how_the_batch_is_divided(num_ranks: int, micro_batch_size: int) -> None:
    """With accumulation the state of a micro-batch would be used by the next one, and results would depend on the ranks."""
    assert states(run(num_ranks, micro_batch_size, 0, 7)) == states(run(1, 2, 0, 7))


@pytest.mark.parametrize(("num_ranks", "micro_batch_size"), [(1, 4), (2, 1), (4, 1)])
def test_a_checkpoint_is_restored_with_other_ranks_and_micro_batches(num_ranks: int, micro_batch_size: int) -> None:
    """A run that is resumed on another number of ranks would lose its state, or give it to other positions."""
    saved = merged_tensors(run(2, 2, 0, 4))
    carries = [Carry() for _ in range(num_ranks)]
    for rank, carry in enumerate(carries):
        carry.restore(saved, BatchPlan(10, 4, micro_batch_size, num_ranks, rank, 0), torch.device("cpu"))
    assert states(run(num_ranks, micro_batch_size, 4, 9, carries)) == states(run(1, 4, 0, 9))


def test_a_skipped_step_does_not_change_the_state() -> None:
    """The state of a skipped batch, which may be NaN, would be used in all following steps."""
    (carry,) = run(1, 4, 0, 1)
    before = states([carry])
    (micro,) = BatchPlan(10, 4, 4, 1, 0, 0).micro_batches(1, 2)
    carry.put(micro, {"sum": torch.full((4,), torch.nan)})
    carry.discard()
    carry.commit()
    assert states([carry]) == before


def test_a_short_first_batch_leaves_no_state() -> None:
    """fp16 skips the first steps: the full batch after a short one would get a state with too few rows."""
    carry = Carry()
    *_, tail, whole = BatchPlan(10, 4, 4, 1, 0, 0).micro_batches(0, 4)
    carry.put(tail, {"sum": torch.zeros(len(tail.rows))})
    carry.commit()
    assert carry.take(whole) is None


@pytest.mark.parametrize("empty", [None, {}])
@pytest.mark.parametrize("num_steps", [0, 1])
def test_no_state_after_a_state_is_refused(empty: dict[str, torch.Tensor] | None, num_steps: int) -> None:
    """The next step would get an older state, or a resumed run would give a state to other positions."""
    first, second = BatchPlan(10, 4, 2, 1, 0, 0).micro_batches(0, 1)
    carry = Carry()
    carry.put(first, {"sum": torch.zeros(2)})
    if num_steps:
        carry.commit()
    with pytest.raises(UserError, match="returns no state, but it returned one before: return a state for every batch"):
        carry.put(first if num_steps else second, empty)


@pytest.mark.parametrize("state", [torch.zeros(1, 4), torch.tensor(0.0)])
def test_a_state_whose_first_dimension_is_not_the_batch_is_refused(state: torch.Tensor) -> None:
    """As that of an LSTM, (layers, batch, width): rows would get the states of others after a resume, without a message."""
    micro = next(BatchPlan(10, 4, 4, 1, 0, 0).micro_batches(0, 1))
    with pytest.raises(UserError, match=r"the state 'hidden' .* has the shape .*: its first dimension must be the batch"):
        Carry().put(micro, {"hidden": state})
