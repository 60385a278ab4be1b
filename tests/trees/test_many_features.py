"""Tables with hundreds of features: the bins of the features, and the memory of the histograms."""

import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from copied_members import config_of, folds_of, prepared_of
from tree_members import rows_of

from ensemble.trees import copies, memory
from ensemble.trees.boosting import Training
from ensemble.trees.predict import library_module
from ensemble.trees.settings import TreesConfig

NUM_ROWS, NUM_FEATURES = 1500, 1000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared table whose target is a curve of its first feature."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(NUM_FEATURES, NUM_ROWS))
    columns = {f"x{number}": values for number, values in enumerate(features)}
    target = 10 * np.sin(5 * features[0]) + generator.normal(size=NUM_ROWS)
    return prepared_of(tmp_path_factory.mktemp("wide"), pl.DataFrame({**columns, "y": target}))


def trained(library: str, data: Path, **settings: Any) -> Any:
    config = config_of(library, data, **{"regrow": False, "threads": 1, **settings})
    return copies.train(library_module(library), config, rows_of(data), folds_of(data)[:1], Training(), False)


def test_histograms_use_little_memory(library: str, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit of a table with thousands of columns used gigabytes for them, and was killed on a laptop."""
    if not memory.STATUS.exists():
        pytest.skip("the peak of the memory cannot be reset on this system")
    config, rows, peaks = config_of(library, wide, max_leaves=255, column_fraction=1.0), rows_of(wide), []
    for num_bytes in (1 << 20, 1 << 20, 1 << 40):  # a library allocates some memory once
        monkeypatch.setattr(memory, "HISTOGRAM_BYTES", num_bytes)
        memory.reset_peak()
        before = memory.peak()
        booster = library_module(library).Booster(config, rows, rows.take(np.arange(10)), Training(copy=0))
        booster.update()
        del booster
        peaks.append(memory.peak() - before)
    assert peaks[2] - peaks[1] > 40


def thresholds(library: str, booster: Any, feature: str) -> set[str]:
    """The different thresholds of a feature in all trees."""
    if library == "xgboost":
        return set(re.findall(rf"\[{feature}<([^\]]+)\]", "".join(booster.get_dump())))
    number = str(booster.feature_name().index(feature))
    text = booster.model_to_string()
    pairs = zip(re.findall("split_feature=(.*)", text), re.findall("\nthreshold=(.*)", text), strict=True)
    return {
        threshold
        for features, values in pairs
        for split, threshold in zip(features.split(), values.split(), strict=True)
        if split == number
    }


def test_many_features_have_fewer_bins(library: str, wide: Path, tmp_path: Path) -> None:
    """A tree would take three times as long, so that a fit with a time limit has few of them."""
    few = prepared_of(tmp_path, pl.read_parquet(wide.parent / "data.parquet", columns=["x0", "x1", "y"]))
    settings = {"num_rounds": 60, "early_stopping_rounds": 60, "max_leaves": 63, "column_fraction": 1.0}
    numbers = [len(thresholds(library, trained(library, data, **settings).models[0].booster, "x0")) for data in (wide, few)]
    assert numbers[0] < memory.BINS_OF_MANY_FEATURES < numbers[1]


def test_catboost_has_the_same_number_of_bins(wide: Path, tmp_path: Path) -> None:
    """CatBoost would have fewer trees than it can."""
    pytest.importorskip("catboost")
    booster = trained("catboost", wide, num_rounds=1).models[0].booster
    assert booster.get_all_params()["border_count"] < memory.BINS_OF_MANY_FEATURES


def test_a_faster_start_uses_the_same_bins(library: str, data_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide table, the bins of all copies would be computed twice if the learning rate is raised."""
    data, now, binned, module = data_of("regression"), [1.0], list[int](), library_module(library)
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    name = {"xgboost": "matrices", "lightgbm": "datasets"}[library]
    compute = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: (binned.append(1), compute(*arguments))[1])
    training = Training(
        on_chunk=lambda history: now.__setitem__(0, now[0] + len(history)), seconds_left=lambda: 100.0 - now[0]
    )
    config = config_of(library, data, regrow=False, learning_rate=0.01, num_rounds=100)
    result = copies.train(module, config, rows_of(data), folds_of(data), training, False)
    assert result.learning_rate > config.learning_rate
    assert len(binned) == len(folds_of(data))
    again = TreesConfig(**{**vars(config), "learning_rate": result.learning_rate, "num_rounds": len(result.history)})
    expected = copies.train(module, again, rows_of(data), folds_of(data), Training(), False)
    assert result.out_of_fold
    assert expected.out_of_fold
    assert np.array_equal(result.out_of_fold["prediction"], expected.out_of_fold["prediction"])


@pytest.mark.parametrize(("limit_s", "is_faster"), [(8.0, False), (20.0, True)])
def test_a_training_does_not_start_again_for_few_trees(
    limit_s: float, is_faster: bool, library: str, data_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trees would be lost, and a member with one tree would be left."""
    data, now = data_of("regression"), [1.0]
    monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    training = Training(
        on_chunk=lambda history: now.__setitem__(0, now[0] + len(history)), seconds_left=lambda: 1 + limit_s - now[0]
    )
    config = config_of(library, data, regrow=False, learning_rate=0.1, num_rounds=100)
    result = copies.train(library_module(library), config, rows_of(data), folds_of(data), training, False)
    assert (result.learning_rate > config.learning_rate) == is_faster
