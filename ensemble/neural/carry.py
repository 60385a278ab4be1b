"""What a recipe carries from batch to batch, one slot for each place in the global batch.

The row at place k of a step goes on from the state that the row at place k of the step before left behind, whatever rank
and micro-batch it falls to. So the state, like the gradient, does not depend on how the batch was cut, and a run can be
resumed on another number of ranks.
"""

import torch

from ensemble.neural.loader import BatchPlan, MicroBatch

State = dict[str, torch.Tensor] | None
"""Named tensors whose first dimension is the batch; None before the first batch and for recipes that carry nothing."""


class Carry:
    """This rank's slots, by the place in the global batch where each of its micro-batches begins."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, torch.Tensor]] = {}
        self._next: dict[int, dict[str, torch.Tensor]] = {}

    def take(self, micro: MicroBatch) -> State:
        """The state for a micro-batch; of an epoch's ragged tail, that of the places which have a row."""
        slot = self._slots.get(micro.begin)
        return slot and {name: tensor[: len(micro.rows)] for name, tensor in slot.items()}

    def put(self, micro: MicroBatch, state: State) -> None:
        """What the micro-batch left behind; it counts once the step is committed."""
        # Should the first step that is committed be a tail, it is not kept: other places would have nothing to go on from
        if state and not micro.idle and (self._slots or not micro.is_tail):
            rest = {name: tensor[len(micro.rows) :] for name, tensor in self._slots.get(micro.begin, {}).items()}
            self._next[micro.begin] = {
                name: torch.cat([tensor.detach(), rest[name]]) if len(rest.get(name, ())) else tensor.detach()
                for name, tensor in state.items()
            }

    def commit(self) -> None:
        self._slots |= self._next
        self._next = {}

    def discard(self) -> None:
        """Forget what a step that was not taken left behind."""
        self._next = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """For the checkpoint: named by place and tensor."""
        return {f"{begin}.{name}": tensor for begin, slot in self._slots.items() for name, tensor in slot.items()}

    def restore(self, tensors: dict[str, torch.Tensor], plan: BatchPlan, device: torch.device) -> None:
        """Cut the slots of all ranks together, as `tensors` named them, anew for this rank."""
        pieces: dict[str, dict[int, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            place, name = key.split(".", 1)
            pieces.setdefault(name, {})[int(place)] = tensor
        self._slots, self._next = {}, {}
        for name, by_begin in pieces.items():
            whole = torch.cat([by_begin[begin] for begin in sorted(by_begin)])
            for begin in plan.begins(len(whole)):
                if begin < len(whole):
                    self._slots.setdefault(begin, {})[name] = whole[begin : begin + plan.micro_batch_size].to(device)
