"""Memory that runs out, numbers that are not finite, losses that jump; on several ranks in tests/launch/test_failures.py."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from ensemble.errors import UserError
from ensemble.neural import guards
from ensemble.neural.guards import SpikeWatch
from ensemble.neural.loader import Batch, BatchPlan

torch.set_num_threads(1)
PLAN = BatchPlan.make(num_rows=100, batch_size=16, micro_batch_size=0, num_ranks=1, rank=0, seed=0)


# Memory


class Trial:
    """A model that leaves traces, and a try that runs out of memory above `fits` rows, as `error` says it."""

    def __init__(self, fits: int, error: Exception | None = None):
        self.fits, self.error, self.sizes, self.said = fits, error, [], []
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def once(self, plan: BatchPlan) -> None:
        self.sizes.append(plan.micro_batch_size)
        self.model(torch.ones(2, 3)).sum().backward()
        if plan.micro_batch_size > self.fits:
            raise self.error or torch.OutOfMemoryError("CUDA out of memory")

    def fit(self, accelerator: Accelerator) -> BatchPlan:
        return guards.fit_micro_batch(PLAN, self.once, self.model, [self.optimizer], accelerator, self.said.append)


def test_what_fits_stays_as_it_is(accelerator: Accelerator) -> None:
    """Every run would be cut finer than it must be, or say that it ran out of memory."""
    trial = Trial(fits=16)
    assert trial.fit(accelerator) == PLAN
    assert (trial.sizes, trial.said) == ([16], [])


def test_the_micro_batch_is_halved_until_it_fits(accelerator: Accelerator) -> None:
    """A run that is too large would end, though accumulation keeps its global batches."""
    trial = Trial(fits=5)
    fitted = trial.fit(accelerator)
    assert fitted == dataclasses.replace(PLAN, micro_batch_size=4)
    assert trial.sizes == [16, 8, 4]
    assert trial.said == [
        "out of memory on rank 0: 16 = 16 × 1 ranks × 1 accumulated becomes 16 = 4 × 1 ranks × 4 accumulated"
    ]


def test_a_single_row_that_does_not_fit_is_the_users_to_mend(accelerator: Accelerator) -> None:
    """The search would go on for ever, or end in a traceback."""
    with pytest.raises(UserError, match="micro_batch_size=1"):
        Trial(fits=0).fit(accelerator)


def test_the_search_leaves_no_trace(accelerator: Accelerator) -> None:
    """Dropout, running means or gradients of the first step would depend on how often was tried: resuming is not exact."""
    trial = Trial(fits=5)
    random, buffers = torch.get_rng_state(), {name: tensor.clone() for name, tensor in trial.model.named_buffers()}
    trial.fit(accelerator)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in trial.model.named_buffers())
    assert [parameter.grad for parameter in trial.model.parameters()] == [None] * 4


def test_only_a_lack_of_memory_is_caught(accelerator: Accelerator) -> None:
    """A mistake in a model would be taken for a lack of memory, tried again and again, and hidden."""
    trial = Trial(fits=5, error=RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        trial.fit(accelerator)
    assert trial.sizes == [16]


def test_every_kind_of_a_lack_of_memory_is_known() -> None:
    """The CPU allocator has no exception of its own: its words are those of the torch that is installed."""
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(2**60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as numpy:
        np.empty(2**60, np.uint8)
    for error in (
        cpu.value,
        numpy.value,
        torch.cuda.OutOfMemoryError(""),
        RuntimeError("CUDA error: out of memory"),
    ):
        assert guards.is_out_of_memory(error), error
    assert not guards.is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("has_state", [False, True])
def test_the_moments_of_the_optimizer_are_stood_in_for_once(
    has_state: bool, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step would run out of memory that the search had for itself; or a resumed run be cut finer for nothing."""
    trial, made = Trial(fits=16), []
    if has_state:
        trial.once(PLAN)
        trial.optimizer.step()
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: made.append(tensor.numel()) or plain(tensor))
    trial.fit(accelerator)
    expected = 2 * sum(parameter.numel() for parameter in trial.model.parameters())
    assert sum(made) == (0 if has_state else expected)


# Not finite


def gather(rows: np.ndarray) -> Batch:
    return {"x": torch.from_numpy(rows).float().expand(2, -1).T, "rows": torch.from_numpy(rows) > 3}


def test_a_batch_is_saved_for_replay(tmp_path: Path) -> None:
    """The batch that broke a run could not be looked at; or a kill in the middle would leave a part of it."""
    rows = np.array([5, 3, 90])
    file = guards.save_batch(tmp_path / "nonfinite/step7.safetensors", rows, gather(rows))
    assert [found.name for found in file.parent.iterdir()] == ["step7.safetensors"]
    found_rows, batch = guards.load_batch(file)
    assert found_rows.tolist() == [5, 3, 90]
    expected = gather(rows)
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)


