"""SASRec and TiSASRec: causal, independent of padding, with binned intervals that equal the paper's pairs."""

import math

import pytest
import torch
from torch import Tensor

from ensemble.recipes.next_item.model import Attention, AttentionContext, Dropout, LengthGroup, SequenceModel

VARIANTS = [(0, 0), (0, 4), (33, 0), (33, 4)]


def model_of(num_intervals: int, num_streams: int, dropout: float = 0.0) -> SequenceModel:
    torch.manual_seed(0)
    model = SequenceModel(
        num_items=50, max_length=12, width=16, num_layers=2, num_heads=2, dropout=dropout,
        num_intervals=num_intervals, num_streams=num_streams,
    )  # fmt: skip
    with torch.no_grad():  # zeros would hide what depends on them
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def batch_of(lengths: list[int], longest: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    longest = longest or max(lengths)
    items, times = torch.zeros(2, len(lengths), longest, dtype=torch.int64)
    for row, length in enumerate(lengths):
        items[row, :length] = torch.randint(1, 51, (12,), generator=generator)[:length]
        times[row, :length] = torch.randint(0, 9, (12,), generator=generator)[:length].cumsum(0)
    return {"items.0": items, "times.0": times, "places": torch.flatten(items).nonzero()[:, 0]}


@pytest.mark.parametrize(("num_intervals", "num_streams"), VARIANTS)
def test_the_future_is_not_seen(num_intervals: int, num_streams: int) -> None:
    """A position would use the item that it predicts."""
    model, batch = model_of(num_intervals, num_streams), batch_of([12])
    before = model(batch)
    changed = {name: tensor.clone() for name, tensor in batch.items()}
    changed["items.0"][0, 7:] = batch["items.0"][0, 7:] % 50 + 1
    changed["times.0"][0, 7:] += 5
    after = model(changed)
    assert torch.equal(before[:7], after[:7])
    assert not torch.isclose(before[7:], after[7:]).all(1).any()


@pytest.mark.parametrize(("num_intervals", "num_streams"), VARIANTS)
def test_padding_and_groups_change_nothing(num_intervals: int, num_streams: int) -> None:
    """The prediction of a user would depend on the other users of the batch."""
    model = model_of(num_intervals, num_streams)
    together = model(batch_of([3, 12, 1, 7]))
    wider = model(batch_of([3, 12, 1, 7], longest=12))
    assert torch.equal(together, wider)
    batch = batch_of([3, 12, 1, 7])
    short, long = [0, 2], [1, 3]
    parts = {
        "items.0": batch["items.0"][short, :3], "times.0": batch["times.0"][short, :3],
        "items.1": batch["items.0"][long], "times.1": batch["times.0"][long],
    }  # fmt: skip
    places = torch.cat([torch.tensor([0, 1, 2]), 6 + torch.arange(12), torch.tensor([3]), 18 + torch.arange(7)])
    precision = 1e-6 if num_streams else 1e-12  # mHC's mappings are in float32
    torch.testing.assert_close(model({**parts, "places": places}), together, rtol=precision, atol=precision)


def pairwise(attention: Attention, x_PD: Tensor, context: AttentionContext) -> Tensor:
    """TiSASRec's attention as in the paper, for one group: a key and a value vector for each pair of items."""
    (group,) = context.groups
    assert group.intervals_BLL is not None
    assert group.interval_SD is not None
    assert context.position_PD is not None
    key_BLLD, value_BLLD = (table_SD[group.intervals_BLL] for table_SD in group.interval_SD)
    query_PD, key_PD, value_PD = attention.query_key_value(x_PD).chunk(3, dim=-1)
    key_PD, value_PD = key_PD + context.position_PD[0], value_PD + context.position_PD[1]
    query_BLD, key_BLD, value_BLD = (x_PD.unflatten(0, group.shape) for x_PD in (query_PD, key_PD, value_PD))
    attended = []
    for head in range(attention.num_heads):
        part = slice(head * 8, (head + 1) * 8)
        key_BLLK, value_BLLK = (
            of_items[:, None, :, part] + of_pairs[..., part]
            for of_items, of_pairs in ((key_BLD, key_BLLD), (value_BLD, value_BLLD))
        )
        score_BLL = torch.einsum("blk,blmk->blm", query_BLD[..., part], key_BLLK) / math.sqrt(8) + group.causal_LL
        attended.append(torch.einsum("blm,blmk->blk", score_BLL.softmax(-1), value_BLLK))
    return attention.out(torch.cat(attended, dim=-1).flatten(0, 1))


def test_binned_intervals_are_the_papers_pairs() -> None:
    """The faster computation would have another result."""
    torch.manual_seed(0)
    attention = Attention(16, 2, 0.0).double()
    x = torch.randn(30, 16, dtype=torch.float64, requires_grad=True)
    tables = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    positions = torch.randn(2, 30, 16, dtype=torch.float64, requires_grad=True)
    intervals = torch.randint(0, 9, (3, 10, 10))
    causal = torch.full((10, 10), -torch.inf, dtype=torch.float64).triu(1)
    group = LengthGroup(torch.Size([3, 10]), causal, intervals, (tables[0], tables[1]))
    context = AttentionContext([group], (positions[0], positions[1]))
    inputs = [x, tables, positions, *attention.parameters()]
    attended, expected = attention(x, context), pairwise(attention, x, context)
    torch.testing.assert_close(attended, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(attended)
    for actual_gradient, expected_gradient in zip(
        torch.autograd.grad((attended * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-11, atol=1e-11)


def test_dropout_has_its_rate_and_keeps_the_mean() -> None:
    """Random bytes would be compared wrongly: too many or too few values would be dropped, or the mean would change."""
    torch.manual_seed(0)
    x = torch.ones(1001, 333)
    for share in (0.1, 0.2, 0.5, 0.98):
        dropped = Dropout(share)(x)
        assert (dropped == 0).float().mean() == pytest.approx(share, abs=0.004)
        assert dropped.mean() == pytest.approx(1, abs=0.004 / min(share, 1 - share) ** 0.5)
        assert len(dropped.unique()) == 2
        columns = (dropped == 0).float().mean(0)
        assert columns.std() < 2 * math.sqrt(share * (1 - share) / len(x))  # no column is left out more often
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_dropout_follows_the_seed() -> None:
    """A run that was killed would not resume to the same bits."""
    model, batch = model_of(33, 4, dropout=0.3), batch_of([5, 12])
    torch.manual_seed(7)
    first = model(batch)
    torch.manual_seed(7)
    assert torch.equal(model(batch), first)
    assert not torch.equal(model(batch), first)


def test_mhc_begins_as_the_plain_model() -> None:
    """A comparison of mHC with the plain model would begin at different functions."""
    torch.manual_seed(0)
    settings = {"num_items": 50, "max_length": 12, "width": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
    plain, mhc = SequenceModel(**settings), SequenceModel(**settings, num_streams=4)
    missing = mhc.load_state_dict(plain.state_dict(), strict=False)
    assert all(".connections." in name for name in missing.missing_keys)
    assert not missing.unexpected_keys
    batch = batch_of([5, 12])
    torch.testing.assert_close(mhc(batch), plain(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.0005, 0.001, 0.01, 0.999, 0.9999])
def test_dropout_of_nearly_none_or_all_is_exact(share: float) -> None:
    """A rate of 0.001 would become 0.0039, four times as much; one of 0.999 would cause a division by zero."""
    torch.manual_seed(0)
    dropped = Dropout(share)(torch.ones(2000, 1000))
    rarer = min(share, 1 - share)
    rate = (dropped == 0).double().mean() if share < 0.5 else (dropped != 0).double().mean()
    assert float(rate) == pytest.approx(rarer, abs=5 * math.sqrt(rarer / dropped.numel()))
