"""Features of many categories as means of the target."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ensemble import folders
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.recipes.table import prepare
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.trees import export, single_copy, target_encoding, threads, train
from ensemble.trees.objective import objective_of
from ensemble.trees.predict import TreeMember
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

NUM_ROWS, NUM_SHOPS, NUM_FOLDS = 2000, 150, 4


@pytest.fixture(autouse=True)
def openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.provide_openmp()
    monkeypatch.setattr(threads, "configure", lambda requested=0: 1)


def prepared(folder: Path) -> Path:
    """Sales by shop."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, NUM_SHOPS, NUM_ROWS)
    sales = generator.normal(0, 1, NUM_ROWS) + 3 * np.sin(shop)
    frame = pl.DataFrame({"shop": [f"shop{number}" for number in shop], "size": generator.random(NUM_ROWS), "sales": sales})
    frame.write_csv(folder / "shops.csv")
    prepare.prepare(
        PrepareConfig(source=(str(folder / "shops.csv"),), target="sales", out=str(folder / "data"), num_folds=NUM_FOLDS)
    )
    return folder / "data"


def test_neither_held_out_rows_nor_the_row_itself_are_in_a_number(tmp_path: Path) -> None:
    """A category's number would hold the answer that is to be predicted."""
    data = prepared(tmp_path)
    rows = TreeData(data, "train", folders.read_manifest(data))
    cv = CrossValidation.from_manifest(folders.read_manifest(data))
    assert cv is not None
    fold = cv.folds(data, rows.task.cluster)[0]
    objective = objective_of(TreesConfig(data=str(data), out="unused", library="lightgbm"), rows)

    def learned(changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The column and the numbers of the categories, with other targets in the rows `changed`."""
        target = rows.column("target").copy()
        target[changed] += 100
        encoding, encoded = target_encoding.fit(objective, rows.replaced({"target": target}), fold.fit)
        assert not encoded.categories
        return encoded.column("shop"), encoding.codes[rows.features.index("shop")]

    column, numbers = learned(np.arange(0))
    column_without, numbers_without = learned(np.setdiff1d(np.arange(NUM_ROWS), fold.fit))
    assert numbers.tobytes() == numbers_without.tobytes()
    assert column.tobytes() == column_without.tobytes()
    one = fold.fit[:1]
    changed, _ = learned(one)
    same_shop = fold.fit[rows.column("shop")[fold.fit] == rows.column("shop")[one]]
    assert changed[one] == column[one]
    assert np.abs(changed[same_shop] - column[same_shop]).max() > 1


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_a_member_keeps_its_numbers(library: str, tmp_path: Path) -> None:
    """It would predict from the numbers of the categories, or learn nothing from them."""
    data = prepared(tmp_path)
    config = {"num_rounds": 60, "learning_rate": 0.2, "threads": 1, "refit": True}
    summary = train.train(TreesConfig(data=str(data), out=str(tmp_path / "member"), library=library, **config))
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
    """A task would grow its copy from categories, and the member from means of the target."""
    data = prepared(tmp_path)
    config = {"num_rounds": 30, "learning_rate": 0.2, "threads": 1, "library": "lightgbm", "data": str(data)}
    alone, from_tasks = (TreesConfig(out=str(tmp_path / name), **config) for name in ("alone", "from_tasks"))
    train.train(alone)
    for number in range(NUM_FOLDS):
        single_copy.train_copy(from_tasks, number)
    train.train(from_tasks)
    for file in ("model.0.txt", "out_of_fold.parquet", target_encoding.FILE):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "from_tasks" / file).read_bytes()
