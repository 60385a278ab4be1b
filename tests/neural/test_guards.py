"""Out of memory, values that are not finite, loss spikes; on several ranks in tests/launch/test_failures.py."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file

from ensemble.errors import UserError
from ensemble.neural import guards
from ensemble.neural.guards import SpikeDetector
from ensemble.neural.loader import Batch, BatchPlan

torch.set_num_threads(1)
PLAN = BatchPlan(num_rows=100, batch_size=16, micro_batch_size=0, num_ranks=1, rank=0, seed=0)


# Memory


class Trial:
    """A model with buffers, and a trial pass that raises `error` (out of memory) for more than `fits` rows."""

    def __init__(self, fits: int, error: Exception | None = None):
        self.fits, self.error, self.sizes, self.messages = fits, error, [], []
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def trial_pass(self, plan: BatchPlan) -> None:
        self.sizes.append(plan.micro_batch_size)
        self.model(torch.ones(2, 3)).sum().backward()
        if plan.micro_batch_size > self.fits:
            raise self.error or torch.OutOfMemoryError("CUDA out of memory")

    def fit(self, accelerator: Accelerator) -> BatchPlan:
        return guards.fit_micro_batch(PLAN, self.trial_pass, self.model, [self.optimizer], accelerator, self.messages.append)


def test_a_micro_batch_that_fits_is_not_changed(accelerator: Accelerator) -> None:
    """Every run would use smaller micro-batches than necessary, or report a lack of memory."""
    trial = Trial(fits=16)
    assert trial.fit(accelerator) == PLAN
    assert (trial.sizes, trial.messages) == ([16], [])


def test_the_micro_batch_is_halved_until_it_fits(accelerator: Accelerator) -> None:
    """A run would fail although accumulation allows the same global batches with less memory."""
    trial = Trial(fits=5)
    fitted = trial.fit(accelerator)
    assert fitted == dataclasses.replace(PLAN, micro_batch_size=4)
    assert trial.sizes == [16, 8, 4]
    assert trial.messages == [
        "out of memory on rank 0: 16 = 16 × 1 ranks × 1 accumulated becomes 16 = 4 × 1 ranks × 4 accumulated"
    ]


def test_a_single_row_that_does_not_fit_is_a_user_error(accelerator: Accelerator) -> None:
    """The search would never end, or end in a traceback."""
    with pytest.raises(UserError, match="micro_batch_size=1"):
        Trial(fits=0).fit(accelerator)


def test_the_search_does_not_change_the_state(accelerator: Accelerator) -> None:
    """Dropout, running means or gradients of the first step would depend on the number of trials."""
    trial = Trial(fits=5)
    random, buffers = torch.get_rng_state(), {name: tensor.clone() for name, tensor in trial.model.named_buffers()}
    trial.fit(accelerator)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in trial.model.named_buffers())
    assert [parameter.grad for parameter in trial.model.parameters()] == [None] * 4


def test_other_exceptions_are_raised(accelerator: Accelerator) -> None:
    """A bug in a model would be treated as a lack of memory and hidden."""
    trial = Trial(fits=5, error=RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        trial.fit(accelerator)
    assert trial.sizes == [16]


def test_every_out_of_memory_error_is_recognised() -> None:
    """The CPU allocator has no exception class, and its message depends on the version of torch."""
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
def test_memory_for_missing_moments_is_allocated(
    has_state: bool, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step would run out of memory after a successful search, or a resumed run would use smaller micro-batches."""
    trial, sizes = Trial(fits=16), []
    if has_state:
        trial.trial_pass(PLAN)
        trial.optimizer.step()
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: sizes.append(tensor.numel()) or plain(tensor))
    trial.fit(accelerator)
    expected = 2 * sum(parameter.numel() for parameter in trial.model.parameters())
    assert sum(sizes) == (0 if has_state else expected)


# Not finite


def gather(rows: np.ndarray) -> Batch:
    return {"x": torch.from_numpy(rows).float().expand(2, -1).T, "rows": torch.from_numpy(rows) > 3}


def test_a_batch_is_saved_for_replay(tmp_path: Path) -> None:
    """The batch that stopped a run could not be inspected, or a kill would leave a part of it."""
    rows = np.array([5, 3, 90])
    file = guards.save_batch(tmp_path / "nonfinite/step7.safetensors", rows, gather(rows))
    assert [path.name for path in file.parent.iterdir()] == ["step7.safetensors"]
    loaded_rows, batch = guards.load_batch(file)
    assert loaded_rows.tolist() == [5, 3, 90]
    expected = gather(rows)
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)


