"""mHC: the properties of the mappings that the paper states, for any weights."""

import pytest
import torch

from ensemble.recipes.next_item.hyper_connections import HyperConnection, expand, reduce, sinkhorn


@pytest.fixture
def shaken() -> HyperConnection:
    """A connection whose mappings depend on the token."""
    torch.manual_seed(0)
    connection = HyperConnection(4, 8, layer_number=1)
    torch.nn.init.normal_(connection.mapping.weight, std=0.2)
    torch.nn.init.normal_(connection.mapping.bias, std=0.5)
    torch.nn.init.constant_(connection.scale, 1.0)
    return connection


def test_the_mappings_are_on_their_manifold(shaken: HyperConnection) -> None:
    """Signals would grow or vanish from layer to layer."""
    pre, post, res = shaken.mappings(torch.randn(3, 5, 4, 8))
    assert ((pre > 0) & (pre < 1)).all()
    assert ((post > 0) & (post < 2)).all()
    assert (res >= 0).all()
    torch.testing.assert_close(res.sum(-2), torch.ones(3, 5, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(res.sum(-1), torch.ones(3, 5, 4), rtol=0, atol=1e-3)
    assert torch.linalg.matrix_norm(res, ord=2).max() < 1.001


@pytest.mark.parametrize(("deviation", "error"), [(0.1, 1e-6), (1.0, 2e-3), (3.0, 0.2)])
def test_sinkhorn_has_the_documented_error(deviation: float, error: float) -> None:
    """The error in the docstring, and the tolerances of tests, would be wrong for larger logits."""
    matrix = sinkhorn(deviation * torch.randn(4096, 4, 4, generator=torch.Generator().manual_seed(0)), 20)
    assert (matrix.sum(-1) - 1).abs().max() < error
    assert (matrix.sum(-2) - 1).abs().max() < 1e-5


def test_the_gradient_of_sinkhorn_is_that_of_its_operations() -> None:
    """The mappings would be trained with a wrong gradient, since it is written by hand."""
    logits = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 3), logits)


def test_products_stay_doubly_stochastic(shaken: HyperConnection) -> None:
    """The streams of a deep model would no longer be averages of each other."""
    product = torch.eye(4)
    for _ in range(12):
        product = shaken.mappings(torch.randn(4, 8))[2] @ product
    torch.testing.assert_close(product.sum(-1), torch.ones(4), rtol=0, atol=1e-2)
    torch.testing.assert_close(product.sum(-2), torch.ones(4), rtol=0, atol=1e-2)


def test_without_a_layer_the_mean_of_the_streams_stays(shaken: HyperConnection) -> None:
    """H_res would change the mean of the streams."""
    streams = torch.randn(6, 4, 8)
    after = shaken(streams, torch.zeros_like)
    torch.testing.assert_close(reduce(after), reduce(streams), rtol=0, atol=1e-5)
    assert not torch.allclose(after, streams)


def test_one_stream_is_a_residual_connection() -> None:
    """With N = 1, H_res would not be 1, which is the only doubly stochastic matrix of this size."""
    connection = HyperConnection(1, 8, layer_number=0)
    torch.nn.init.normal_(connection.mapping.weight)
    assert (connection.mappings(torch.randn(5, 1, 8))[2] == 1).all()


@pytest.mark.parametrize("layer_number", [0, 3])
def test_at_initialisation_it_is_a_residual_connection(layer_number: int) -> None:
    """A model with mHC would start worse than one without."""
    torch.manual_seed(0)
    connection, layer, x = HyperConnection(4, 8, layer_number), torch.nn.Linear(8, 8), torch.randn(7, 8)
    streams = connection(connection(expand(x, 4), layer), layer)
    once = x + layer(x)
    torch.testing.assert_close(reduce(streams), once + layer(once), rtol=1e-5, atol=1e-5)


def test_streams_learn_apart_from_each_other() -> None:
    """Equal streams would stay equal during training: one residual at four times the cost."""
    torch.manual_seed(0)
    connections = torch.nn.ModuleList(HyperConnection(4, 8, number) for number in range(4))
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    optimizer = torch.optim.Adam([*connections.parameters(), *layers.parameters()], lr=0.01)
    x = torch.randn(64, 8)
    for _ in range(30):
        streams = expand(x, 4)
        for connection, layer in zip(connections, layers, strict=True):
            streams = connection(streams, lambda y, layer=layer: torch.tanh(layer(y)))
        loss = (reduce(streams) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in connections.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        optimizer.step()
    assert (streams - streams.mean(-2, keepdim=True)).abs().max() > 0.01


def test_the_mappings_are_in_fp32_under_autocast(shaken: HyperConnection) -> None:
    """In bfloat16 the rows would sum to 1 ± 0.01, and the errors of the layers would add up."""
    streams = torch.randn(3, 4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = shaken.mappings(streams)
    for under, plain in zip(mapped, shaken.mappings(streams), strict=True):
        assert under.dtype == torch.float32
        assert torch.equal(under, plain)


def test_sinkhorn_keeps_a_row_that_lies_far_below_the_others() -> None:
    """A stream would be lost and have no gradient, since exp(-110) is 0 in float32."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [-110.0, -112.0, -111.0], [1.0, 0.0, -1.0]], requires_grad=True)
    matrix = sinkhorn(logits, 50)
    torch.testing.assert_close(matrix.sum(0), torch.ones(3))
    torch.testing.assert_close(matrix.sum(1), torch.ones(3), rtol=1e-3, atol=1e-3)
    shift = torch.tensor([[0.0], [110.0], [0.0]])
    torch.testing.assert_close(matrix, sinkhorn((logits + shift).detach(), 50))
    weights = torch.arange(9.0).view(3, 3).square()
    (gradient,) = torch.autograd.grad((matrix * weights).sum(), logits)
    near = (logits + shift).detach().requires_grad_()
    (expected,) = torch.autograd.grad((sinkhorn(near, 50) * weights).sum(), near)
    torch.testing.assert_close(gradient, expected)
    assert gradient[1].abs().max() > 1e-3
