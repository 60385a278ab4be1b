"""The network of a fit, trained by the real launcher on one rank and on two."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fits import configured, people

from ensemble import folders
from ensemble.pipeline import network, run
from ensemble.pipeline.plan import PlannedMember
from ensemble.trees import threads


def test_two_ranks_learn_what_one_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit would be silent about ranks that do not start, or its forecast depend on the number of cores."""
    monkeypatch.setattr(network, "LEAST_ROWS_FOR_RANKS", 0)
    people().write_csv(tmp_path / "people.csv")
    config = configured(tmp_path / "people.csv", tmp_path / "out")
    monkeypatch.setattr(threads, "configure", lambda requested: 1)  # other tests of this process loaded OpenMP
    manifest = run.prepare(config, "table", False)
    settings: dict[str, Any] = {"max_epochs": 8, "learning_rate": 0.01, "recipe.dropout": 0}
    data, predicted = tmp_path / "out" / "prepared", []
    for num_ranks in (1, 2):
        folder = tmp_path / str(num_ranks)
        member = PlannedMember(name="tabm", kind="neural", settings=settings)
        assert network.train(member, data, folder, manifest, config, num_ranks, 0.0, False)
        assert folders.read_json(folder / "summary.json")["ranks"] == num_ranks
        assert folders.read_json(folder / "environment.json")["threads"] == 1
        network.predict("tabm", folder, data, tmp_path / f"predicted{num_ranks}")
        predicted.append(pl.read_parquet(tmp_path / f"predicted{num_ranks}" / "tabm.oof.parquet")["prediction"].to_numpy())
    assert np.std(predicted[0]) > 1e-3, "nothing was learned"
    np.testing.assert_allclose(*predicted, rtol=1e-4)
