"""Gradients: their norm with a loss scale, and their comparison between ranks, with a second rank that is simulated."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import DistributedType

from ensemble.errors import UserError
from ensemble.neural.training_state import TrainingState


@pytest.mark.parametrize("overflow", [(torch.inf, torch.inf), (torch.inf, 1.0), (1.0, torch.inf), (torch.nan, 1.0)])
@pytest.mark.parametrize("num_equal", [0, 1])
def test_gradients_are_compared_between_ranks_in_the_first_step_without_an_overflow(
    num_equal: int, overflow: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16 the first steps overflow: afterwards each process could train a model of its own, without a message."""
    model = torch.nn.Linear(1, 1, bias=False)
    ranks: Any = SimpleNamespace(
        num_processes=2, scaler=None, distributed_type=DistributedType.MULTI_CPU, unwrap_model=lambda model, **_: model
    )
    state = TrainingState(model, [torch.optim.SGD(model.parameters())], 0.0, ranks, 1.0)
    for own, other in [overflow, overflow, *[(3.0, 3.0)] * num_equal]:
        _step(state, own, other, monkeypatch)
    if num_equal:
        _step(state, 3.0, 7.0, monkeypatch)  # only once, since each comparison takes time
    else:
        with pytest.raises(UserError, match="the gradients differ between the processes after they were summed"):
            _step(state, 3.0, 7.0, monkeypatch)


def test_the_norm_is_that_of_the_parameters_that_optimizers_update() -> None:
    """In fp16 the scaler leaves other gradients times its scale: the norm would be 1024 times theirs, and clip each step."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    state = _in_fp16(model, [torch.optim.SGD(model[1].parameters())])
    x = torch.randn(4, 3)
    state.backward(model(x).sum())
    expected = torch.cat([model[0](x).sum(0), torch.tensor([4.0])]).norm()
    assert state.gradient_norm().item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_optimizer_without_gradients_in_a_step_is_left_out_in_fp16() -> None:
    """A part of the model that some batches do not use would end the training in an assertion of the scaler."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    state = _in_fp16(model, [torch.optim.SGD(part.parameters()) for part in model])
    used, unused = model[0].bias.clone(), model[1].bias.clone()
    state.backward(model[0](torch.ones(1, 3)).sum())
    state.gradient_norm()
    state.update(1.0, 1.0)
    state.end_step()
    assert not torch.equal(model[0].bias, used)
    assert torch.equal(model[1].bias, unused)


def _in_fp16(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> TrainingState:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rank: Any = SimpleNamespace(num_processes=1, scaler=scaler, distributed_type=DistributedType.NO)
    return TrainingState(model, optimizers, 0.0, rank, 1.0)


def _step(state: TrainingState, own: float, other: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the norm of a gradient of `own` on this rank and of `other` on the other one."""
    reduced = torch.tensor([[other], [-other]], dtype=torch.float64)
    # As Gloo's maximum, which may be the number if the other value is NaN
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda ours, _: ours.copy_(torch.fmax(ours, reduced)))
    state.model.weight.grad = torch.tensor([[own]])
    state.gradient_norm()