def test_an_incomplete_batch_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would leave incomplete files."""
    monkeypatch.setattr(guards.folders, "sync", lambda path: os.stat(tmp_path / "no such file"))
    with pytest.raises(OSError, match="no such file"):
        guards.save_batch(tmp_path / "nonfinite/step7.safetensors", np.arange(3), gather(np.arange(3)))
    assert not list((tmp_path / "nonfinite").iterdir())


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_a_file_that_is_not_a_saved_batch_is_refused(damage: str, tmp_path: Path) -> None:
    """A traceback of safetensors would replace the path and the fix."""
    file = guards.save_batch(tmp_path / "a.safetensors", np.arange(3), gather(np.arange(3)))
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        os.truncate(file, 20)
    else:
        save_file({"x": torch.zeros(3)}, file)
    with pytest.raises(
        UserError, match=r"\.safetensors is not a saved batch \(.*\): give a file from the folder nonfinite/"
    ):
        guards.load_batch(file)


def report(accelerator: Accelerator, out: Path, finite: bool, loss: float, norm: float = math.nan) -> str:
    micro_batches = [np.arange(10, 22), np.array([5, 7])]
    return guards.report_nonfinite(accelerator, out, 37, micro_batches, gather, finite, loss, norm)


def test_a_loss_that_is_not_finite_is_reported_with_its_rows(accelerator: Accelerator, tmp_path: Path) -> None:
    """The rows that caused the error could not be found."""
    message = report(accelerator, tmp_path, False, math.nan)
    files = [tmp_path / f"nonfinite/step37.rank0.micro{number}.safetensors" for number in (0, 1)]
    assert message == (
        "the loss is nan at step 37, from rank 0, 14 rows: 10, 11, 12, 13, 14, 15, 16, 17 and 6 more "
        f"(saved: {files[0]}, {files[1]}): look at those rows, lower learning_rate, or set clip_norm"
    )
    assert [guards.load_batch(file)[0].tolist() for file in files] == [list(range(10, 22)), [5, 7]]


def test_with_a_gradient_that_is_not_finite_all_ranks_save_their_rows(accelerator: Accelerator, tmp_path: Path) -> None:
    """After the reduction all ranks have the same gradient: the rows that caused it would not be saved."""
    message = report(accelerator, tmp_path, True, 2.34567891, math.inf)
    assert message.startswith("the gradient norm is inf (the loss 2.3457) at step 37, from rank 0, 14 rows: ")
    assert len(list((tmp_path / "nonfinite").iterdir())) == 2


def test_a_rank_whose_own_loss_is_finite_saves_nothing(accelerator: Accelerator, tmp_path: Path) -> None:
    """On a thousand ranks, one file of a thousand would be the relevant one."""
    message = report(accelerator, tmp_path, True, math.inf)
    assert message.startswith(
        "the loss is inf at step 37, from the sum over ranks, since that of each rank is finite, or from a count of 0: "
    )
    assert not (tmp_path / "nonfinite").exists()


def test_a_batch_that_cannot_be_saved_is_reported(accelerator: Accelerator, tmp_path: Path) -> None:
    """A full disk would hide that the loss is not finite, and the other ranks would hang."""
    (tmp_path / "nonfinite").write_text("a file where the folder should be")
    message = report(accelerator, tmp_path, False, math.nan)
    assert "the loss is nan at step 37, from rank 0, 14 rows: 10, 11, " in message
    assert "(not saved: " in message


def test_the_message_lists_few_ranks() -> None:
    """A sentence with a thousand ranks would not be readable."""
    reports = [{"rank": rank, "rows": [rank], "files": [f"{rank}.safetensors"], "problem": ""} for rank in range(1000)]
    message = guards.describe_nonfinite(3, math.nan, math.nan, reports)
    assert "from rank 0, 1 rows: 0 (saved: 0.safetensors); rank 1, 1 rows: 1 " in message
    assert "; and 996 more ranks: look at" in message
    assert "rank 4" not in message


# Spikes


def test_a_spike_is_a_loss_far_above_the_median() -> None:
    """A run would be rolled back because of noise, or never."""
    detector = SpikeDetector(3.0, [])
    assert not any(detector.is_spike(loss) for loss in [100.0, *[2.0, 1.0] * 10])
    assert not detector.is_spike(6.0)  # three times the median, and no more
    assert detector.is_spike(6.01)
    assert 6.01 not in detector.history


def test_too_few_losses_are_not_compared() -> None:
    """The first steps, where the loss falls fast or jumps, would count as spikes."""
    detector = SpikeDetector(3.0, [1.0] * 18)
    assert not detector.is_spike(9.0)
    assert not detector.is_spike(9.0)
    assert detector.is_spike(9.0)


def test_the_median_is_of_the_last_hundred_losses() -> None:
    """In a long run the first losses would hide every spike, and checkpoints would grow."""
    detector = SpikeDetector(3.0, [])
    for loss in [50.0] * 200 + [1.0] * 60:
        assert not detector.is_spike(loss)
    assert len(detector.history) == 100
    assert detector.is_spike(5.0)


def test_losses_that_are_not_finite_or_not_positive_are_no_spikes() -> None:
    """Losses that are not finite are handled elsewhere, and a factor has no meaning for losses below zero."""
    detector = SpikeDetector(3.0, [1.0] * 30)
    assert not any(detector.is_spike(loss) for loss in (math.nan, math.inf))
    assert detector.history == [1.0] * 30
    assert not SpikeDetector(3.0, [-1.0] * 30).is_spike(-0.5)


def test_a_factor_of_zero_disables_the_detection() -> None:
    """The default would roll runs back, or store losses in checkpoints without need."""
    detector = SpikeDetector(0.0, [])
    assert not any(detector.is_spike(loss) for loss in [*[1.0] * 30, 1e30])
    assert detector.history == []


def test_a_detector_continues_from_its_history() -> None:
    """A resumed run would detect other spikes than the uninterrupted one."""
    losses = np.random.default_rng(0).lognormal(0, 0.8, 300).tolist()
    whole = SpikeDetector(3.0, [])
    expected = [whole.is_spike(loss) for loss in losses]
    assert 5 < sum(expected) < 100
    first = SpikeDetector(3.0, [])
    detected = [first.is_spike(loss) for loss in losses[:110]]
    resumed = SpikeDetector(3.0, json.loads(json.dumps(first.history)))
    assert detected + [resumed.is_spike(loss) for loss in losses[110:]] == expected
