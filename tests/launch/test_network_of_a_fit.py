"""The network of a fit, trained by the real launcher on one rank and on two."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fits import configured, people

from ensemble import folders, predictions
from ensemble.pipeline import network, run
from ensemble.pipeline.plan import PlannedMember
from ensemble.predictor import bag
from ensemble.trees import threads


def test_two_ranks_learn_what_one_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit would be silent about ranks that do not start, or its forecast would depend on the number of cores."""
    monkeypatch.setattr(network, "LEAST_ROWS_FOR_RANKS", 0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")  # that of the nodes of another job
    people().write_csv(tmp_path / "people.csv")
    config = configured(tmp_path / "people.csv", tmp_path / "out")
    monkeypatch.setattr(threads, "configure", lambda requested: 1)  # other tests of this process loaded OpenMP
    with ExitStack() as lock:
        manifest = run.prepare(config, "table", False, lock)
    settings: dict[str, Any] = {"max_epochs": 8, "learning_rate": 0.01, "recipe.dropout": 0}
    data, predicted = tmp_path / "out" / "prepared", []
    for num_ranks in (1, 2):
        folder = tmp_path / str(num_ranks)
        member = PlannedMember(name="tabm", kind="neural", settings=settings)
        written = tmp_path / f"written{num_ranks}"
        assert network.train(member, data, folder, manifest, config, num_ranks, 0.0, False, written)
        assert folders.read_json(folder / "summary.json")["ranks"] == num_ranks
        assert folders.read_json(folder / "environment.json")["threads"] == 1
        network.predict(folder.name, folder, data, tmp_path / "predicted")
        files = sorted(written.iterdir())
        assert [file.name for file in files] == [f"{num_ranks}.forecast.parquet", f"{num_ranks}.oof.parquet"]
        assert network.has_predicted(files, manifest["fingerprint"], bag.model_fingerprint(folder), folder)
        for file in files:
            by_ranks, by_script = predictions.read(file), predictions.read(tmp_path / "predicted" / file.name)
            np.testing.assert_allclose(by_ranks.prediction, by_script.prediction, rtol=1e-5)
            assert (by_ranks.config, by_ranks.row_id.tolist()) == (by_script.config, by_script.row_id.tolist())
        predicted.append(by_ranks.prediction)
    assert np.std(predicted[0]) > 1e-3, "nothing was learned"
    np.testing.assert_allclose(*predicted, rtol=1e-4)
