"""AdamATan2 and SparseSignSGD, compared with their formulas, computed one number at a time."""

import math
from typing import Any

import pytest
import torch

from ensemble.neural.checkpoint import flatten_optimizer, restore_optimizer
from ensemble.neural.optimizers import AdamATan2, SparseSignSGD


def steps(num_steps: int, factor: float = 1.0, **settings: float) -> torch.Tensor:
    """A vector after some steps of AdamATan2 on random gradients."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50, generator=generator))
    optimizer = AdamATan2([parameter], **settings)
    for _ in range(num_steps):
        parameter.grad = factor * torch.randn(50, generator=generator)
        optimizer.step()
    return parameter.detach()


def test_adam_atan2_follows_its_formula() -> None:
    """The bias correction would be inside atan2, the decay would be coupled, or a moment would lag behind."""
    rate, decay, beta1, beta2 = 0.01, 0.1, 0.9, 0.95
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, generator=generator).double().tolist()
    mean, square = [0.0] * 50, [0.0] * 50
    for step in range(1, 8):
        for number, gradient in enumerate(torch.randn(50, generator=generator).double().tolist()):
            mean[number] = beta1 * mean[number] + (1 - beta1) * gradient
            square[number] = beta2 * square[number] + (1 - beta2) * gradient**2
            moved = math.atan2(mean[number], math.sqrt(square[number]) / math.sqrt(1 - beta2**step)) / (1 - beta1**step)
            weight[number] = weight[number] * (1 - rate * decay) - rate * moved
    torch.testing.assert_close(steps(7, lr=rate, weight_decay=decay), torch.tensor(weight), rtol=1e-5, atol=1e-6)


def test_adam_atan2_does_not_depend_on_the_scale_of_the_loss() -> None:
    """The update would depend on an ε."""
    assert torch.equal(steps(9, lr=0.01), steps(9, factor=2.0, lr=0.01))
    assert torch.equal(steps(9, lr=0.01), steps(9, factor=2.0**-20, lr=0.01))
    assert not torch.equal(steps(9, lr=0.01), steps(9, lr=0.02))


def test_adam_atan2_does_not_change_a_parameter_without_a_gradient() -> None:
    """A frozen weight would decay, or the bias correction of a late first gradient would be that of an old one."""
    late, always = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = AdamATan2([late, always], lr=0.1, weight_decay=0.5)
    always.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(late, torch.ones(3))
    first = always.detach().clone()
    late.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(late, first)


def test_the_moments_are_restored_from_a_checkpoint() -> None:
    """A resumed run would start with moments of 0."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamATan2([parameter], lr=0.1)
    for gradient in (1.0, -2.0, 0.5):
        parameter.grad = torch.full((3,), gradient)
        optimizer.step()
    tensors, description = flatten_optimizer(optimizer, "optimizer0")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    other = torch.nn.Parameter(parameter.detach().clone())
    resumed = AdamATan2([other], lr=0.7)
    restore_optimizer(resumed, "optimizer0", tensors, description)
    for weight, stepped in ((parameter, optimizer), (other, resumed)):
        weight.grad = torch.full((3,), 0.3)
        stepped.step()
    assert torch.equal(parameter, other)


def test_the_moments_of_parameters_of_another_type_are_cast() -> None:
    """The first step after a change from bfloat16 to float32 weights would end in an error."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    other = torch.nn.Parameter(torch.ones(3))
    resumed = torch.optim.AdamW([other], lr=0.1)
    restore_optimizer(resumed, "optimizer0", *flatten_optimizer(optimizer, "optimizer0"))
    other.grad = torch.ones(3)
    resumed.step()
    assert resumed.state[other]["exp_avg"].dtype == torch.float32


class Renaming(torch.optim.SGD):
    """Its state is saved under other names than those under which it is used, by hooks as large optimizers have them."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        states = {number: {"saved": entries["momentum_buffer"].double()} for number, entries in saved["state"].items()}
        return {**saved, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        states = {number: {"momentum_buffer": entries["saved"]} for number, entries in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": states})


def test_an_optimizer_may_save_its_state_under_other_names() -> None:
    """A resumed run would end in a KeyError."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Renaming([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(3)
    optimizer.step()
    resumed = Renaming([parameter], lr=0.1, momentum=0.9)
    restore_optimizer(resumed, "optimizer0", *flatten_optimizer(optimizer, "optimizer0"))
    assert torch.equal(resumed.state[parameter]["momentum_buffer"], torch.ones(3))


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"weight_decay": -0.1}])
def test_adam_atan2_refuses_invalid_values(wrong: dict[str, float]) -> None:
    """A negative rate would increase the loss."""
    with pytest.raises(ValueError, match="must be"):
        AdamATan2([torch.nn.Parameter(torch.ones(1))], **wrong)  # type: ignore[arg-type]


def sparse(ids: list[int], gradients: torch.Tensor, num_rows: int) -> torch.Tensor:
    size = num_rows, gradients.shape[1]
    return torch.sparse_coo_tensor(torch.tensor([ids]), gradients, size, check_invariants=False)


def test_rows_change_by_the_sign_of_their_summed_gradients() -> None:
    """The signs would be summed, unused rows would decay, or a used row whose sum is 0 would not."""
    table = torch.nn.Parameter(torch.full((5, 2), 4.0), requires_grad=False)
    gradients = torch.tensor([[3.0, 1.0], [-1.0, -1.0], [-1.0, -1.0], [2.0, -2.0], [-2.0, 2.0], [0.0, 0.0]])
    table.grad = sparse([1, 1, 1, 3, 3, 4], gradients, 5)
    SparseSignSGD([table], lr=0.5, weight_decay=0.5).step()
    decayed = 4.0 * 0.75
    expected = [[4.0, 4.0], [decayed - 0.5, decayed + 0.5], [4.0, 4.0], [decayed, decayed], [4.0, 4.0]]
    assert table.tolist() == expected


def test_the_order_of_the_uses_does_not_matter() -> None:
    """Sums in float32, and their signs, would depend on the order of the ranks."""
    gradients = torch.tensor([[1e8], [1.0], [-1e8]])
    results = []
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2]):
        table = torch.nn.Parameter(torch.zeros(1, 1), requires_grad=False)
        table.grad = sparse([0, 0, 0], gradients[order], 1)
        SparseSignSGD([table], lr=1.0).step()
        results.append(table.item())
    assert results == [-1.0] * 3


def test_a_large_table_has_no_dense_gradient() -> None:
    """A step would allocate memory for every row of the table: 51 MB here, 5 GB with ten million rows."""
    num_rows, width = 100_000, 128
    table = torch.nn.Parameter(torch.zeros(num_rows, width), requires_grad=False)
    table.grad = sparse([7, 99_999, 7], torch.ones(3, width), num_rows)
    optimizer = SparseSignSGD([table], lr=0.1)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor is not table:
                    largest = max(largest, tensor.numel())
            return result

    with Largest():
        optimizer.step()
    assert 0 < largest <= 10 * width
    touched = table.any(dim=1).nonzero().flatten().tolist()
    assert touched == [7, 99_999]


def test_an_unused_table_does_not_change() -> None:
    """A batch without ids would raise an exception."""
    table = torch.nn.Parameter(torch.ones(3, 2), requires_grad=False)
    SparseSignSGD([table], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(table, torch.ones(3, 2))
