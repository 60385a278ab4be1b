"""Features with many categories as means of the target."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from copied_members import folds_of, prepared_of
from tree_members import config_of, rows_of

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees import export, single_copy, target_encoding, train
from ensemble.trees.objective import objective_of
from ensemble.trees.predict import TreeMember

NUM_ROWS, NUM_SHOPS, NUM_FOLDS = 2000, 150, 4


def prepared(folder: Path, unit: float = 0.0) -> Path:
    """Sales by shop; with a `unit`, rows have weights, which are multiplied by it."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, NUM_SHOPS, NUM_ROWS)
    sales = generator.normal(0, 1, NUM_ROWS) + 3 * np.sin(shop)
    frame = pl.DataFrame({"shop": [f"shop{number}" for number in shop], "size": generator.random(NUM_ROWS), "sales": sales})
    if unit:
        weight = unit * (1 + np.arange(NUM_ROWS) % 2)
        return prepared_of(folder, frame.with_columns(w=weight), target="sales", num_folds=NUM_FOLDS, weight="w")
    return prepared_of(folder, frame, target="sales", num_folds=NUM_FOLDS)


def test_codes_do_not_depend_on_the_unit_of_the_weights(tmp_path: Path) -> None:
    """With weights that sum to 1, the prior would outweigh all rows of a category, and all codes would be equal."""
    codes = []
    for unit in (1.0, 2.0**-12):
        (folder := tmp_path / f"{unit}").mkdir()
        rows = rows_of(data := prepared(folder, unit))
        objective = objective_of(config_of("lightgbm", data), rows)
        encoding, _ = target_encoding.fit(objective, rows, folds_of(data)[0].fit)
        codes.append(encoding.codes[rows.features.index("shop")])
    assert np.array_equal(*codes)
    assert np.std(codes[0]) * objective.scaling.scale > 0.5


@pytest.mark.parametrize("offset", [1.7e12, 3e38])
def test_codes_do_not_depend_on_an_offset_of_the_target(offset: float, tmp_path: Path) -> None:
    """As float32, the codes of all categories would be one value, or infinite, which XGBoost refuses."""
    rows = rows_of(data := prepared(tmp_path))
    target = rows.column("target").astype(np.float64)
    codes = []
    for moved in (target, target * max(1, offset / 2**40) + offset):
        changed = rows.replaced({"target": moved})
        encoding, _ = target_encoding.fit(objective_of(config_of("lightgbm", data), changed), changed, folds_of(data)[0].fit)
        codes.append(encoding.codes[rows.features.index("shop")])
    np.testing.assert_allclose(codes[1], codes[0], atol=1e-3)
    assert np.std(codes[0]) > 0.3


def test_codes_are_shrunk_only_if_the_target_varies_within_categories(tmp_path: Path) -> None:
    """Categories that determine the target would be shrunk by half, and noise would look like a difference of categories."""
    rows = rows_of(data := prepared(tmp_path))
    shop, fold = rows.column("shop"), folds_of(data)[0]
    generator = np.random.default_rng(1)
    spread = {}
    for name, sales in (("signal", 3 * np.sin(shop)), ("noise", generator.normal(size=NUM_ROWS))):
        changed = rows.replaced({"target": (sales + generator.normal(0, 0.05, NUM_ROWS)).astype(np.float32)})
        objective = objective_of(config_of("lightgbm", data), changed)
        codes = target_encoding.fit(objective, changed, fold.fit)[0].codes[rows.features.index("shop")][:NUM_SHOPS]
        means = [changed.column("target")[fold.fit][shop[fold.fit] == number].mean() for number in range(NUM_SHOPS)]
        spread[name] = np.std(codes) * objective.scaling.scale / np.std(means)
    assert spread["signal"] > 0.98  # about 10 rows per shop: 0.5 with 10 more rows of the mean
    assert spread["noise"] < 0.2


