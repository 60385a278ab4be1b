"""The benchmarks of the cost of data."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import data

from ensemble.recipes.hot_sellers.training import PanelRows


def test_every_batch_of_the_loader_is_full(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches after the last row would be empty, but count as 256 rows."""
    sizes: list[int] = []
    gather = PanelRows.gather

    def counted(self: PanelRows, rows: np.ndarray, epoch: int = 0) -> object:
        sizes.append(len(rows))
        return gather(self, rows[:1], epoch)

    monkeypatch.setattr(PanelRows, "gather", counted)
    monkeypatch.setattr(data, "prepared_market", lambda folder: prepared)
    assert data.loader(num_batches=60)["ratio_median"] > 0
    assert sizes == [256] * 300
