"""The benchmarks of the cost of data."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import data

from ensemble.errors import UserError
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


def test_what_cannot_be_measured_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of measurements would be lost, or a division by zero would end in a traceback."""

    def measured(*_: object) -> None:
        raise AssertionError

    for name in ("called", "prepared_market"):
        monkeypatch.setattr(data, name, measured)
    with pytest.raises(UserError, match="num_batches=0 is impossible: for a measurement it must be 1 or more"):
        data.loader(num_batches=0)
    with pytest.raises(UserError, match=r"python3 .*/absent.py --help ended with 2: .*No such file"):
        data.panel(reference=str(tmp_path / "absent.py"))