def test_a_code_contains_neither_held_out_targets_nor_that_of_its_own_row(tmp_path: Path) -> None:
    """The code of a category would contain the target that is to be predicted."""
    data = prepared(tmp_path)
    rows, fold = rows_of(data), folds_of(data)[0]
    objective = objective_of(config_of("lightgbm", data), rows)

    def encoded_with(changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The encoded column and the codes of the categories, with other targets in the rows `changed`."""
        target = rows.column("target").copy()
        target[changed] += 100
        encoding, encoded = target_encoding.fit(objective, rows.replaced({"target": target}), fold.fit)
        assert not encoded.categories
        return encoded.column("shop"), encoding.codes[rows.features.index("shop")]

    column, codes = encoded_with(np.arange(0))
    column_without, codes_without = encoded_with(np.setdiff1d(np.arange(NUM_ROWS), fold.fit))
    assert codes.tobytes() == codes_without.tobytes()
    assert column.tobytes() == column_without.tobytes()
    one = fold.fit[:1]
    changed, _ = encoded_with(one)
    same_shop = fold.fit[rows.column("shop")[fold.fit] == rows.column("shop")[one]]
    assert changed[one] == column[one]
    assert np.abs(changed[same_shop] - column[same_shop]).max() > 1


def test_a_code_contains_no_target_of_its_group(tmp_path: Path) -> None:
    """Trees would trust the codes of rooms of a site; the rooms of a new site have no code."""
    room = np.arange(NUM_ROWS) % 400
    sales = np.random.default_rng(0).normal(room % 20)
    frame = pl.DataFrame({"room": [f"room{number}" for number in room], "site": room % 20, "sales": sales})
    data = prepared_of(tmp_path, frame, target="sales", group="site")
    rows, fold = rows_of(data), folds_of(data)[0]
    _, encoded = target_encoding.fit(objective_of(config_of("lightgbm", data), rows), rows, fold.fit)
    assert len(np.unique(encoded.column("room")[fold.fit])) == 1


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_a_member_predicts_with_its_codes(library: str, tmp_path: Path) -> None:
    """A member would predict from the numbers of the categories instead of their codes, or learn nothing from the codes."""
    data = prepared(tmp_path)
    settings = {"num_rounds": 60, "learning_rate": 0.2, "refit": True}
    summary = train.train(config_of(library, data, tmp_path / "member", **settings))
    assert summary["validation_root_mean_squared_error"] < 1.5  # 2.3 without the shops
    member = TreeMember(tmp_path / "member")
    features = np.array([[0, 0.5], [np.nan, 0.5], [NUM_SHOPS - 1, 0.5]], np.float32)
    first, missing, last = member.predict_features(features)
    names = next(one for one in folders.read_manifest(data)["features"] if one["name"] == "shop")["values"]
    for value, name in ((first, names[0]), (last, names[-1])):
        assert abs(value - 3 * np.sin(int(name.removeprefix("shop")))) < 1.0
    assert abs(missing) < 1.0
    parts = member.explain(features)
    assert np.allclose(parts.sum(axis=1), [first, missing, last], atol=1e-4)
    with pytest.raises(UserError, match="means of the target by category, which the ONNX file cannot hold"):
        export.export(tmp_path / "member", tmp_path / "member.onnx")


def test_copies_trained_by_tasks_have_the_same_codes(tmp_path: Path) -> None:
    """A task would train its copy on categories, and the member on means of the target."""
    data, settings = prepared(tmp_path), {"num_rounds": 30, "learning_rate": 0.2}
    alone, from_tasks = (config_of("lightgbm", data, tmp_path / name, **settings) for name in ("alone", "from_tasks"))
    train.train(alone)
    for number in range(NUM_FOLDS):
        single_copy.train_copy(from_tasks, number)
    train.train(from_tasks)
    for file in ("model.0.txt", "out_of_fold.parquet", target_encoding.FILE):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "from_tasks" / file).read_bytes()
