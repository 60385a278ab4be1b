"""Prediction files of two members that were never trained, and an ensemble of one that was, each made once."""

import re
import shutil
from pathlib import Path

import pytest
from prediction_files import SPLITS, synthetic
from scripts_run import started

from ensemble import predictions
from ensemble.predictions import Predictions
from ensemble.recipes.hot_sellers import baselines


@pytest.fixture(scope="session")
def files(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prediction files of two members and the baseline; tests that change files use `copied`."""
    folder = tmp_path_factory.mktemp("predictions")
    for split in SPLITS:
        for number, (name, noise) in enumerate({"clear": 0.7, "vague": 2.0}.items()):
            predictions.write(folder / f"{name}.{split}.parquet", synthetic(prepared, name, split, noise, number))
        momentum = Predictions(**baselines.predict(prepared, split), split=split, member="momentum")
        predictions.write(folder / f"momentum.{split}.parquet", momentum)
    return folder


@pytest.fixture
def copied(files: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(files, tmp_path / "predictions"))


@pytest.fixture(scope="session")
def fitted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with members/xgboost and an ensemble of it, all made by the scripts."""
    folder = tmp_path_factory.mktemp("fitted")
    data, files = f"data={prepared}", f"{folder}/predictions"
    for words in (
        ("train_trees", data, f"out={folder}/members/xgboost", "num_rounds=10"),
        ("predict", data, f"member={folder}/members/xgboost", f"out={files}"),
        ("predict", data, "member=momentum", f"out={files}"),
        ("ensemble_predictor", "fit", data, f"predictions={files}", f"out={folder}/ensemble", "num_draws=5"),
    ):
        done = started(*words)
        assert done.returncode == 0, done.stderr
    assert re.search(r" momentum  [\d.]+  \[.*\]  ranked within its week$", done.stdout, re.MULTILINE)
    assert done.stdout.count("ranked within") == 1
    return folder
