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


@pytest.mark.parametrize(("most_values", "num_rows", "num_evaluated"), [(10**8, 6, 8), (120, 6, 2), (90, 4, 2), (20, 1, 2)])
def test_many_features_have_fewer_references_and_rows(
    most_values: int, num_rows: int, num_evaluated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction of 41 rows of 1,107 features would take half a minute."""
    monkeypatch.setattr(training, "LEAST_EXPLAINED", 6)
    monkeypatch.setattr(training, "MOST_EVALUATED", 0)
    rows = flat_data.columns(60, "regression")
    data = flat_data.write(tmp_path / "data", {"train": rows, "forecast": rows}, "regression")
    network = training.make(RecipeConfig(), str(data))
    variants = 1 + len(network.names[0]) + len(network.names[1])
    monkeypatch.setattr(training, "MOST_VALUES", most_values * variants**2 // 10)
    evaluated = []
    values = training.shapley.values
    monkeypatch.setattr(
        training.shapley, "values", lambda *arguments: (evaluated.append(len(arguments[2])), values(*arguments))[1]
    )
    reasons = network.reasons(network.model(), np.arange(60.0))
    assert sum(bool(reasons_of_row) for reasons_of_row in reasons) == num_rows
    assert evaluated == [num_evaluated]
