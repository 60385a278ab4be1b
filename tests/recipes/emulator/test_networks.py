"""Networks: values in physical units, and Jacobians by hand-written propagation against independent ways to compute them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.func import functional_call, jacrev, vmap

from ensemble.recipes.emulator import networks
from ensemble.recipes.emulator.networks import ACTIVATIONS, BilinearConvolution, ConservedSum, Emulator, Mlp

BATCH = 5


def statistics(num_inputs: int, num_outputs: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    values = {"input": num_inputs, "output": num_outputs}
    return {
        **{f"{name}_mean": torch.randn(size, generator=draw) for name, size in values.items()},
        **{f"{name}_std": torch.rand(size, generator=draw) + 0.5 for name, size in values.items()},
    }


def make_network(name: str, num_inputs: int, num_outputs: int, **settings: object) -> Emulator:
    torch.manual_seed(0)
    result = networks.build(name, num_inputs, num_outputs, statistics=statistics(num_inputs, num_outputs), **settings)  # type: ignore[arg-type]
    return result.double()


CASES: dict[str, Callable[[], Emulator]] = {
    **{f"one output, {name}": partial(make_network, "mlp", 7, 1, widths=(16,), activation=name) for name in ACTIVATIONS},
    **{f"reverse, {name}": partial(make_network, "mlp", 6, 3, widths=(8, 9), activation=name) for name in ACTIVATIONS},
    **{f"forward, {name}": partial(make_network, "mlp", 3, 6, widths=(8, 9), activation=name) for name in ACTIVATIONS},
    "sigmoid output": partial(make_network, "mlp", 7, 2, widths=(16,), activation="relu", output="sigmoid"),
    "no hidden layer": partial(make_network, "mlp", 4, 2, widths=()),
    "no hidden layer, forward": partial(make_network, "mlp", 2, 4, widths=()),
    "residual": partial(make_network, "mlp", 6, 6, widths=(12,), residual=True),
    "bilinear": partial(make_network, "bilinear", 9, 9, widths=(4, 3)),
    "conserved": partial(make_network, "mlp", 6, 6, widths=(12,), residual=True, conserve=(1.0, 2.0, 0.5, 1.0, 3.0, 0.0)),
    "conserved ring": partial(make_network, "bilinear", 9, 9, widths=(4,), conserve=(1.0,) * 9),
    "other sums": lambda: ConservedSum(make_network("mlp", 5, 3, widths=(7,)), (1, 2, 3, 4, 5), (1, 0, -2)).double(),
}


@pytest.fixture(params=CASES)
def network(request: pytest.FixtureRequest) -> Emulator:
    return CASES[request.param]()


def inputs(network: Emulator, seed: int = 2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, network.num_inputs, generator=draw, dtype=torch.float64)


def test_jacobian_against_jacrev(network: Emulator) -> None:
    """The hand-written propagation would lack a factor or a transpose."""
    x = inputs(network)
    expected = vmap(jacrev(lambda row: network(row.unsqueeze(0)).squeeze(0)))(x)
    assert expected.shape == (BATCH, network.num_outputs, network.num_inputs)
    torch.testing.assert_close(network.jacobian(x), expected, rtol=1e-12, atol=1e-13)


def test_jacobian_in_blocks_of_rows(network: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an incomplete last block would be lost, or blocks would be in another order."""
    x = inputs(network)
    whole = network.jacobian(x)
    monkeypatch.setattr(networks, "BLOCK_ROWS", 2)
    torch.testing.assert_close(network.jacobian(x), whole, rtol=1e-13, atol=1e-13)