def test_a_batch_that_is_not_wholly_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle would leave a part of a batch, or fill up with such parts."""
    monkeypatch.setattr(guards.folders, "sync", lambda path: os.stat(tmp_path / "no such file"))
    with pytest.raises(OSError, match="no such file"):
        guards.save_batch(tmp_path / "nonfinite/step7.safetensors", np.arange(3), gather(np.arange(3)))
    assert not list((tmp_path / "nonfinite").iterdir())


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_a_file_that_is_no_saved_batch_is_refused(damage: str, tmp_path: Path) -> None:
    """A traceback of safetensors instead of the path and the mend."""
    file = guards.save_batch(tmp_path / "a.safetensors", np.arange(3), gather(np.arange(3)))
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        os.truncate(file, 20)
    else:
        guards.save_file({"x": torch.zeros(3)}, file)
    with pytest.raises(UserError, match="is no saved batch"):
        guards.load_batch(file)


def report(accelerator: Accelerator, out: Path, finite: bool, loss: float, norm: float = math.nan) -> str:
    micro_batches = [np.arange(10, 22), np.array([5, 7])]
    return guards.report_nonfinite(accelerator, out, 37, micro_batches, gather, finite, loss, norm)


def test_a_loss_that_is_not_finite_is_reported_with_its_rows(accelerator: Accelerator, tmp_path: Path) -> None:
    """Nobody could find the row that broke the run."""
    found = report(accelerator, tmp_path, False, math.nan)
    files = [tmp_path / f"nonfinite/step37.rank0.micro{number}.safetensors" for number in (0, 1)]
    assert found == (
        "the loss is nan at step 37, from rank 0, 14 rows: 10, 11, 12, 13, 14, 15, 16, 17, … "
        f"(saved: {files[0]}, {files[1]}): look at those rows, lower learning_rate, or set clip_norm or nonfinite=skip"
    )
    assert [guards.load_batch(file)[0].tolist() for file in files] == [list(range(10, 22)), [5, 7]]


def test_a_gradient_that_is_not_finite_is_everybodys(accelerator: Accelerator, tmp_path: Path) -> None:
    """After the reduction all ranks have it: if none saved its rows, the one that broke the run might be lost."""
    found = report(accelerator, tmp_path, True, 2.34567891, math.inf)
    assert found.startswith("the gradient norm is inf (the loss 2.3457) at step 37, from rank 0, 14 rows: ")
    assert len(list((tmp_path / "nonfinite").iterdir())) == 2


def test_a_rank_whose_own_loss_is_finite_saves_nothing(accelerator: Accelerator, tmp_path: Path) -> None:
    """On a thousand ranks, the file to look at would be one of a thousand."""
    found = report(accelerator, tmp_path, True, math.inf)
    assert found.startswith("the loss is inf at step 37, from no rank's own loss, but their sum: ")
    assert not (tmp_path / "nonfinite").exists()


def test_a_batch_that_cannot_be_saved_is_said(accelerator: Accelerator, tmp_path: Path) -> None:
    """A full disk would hide that the loss is not finite, and hang the other ranks."""
    (tmp_path / "nonfinite").write_text("a file where the folder should be")
    found = report(accelerator, tmp_path, False, math.nan)
    assert "the loss is nan at step 37, from rank 0, 14 rows: 10, 11, " in found
    assert "(not saved: " in found


def test_many_ranks_are_said_shortly() -> None:
    """A sentence of a thousand ranks cannot be read."""
    reports = [{"rank": rank, "rows": [rank], "files": [f"{rank}.safetensors"], "problem": ""} for rank in range(1000)]
    found = guards.describe_nonfinite(3, math.nan, math.nan, reports)
    assert "from rank 0, 1 rows: 0 (saved: 0.safetensors); rank 1, 1 rows: 1 " in found
    assert "; and 996 more ranks: look at" in found
    assert "rank 4" not in found


# Spikes


def test_a_spike_is_a_loss_far_above_the_usual() -> None:
    """A run would be thrown back by noise, or not at all."""
    watch = SpikeWatch(3.0, [])
    assert not any(watch.is_spike(loss) for loss in [100.0, *[2.0, 1.0] * 10])
    assert not watch.is_spike(6.0)  # three times the median, and no more
    assert watch.is_spike(6.01)
    assert 6.01 not in watch.history


def test_too_few_losses_are_not_compared() -> None:
    """The first steps, where the loss falls fast or jumps, would be taken for spikes."""
    watch = SpikeWatch(3.0, [1.0] * 18)
    assert not watch.is_spike(9.0)
    assert not watch.is_spike(9.0)
    assert watch.is_spike(9.0)


def test_the_usual_is_that_of_the_last_hundred() -> None:
    """After a long run the loss of its beginning would hide every spike; and checkpoints would grow."""
    watch = SpikeWatch(3.0, [])
    for loss in [50.0] * 200 + [1.0] * 60:
        assert not watch.is_spike(loss)
    assert len(watch.history) == 100
    assert watch.is_spike(5.0)


def test_losses_that_are_not_finite_or_not_positive_are_no_spikes() -> None:
    """The guard for what is not finite comes first; and a factor says nothing of losses below zero."""
    watch = SpikeWatch(3.0, [1.0] * 30)
    assert not any(watch.is_spike(loss) for loss in (math.nan, math.inf))
    assert watch.history == [1.0] * 30
    assert not SpikeWatch(3.0, [-1.0] * 30).is_spike(-0.5)


def test_a_factor_of_zero_never_finds_a_spike() -> None:
    """The default would throw runs back, or fill checkpoints with losses that nobody asks for."""
    watch = SpikeWatch(0.0, [])
    assert not any(watch.is_spike(loss) for loss in [*[1.0] * 30, 1e30])
    assert watch.history == []


def test_a_watch_goes_on_from_its_history() -> None:
    """After a resume another step would be taken for a spike: the run would not be the same."""
    losses = np.random.default_rng(0).lognormal(0, 0.8, 300).tolist()
    whole = SpikeWatch(3.0, [])
    expected = [whole.is_spike(loss) for loss in losses]
    assert 5 < sum(expected) < 100
    first = SpikeWatch(3.0, [])
    found = [first.is_spike(loss) for loss in losses[:110]]
    resumed = SpikeWatch(3.0, json.loads(json.dumps(first.history)))
    assert found + [resumed.is_spike(loss) for loss in losses[110:]] == expected
