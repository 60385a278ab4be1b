"""Predictions in blocks: the same bits as from one matrix, few blocks at a time; and the contributions of features."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import copied_members
import flat_data
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from tree_members import config_of, features_of, rows_of

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees import contributions, predict, train
from ensemble.trees.predict import TreeMember, library_module


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "ROWS_PER_BLOCK", 23)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_blocks_are_predicted_like_one_matrix(
    num_threads: int, trained: Path, prepared: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prediction would belong to another row, be lost at the end of a block, or depend on the number of threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(num_threads))
    library = library_module(trained.name)
    rows = rows_of(prepared, "test")
    assert len(rows) > 10 * predict.ROWS_PER_BLOCK
    whole = library.predict(library.load(trained / library.FILE), features_of(rows))
    assert np.array_equal(TreeMember(trained).predict(prepared, "test")["prediction"], whole.astype(np.float64))
    assert np.array_equal(np.concatenate(list(predict.in_blocks(np.copy, rows))), features_of(rows), equal_nan=True)


def test_features_in_another_order_are_refused(tmp_path: Path) -> None:
    """Each feature would be read as another one, and the predictions would be wrong without a message."""
    splits = {name: flat_data.columns(60, seed=number) for number, name in enumerate(("train", "validation", "forecast"))}
    data = flat_data.write(tmp_path / "data", splits)
    train.train(config_of("xgboost", data, tmp_path / "member", num_rounds=2))
    features = folders.read_manifest(data)["features"][::-1]
    other = flat_data.write(tmp_path / "other", splits, features=features)
    with pytest.raises(
        UserError, match=r"has the features c, x2, x1, x0, but .* learned x0, x1, x2, c: prepare the same feat"
    ):
        TreeMember(tmp_path / "member").predict(other, "forecast")


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    """A prediction would end in a traceback, and contributions would be a file without rows."""
    rows = flat_data.columns(60)
    splits = {"train": rows, "validation": rows, "test": {name: values[:0] for name, values in rows.items()}}
    data = flat_data.write(tmp_path / "data", splits)
    train.train(config_of("xgboost", data, tmp_path / "member", num_rounds=1))
    with pytest.raises(UserError, match=f"the split test of {data} has no rows: prepare data with rows in it"):
        TreeMember(tmp_path / "member").predict(data, "test")


def test_every_thread_has_a_block(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of few rows, as in a request to the service, would be predicted by one thread while the others wait."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    rows = rows_of(prepared, "test")
    assert len(rows) < predict.ROWS_PER_BLOCK
    sizes = list(predict.in_blocks(len, rows))
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 4


def test_few_blocks_are_in_memory(prepared: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contributions of millions of rows would all be in memory while the first are written."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    begun: list[int] = []
    blocks = predict.in_blocks(lambda block: begun.append(len(block)), rows_of(prepared, "test"))
    next(blocks)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(0.2)
    assert len(begun) <= 5
    assert len(list(blocks)) + 1 == len(begun) > 10


def test_contributions_sum_to_the_prediction(trained: Path, prepared: Path, small_blocks: None, tmp_path: Path) -> None:
    """The numbers would explain another prediction, or have the id of another row or the name of another feature."""
    file = TreeMember(trained).write_contributions(prepared, "test", "mine", tmp_path / "out")
    assert file == tmp_path / "out/mine.test.contributions.parquet"
    table, rows = pq.read_table(file, page_checksum_verification=True), rows_of(prepared, "test")
    assert table.column_names == ["row_id", contributions.BASE, *rows.features]
    assert {str(kind) for kind in table.schema.types[1:]} == {"float"}
    result = TreeMember(trained).predict(prepared, "test")
    assert np.array_equal(table["row_id"].to_numpy(), result["row_id"])
    parts = np.stack([table[name].to_numpy() for name in table.column_names[1:]], axis=1).astype(np.float64)
    log_odds = np.log(result["prediction"] / (1 - result["prediction"]))
    assert np.abs(parts.sum(axis=1) - log_odds).max() < 1e-4
    assert np.ptp(parts[:, 0]) == 0 < np.abs(parts[:, 1:]).max()
    importance = json.loads((trained / "importance.json").read_text())
    assert {name for name, gain in importance.items() if gain > 0} == {
        name for name in rows.features if table[name].to_numpy().any()
    }
    metadata = json.loads(table.schema.metadata[b"ensemble"])
    assert metadata["fingerprint"] == folders.read_manifest(prepared)["fingerprint"]
    assert (metadata["member"], metadata["split"], metadata["unit"]) == ("mine", "test", "log odds")
    picture = file.with_suffix(".png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize("name", ["a rare class", "rare"])  # before the other classes, and after them
@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "catboost", "extra_trees", "linear"])
def test_a_copy_without_rows_of_a_class_explains_the_others(library: str, name: str, tmp_path: Path) -> None:
    """A row would have the reasons of another class, or no new row could be predicted."""
    if library == "catboost":
        pytest.importorskip("catboost")
    frame = copied_members.frame_of("multiclass")
    frame = frame.with_columns(y=pl.when(pl.int_range(len(frame)) < 1).then(pl.lit(name)).otherwise("y"))
    data, member = copied_members.prepared_of(tmp_path, frame, drop=("day",)), tmp_path / "member"
    train.train(copied_members.config_of(library, data, member))
    assert all(TreeMember(member).predict(data, "forecast")["reasons"])
    module, features = library_module(library), features_of(rows_of(data, "forecast"))
    for model, _ in copied_members.models_of(member):
        shares, parts = module.predict(model, features), module.contributions(model, features)
        assert parts.shape == (*shares.shape, features.shape[1] + 1)
        sums, likeliest = parts.sum(axis=2), shares.argmax(axis=1)[:, None]
        row, column = np.nonzero(shares > 1e-6)
        log_ratios = np.log(np.maximum(shares, 1e-6) / np.take_along_axis(shares, likeliest, axis=1))
        differences = sums - np.take_along_axis(sums, likeliest, axis=1)
        assert differences[row, column] == pytest.approx(log_ratios[row, column], abs=1e-3)


def test_the_picture_has_size_and_direction() -> None:
    """A feature that lowers the prediction would be drawn as one that raises it, or a strong one as a weak one."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((500, 4)).astype(np.float32)
    parts = features * np.array([3, -2, 0, 0]) + np.array([0, 0, 0, 1]) * (generator.random((500, 1)) - 0.5)
    features[:100, 0] = np.nan
    features[:, 2] = 7
    summary = contributions.Summary(4)
    for begin in range(0, 500, 130):
        summary.add(features[begin : begin + 130], parts[begin : begin + 130])
    assert summary.size() == pytest.approx(np.abs(parts).mean(axis=0))
    assert summary.direction()[:3] == pytest.approx([1, -1, 0])
    assert abs(summary.direction()[3]) < 0.2


def test_a_constant_feature_has_no_direction() -> None:
    """The contributions of a linear model to a feature of one value, such as those of the week of a forecast, are constant
    too: the rounding errors of their sums would be drawn as a direction."""
    values = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
    summary = contributions.Summary(50)
    for _ in range(3):
        summary.add(*np.repeat(values[:, None], 1000, axis=1))
    assert summary.direction().tolist() == [0] * 50


def test_contributions_that_fail_leave_no_files(prepared: Path, tmp_path: Path) -> None:
    """An incomplete file would be read as a complete one, or stay beside the predictions for ever."""

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield np.zeros((5, len(rows.features))), np.zeros((5, len(rows.features) + 1))
        raise RuntimeError("out of memory")

    rows = rows_of(prepared, "test")
    metadata: dict[str, Any] = {"output": "score", "unit": "score", "member": "mine", "split": "test"}
    with pytest.raises(RuntimeError, match="out of memory"):
        contributions.write(tmp_path / "mine.test.contributions.parquet", rows, blocks(), metadata)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"the contributions .* cannot be written: "):
        contributions.write(tmp_path / "file/mine.parquet", rows, blocks(), metadata)