def test_tangent_and_adjoint_against_finite_differences(network: Emulator) -> None:
    """An error that jacrev shares, such as a missing unit, would not be found."""
    x, dx = inputs(network), inputs(network, 3)
    difference = (network(x + 1e-6 * dx) - network(x - 1e-6 * dx)) / 2e-6
    torch.testing.assert_close(network.tangent(x, dx), difference, rtol=1e-6, atol=1e-8)
    value, change = network(x, dx)
    torch.testing.assert_close(value, network(x), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(change, network.tangent(x, dx), rtol=0, atol=0)


def test_adjoint_dot_product(network: Emulator) -> None:
    """A gradient by the adjoint would not be that of the cost function."""
    x, dx = inputs(network), inputs(network, 3)
    dy = torch.randn(BATCH, network.num_outputs, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    forward, backward = (network.tangent(x, dx) * dy).sum(), (dx * network.adjoint(x, dy)).sum()
    assert abs(float(forward.detach() - backward.detach())) / abs(float(forward.detach())) <= 1e-12


def test_the_weights_have_a_gradient_through_the_jacobian(network: Emulator) -> None:
    """The Jacobian term of the loss would have a wrong gradient; here it is compared with autograd's."""
    x, parameters = inputs(network), dict(network.named_parameters())

    def loss(jacobian: torch.Tensor) -> torch.Tensor:
        return (jacobian * torch.linspace(1, 2, jacobian.numel(), dtype=x.dtype).reshape(jacobian.shape)).square().sum()

    def by_jacrev(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss(vmap(jacrev(lambda row: functional_call(network, values, (row.unsqueeze(0),)).squeeze(0)))(x))

    result = torch.autograd.grad(loss(network.jacobian(x)), list(parameters.values()), allow_unused=True)
    expected = torch.autograd.grad(by_jacrev(parameters), list(parameters.values()), allow_unused=True)
    assert any(gradient is not None and bool(gradient.any()) for gradient in result)
    for ours, reference in zip(result, expected, strict=True):
        ours, reference = (torch.zeros(()) if gradient is None else gradient for gradient in (ours, reference))
        torch.testing.assert_close(*torch.broadcast_tensors(ours.double(), reference.double()), rtol=1e-10, atol=1e-12)


def test_masked_rows_have_a_jacobian_of_zero(network: Emulator) -> None:
    """Missing values on land would reach other rows, or the weights, as NaN."""
    x, mask = inputs(network), torch.tensor([True, False, True, False, True])
    expected = network.jacobian(x)
    x[~mask] = torch.nan
    result = network.masked_jacobian(x, mask)
    assert not result[~mask].any()
    torch.testing.assert_close(result[mask], expected[mask], rtol=1e-13, atol=1e-13)
    result.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_conserved_sum_is_exact_to_rounding(dtype: torch.dtype) -> None:
    """Mass would be lost in every cycle of an assimilation."""
    weights = torch.rand(40, generator=torch.Generator().manual_seed(5)) + 0.1
    network = make_network("mlp", 40, 40, widths=(16,), residual=True, conserve=weights.tolist()).to(dtype)
    x = 10 * torch.randn(100, 40, generator=torch.Generator().manual_seed(6)).to(dtype)
    y = network(x).double()
    before, after = (x.double() * network.output_weights.double()).sum(1), (y * network.output_weights.double()).sum(1)
    scale = (y.abs() * network.output_weights.double()).sum(1)
    assert float(((after - before).abs() / scale).detach().max()) <= 4 * torch.finfo(dtype).eps
    loose = network.inner(x).double()
    assert float((((loose - x.double()) * network.output_weights.double()).sum(1).abs() / scale).detach().max()) > 1e-3


def test_units_are_physical() -> None:
    """Weights trained on normalised values would give other outputs for the same state in other units."""
    network = make_network("mlp", 3, 2, widths=(5,))
    x = inputs(network)
    y, jacobian = network(x), network.jacobian(x)
    network.input_mean.mul_(1000), network.input_std.mul_(1000)  # kilo- to plain units
    torch.testing.assert_close(network(1000 * x), y)
    torch.testing.assert_close(1000 * network.jacobian(1000 * x), jacobian)


def test_a_sigmoid_bounds_physical_outputs() -> None:
    """An ice concentration would leave 0 to 1."""
    network = make_network("mlp", 7, 1, widths=(16,), activation="relu", output="sigmoid")
    y = network(100 * inputs(network))
    assert bool(((y >= 0) & (y <= 1)).all())


def test_the_ring_has_no_first_point() -> None:
    """The convolution would treat the ends of the array as boundaries, although the points form a ring."""
    network = BilinearConvolution(12, (4, 4)).double()
    x = inputs(network)
    torch.testing.assert_close(network(x.roll(5, dims=1)), network(x).roll(5, dims=1))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Mlp(3, 2, (4,), "swish"), "activation=swish is not one of gelu"),
        (lambda: Mlp(3, 2, (4,), output="softmax"), "output=softmax is not one of linear, sigmoid"),
        (lambda: Mlp(3, 2, (4,), residual=True), "as many outputs as inputs, not 2 and 3"),
        (lambda: Mlp(3, 3, (4,), output="sigmoid", residual=True), "leave one of the two out"),
        (lambda: make_network("cnn", 3, 2, widths=(4,)), "network=cnn is not one of mlp, bilinear"),
        (lambda: make_network("bilinear", 3, 2, widths=(4,)), "as many outputs as inputs, not 2 and 3"),
        (
            lambda: make_network("mlp", 3, 3, widths=(4,), conserve=(1.0,)),
            "needs 3 weights of inputs and 3 of outputs, not 1 and 1",
        ),
        (lambda: make_network("mlp", 3, 3, widths=(4,), conserve=(0.0,) * 3), "not 0"),
        (lambda: Mlp(3, 2, (4,)).set_statistics(statistics(2, 2)), r"input_mean has the shape \(2,\), not \(3,\)"),
        (lambda: Mlp(1, 1, ()).set_statistics({**statistics(1, 1), "output_std": [0.0]}), "output_std must be positive"),
    ],
)
def test_wrong_shapes_and_names_are_refused(make: Callable[[], object], match: str) -> None:
    """A wrong setting would become an error in the middle of training, or none."""
    with pytest.raises(ValueError, match=match):
        make()
