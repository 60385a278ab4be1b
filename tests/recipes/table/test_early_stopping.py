"""The score by which TabM stops early."""

from pathlib import Path

import flat_data
import numpy as np
import pytest

from ensemble.recipes.table import training
from ensemble.recipes.table.settings import RecipeConfig


def test_a_ranking_is_validated_without_the_unit_of_its_weights(tmp_path: Path) -> None:
    """With small weights NDCG would be 1 at each evaluation, since all rows of a group together would not fill one place."""
    columns = flat_data.columns(120, "ranking")
    columns["weight"] = 1.0 + np.arange(120) % 3
    data = flat_data.write(tmp_path / "data", {"train": columns, "validation": columns}, "ranking")
    tabm = training.make(RecipeConfig(), str(data))
    known = {name: columns[name] for name in ("target", "group")}
    known["prediction"] = np.random.default_rng(0).random(120)
    scores = [tabm.metrics({**known, "weight": unit * columns["weight"]})["ndcg_at_10"] for unit in (1.0, 0.01, 1000.0)]
    assert scores[0] < 0.95
    assert scores[1:] == pytest.approx([scores[0]] * 2)
