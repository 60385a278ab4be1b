"""State that a recipe carries from one global batch to the next, such as the hidden state of a recurrent model.

The state belongs to a position in the global batch. The example at position k of a step starts from the state that an
example at position k returned last, whatever their ranks and micro-batches: in the previous step, unless that was skipped or
had a shorter batch. So the state, like the gradient, does not depend on how the batch is split, and a run can be resumed on
another number of ranks.
"""

from typing import Any

import torch

from ensemble.errors import UserError
from ensemble.neural.loader import BatchPlan, MicroBatch

State = dict[str, torch.Tensor] | None
"""Named tensors whose first dimension is the batch; None before the first batch, and for recipes without state."""


class Carry:
    """The states of this rank's micro-batches, by the position in the global batch at which each one starts."""

    def __init__(self) -> None:
        self._states: dict[int, dict[str, torch.Tensor]] = {}
        self._pending: dict[int, dict[str, torch.Tensor]] = {}

    def take(self, micro: MicroBatch) -> State:
        """The state for the rows of a micro-batch: in the short last batch of an epoch, these are fewer than stored."""
        state = self._states.get(micro.begin)
        return state and {name: tensor[: len(micro.rows)] for name, tensor in state.items()}

    def put(self, micro: MicroBatch, state: State) -> None:
        """Store the state that a micro-batch returned; `take` returns it after `commit`."""
        if state is not None:
            _check(state, len(micro.rows))
        if not state and (self._states or self._pending):
            raise UserError(
                "`step` of the recipe returns no state, but it returned one before: return a state for every batch, such as "
                "zeros to start anew"
            )
        # A short batch before any full one is not stored: the remaining positions would have no state
        if state and not micro.idle and (self._states or not micro.is_short_batch):
            remaining = {name: tensor[len(micro.rows) :] for name, tensor in self._states.get(micro.begin, {}).items()}
            self._pending[micro.begin] = {
                name: torch.cat([tensor.detach(), remaining[name]]) if len(remaining.get(name, ())) else tensor.detach()
                for name, tensor in state.items()
            }

    def commit(self) -> None:
        """Let the next step start from the states that this step stored; called after its update."""
        self._states |= self._pending
        self._pending = {}

    def discard(self) -> None:
        """Drop the states of a step whose update was skipped."""
        self._pending = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The states for a checkpoint, with keys `<position>.<name>`."""
        return {f"{begin}.{name}": tensor for begin, state in self._states.items() for name, tensor in state.items()}

    def restore(self, tensors: dict[str, torch.Tensor], plan: BatchPlan, device: torch.device) -> None:
        """Split the states of all ranks, with keys as in `tensors()`, into this rank's micro-batches of `plan`."""
        pieces: dict[str, dict[int, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            position, name = key.split(".", 1)
            pieces.setdefault(name, {})[int(position)] = tensor
        self._states, self._pending = {}, {}
        for name, by_begin in pieces.items():
            whole = torch.cat([by_begin[begin] for begin in sorted(by_begin)])
            for begin in plan.begins(len(whole)):
                if begin < len(whole):
                    self._states.setdefault(begin, {})[name] = whole[begin : begin + plan.micro_batch_size].to(device)


def _check(state: Any, num_rows: int) -> None:
    """Raise `UserError` unless the state is a dict of tensors whose first dimension is the batch."""
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise UserError(f"`step` of the recipe returns a state of the type {type(state).__name__}: return a dict of tensors")
    for name, tensor in state.items():
        if tuple(tensor.shape[:1]) != (num_rows,):
            raise UserError(
                f"the state '{name}' that `step` of the recipe returns has the shape {tuple(tensor.shape)}: its first "
                f"dimension must be the batch, here of {num_rows} rows"
            )
