"""Checks before the first step."""

import pytest
from torch import nn

from ensemble.errors import UserError
from ensemble.neural.loader import BatchPlan
from ensemble.neural.setup import refuse_batch_norm


def test_batch_normalisation_needs_one_rank() -> None:
    """Each rank would be scored with its own running statistics, and a resumed run would have those of rank 0 everywhere."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(UserError, match=r"the statistics of '1' \(BatchNorm1d\) would differ between the 2 processes"):
        refuse_batch_norm(model, 2)
    refuse_batch_norm(model, 1)
    refuse_batch_norm(nn.SyncBatchNorm.convert_sync_batchnorm(model), 2)
    refuse_batch_norm(nn.GroupNorm(1, 3), 2)


def test_the_number_of_steps_is_that_of_the_epochs() -> None:
    """Floating point would add a step: 1.1 × 100 is above 110."""
    plan = BatchPlan(1600, 16, 16, 1, 0, 0)
    assert [plan.num_steps(epochs) for epochs in (1, 1.1, 1.101, 0.1, 1e-9)] == [100, 110, 111, 10, 1]
