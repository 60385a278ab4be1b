"""How far the rows to forecast differ from those that train."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ensemble.arrow import write_table
from ensemble.data import drift
from ensemble.data.drift import LARGE, Bins, bins_of_train, warning

GENERATOR = np.random.default_rng(0)


def stability_index(before: np.ndarray, after: np.ndarray, is_category: bool) -> tuple[float, float]:
    content = json.loads(json.dumps(dataclasses.asdict(Bins.from_values(before, is_category))))
    return Bins(**content).stability_index(after)


def test_equal_distributions_differ_by_chance_only() -> None:
    """Each forecast of a few rows would be called drift."""
    before = GENERATOR.normal(size=5000)
    result = np.array([stability_index(before, GENERATOR.normal(size=40), False) for _ in range(200)])
    assert result[:, 0].mean() == pytest.approx(result[:, 1].mean(), rel=0.3)
    assert stability_index(before, GENERATOR.normal(size=5000), False)[0] < 0.02


@pytest.mark.parametrize(
    ("before", "after", "is_category"),
    [
        (GENERATOR.normal(size=2000), GENERATOR.normal(1, 1, size=2000), False),
        (GENERATOR.normal(size=2000), np.where(GENERATOR.random(2000) < 0.3, np.nan, GENERATOR.normal(size=2000)), False),
        (GENERATOR.integers(0, 3, 2000).astype(float), np.zeros(2000), True),
        (np.full(2000, np.nan), GENERATOR.normal(size=2000), False),
        (np.ones(2000), np.zeros(2000), False),
        (np.zeros(2000), np.ones(2000), False),
        ((GENERATOR.random(2000) < 0.05).astype(float), np.ones(2000), False),
        (
            np.where(GENERATOR.random(2000) < 0.92, 0, GENERATOR.exponential(size=2000)),
            GENERATOR.exponential(size=2000),
            False,
        ),
    ],
)
def test_a_shift_is_large(before: np.ndarray, after: np.ndarray, is_category: bool) -> None:
    """Other values, missing values or another mix of categories would cause no warning."""
    index, chance = stability_index(before, after, is_category)
    assert index - chance > LARGE


def test_the_index_is_that_of_its_definition() -> None:
    """The number would not be comparable with the usual limits."""
    before, after = np.repeat([0.0, 1.0], [5000, 5000]), np.repeat([0.0, 1.0], [2500, 7500])
    assert stability_index(before, after, True)[0] == pytest.approx(0.25 * np.log(3), rel=0.01)


def test_categories_need_no_names_to_be_compared(tmp_path: Path) -> None:
    """Codes next to each other would share a bin, so that half of the categories could disappear without a warning."""
    manifest: dict[str, Any] = {"features": [{"name": "c", "meaning": "shop", "unit": "category", "categories": 40}]}
    codes = np.arange(4000, dtype=np.float32) % 40
    for split, values in (("train", codes), ("forecast", codes // 2 * 2)):
        write_table(tmp_path / "rows" / split, pa.table({"c": values}))
    assert "differ from the training rows in 'shop'" in warning(bins_of_train(tmp_path, manifest), tmp_path, manifest)
    del manifest["features"][0]["meaning"]  # a recipe of the user may leave it out
    assert "differ from the training rows in 'c'" in warning(bins_of_train(tmp_path, manifest), tmp_path, manifest)


def test_the_warning_counts_the_features_that_it_does_not_name(tmp_path: Path) -> None:
    """Of six features that drift, it would name five `and 1 others`."""
    names = "abcdef"
    manifest: dict[str, Any] = {"features": [{"name": name, "unit": ""} for name in names]}
    for split, value in (("train", 0.0), ("forecast", 1.0)):
        write_table(tmp_path / "rows" / split, pa.table({name: np.full(40, value, np.float32) for name in names}))
    sentence = warning(bins_of_train(tmp_path, manifest), tmp_path, manifest)
    assert [name in sentence for name in ("'a' (", "'e' (", "'f' (")] == [True, True, False]
    assert ") and 1 more: the population stability index is above 0.25" in sentence


@pytest.mark.parametrize(("num_rows", "is_warned"), [(1, False), (30, True)])
def test_a_few_rows_are_no_drift(num_rows: int, is_warned: bool, tmp_path: Path) -> None:
    """Each request of one row with a rare value would have a warning."""
    manifest: dict[str, Any] = {"features": [{"name": "flag", "meaning": "flag", "unit": "category", "categories": 2}]}
    for split, values in (("train", (np.arange(4000) % 50 == 0).astype(np.float32)), ("forecast", np.ones(num_rows))):
        write_table(tmp_path / "rows" / split, pa.table({"flag": pa.array(values, pa.float32())}))
    assert bool(warning(bins_of_train(tmp_path, manifest), tmp_path, manifest)) == is_warned


def test_rows_that_alternate_are_no_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of games that alternate between home and away, every second row would be one of home, and all others a drift."""
    monkeypatch.setattr(drift, "MOST_ROWS", 2000)
    manifest: dict[str, Any] = {"features": [{"name": "home", "meaning": "home", "unit": "category", "categories": 2}]}
    for split, num_rows in (("train", 4000), ("forecast", 1000)):
        write_table(tmp_path / "rows" / split, pa.table({"home": (np.arange(num_rows) % 2).astype(np.float32)}))
    assert warning(bins_of_train(tmp_path, manifest), tmp_path, manifest) == ""


def test_new_clusters_are_no_drift(tmp_path: Path) -> None:
    """With `group=family`, other families with ten rows each would be called drift, since each row counted as a draw."""
    manifest: dict[str, Any] = {
        "task": {"cluster": "family"},
        "features": [{"name": "height_of_father", "unit": ""}, {"name": "is_male", "unit": "0 or 1"}],
    }
    families, generator = np.arange(60), np.random.default_rng(0)
    of_father, is_male = generator.normal(size=60), (np.arange(600) % 2).astype(np.float32)
    for split, rows in (("train", families[:40]), ("forecast", families[40:])):
        family = np.repeat(rows, 10)
        features = {"height_of_father": of_father[family].astype(np.float32), "is_male": is_male[: len(family)]}
        write_table(tmp_path / "rows" / split, pa.table({"family": family, **features}))
    bins = bins_of_train(tmp_path, manifest)
    assert warning(bins, tmp_path, manifest) == ""
    assert [bins[name]["design_effect"] for name in bins] == [pytest.approx(10), 1.0]
    as_single_rows = {name: {**content, "design_effect": 1.0} for name, content in bins.items()}
    assert "'height_of_father' (" in warning(as_single_rows, tmp_path, manifest)
    all_male = pa.table({"family": family, **features, "is_male": np.ones(200, np.float32)})
    write_table(tmp_path / "later" / "rows" / "forecast", all_male)
    assert "'is_male' (" in warning(bins, tmp_path / "later", manifest)
