"""The rows of a forecast for which the network for tables computes reasons."""

from pathlib import Path

import flat_data
import numpy as np
import pytest

from ensemble.recipes.table import training
from ensemble.recipes.table.settings import RecipeConfig


def test_rows_that_no_forecast_has_get_no_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates of the first users would be explained, and even the best ones of the other users would not."""
    monkeypatch.setattr(training, "LEAST_EXPLAINED", 6)
    monkeypatch.setattr(training, "MOST_EVALUATED", 0)
    rows = flat_data.columns(60, "ranking")
    data = flat_data.write(tmp_path / "data", {"train": rows, "forecast": rows}, "ranking", most_per_group=2)
    network = training.make(RecipeConfig(), str(data))
    prediction = np.random.default_rng(0).permutation(60).astype(float)
    reasons = network.reasons(network.model(), prediction)
    best = [
        np.flatnonzero(rows["group"] == group)[np.argsort(-prediction[rows["group"] == group])[:2]] for group in range(3)
    ]
    assert {row for row, reasons_of_row in enumerate(reasons) if reasons_of_row} == set(np.concatenate(best).tolist())
