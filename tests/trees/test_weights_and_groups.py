"""Weights of rows and groups of a ranking: what reaches the libraries, and what is learned from it."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_rules import GROUP_SIZE, KINDS, NUM_ROWS, Columns, config, model, prepare, read, score

from ensemble import folders as manifest
from ensemble.errors import UserError
from ensemble.trees import distributed, train
from ensemble.trees.objective import dataset_of, grades, objective_of
from ensemble.trees.predict import TreeMember
from ensemble.trees.rows import TreeData

ROOT = Path(__file__).resolve().parents[2]

# Weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_0_is_none(kind: str, library: str, tmp_path: Path) -> None:
    """What is not to count would count: its target, its place in its group, or its values among the bins."""

    def weigh(found: Columns) -> Columns:
        drop = (found["row_id"] < 1000) & (found["row_id"] % 3 == 0)
        wrong = np.where(drop, 1 - found["target"] if kind == "binary" else 2 - found["target"].clip(0, 2), found["target"])
        return {**found, "target": wrong, "weight": np.where(drop, 0.0, 1.0), "first": np.where(drop, 99.0, found["first"])}

    def leave_out(found: Columns) -> Columns:
        keep = weigh(found)["weight"] > 0
        return {name: values[keep] for name, values in found.items()}

    for name, change in (("weighed", weigh), ("left", leave_out)):
        folder = prepare(tmp_path / name, kind, change, weight="weight")
        train.train(config(library, folder, tmp_path / f"{name}.out", num_rounds=8))
    assert model(tmp_path / "weighed.out") == model(tmp_path / "left.out")


def test_a_weight_of_2_is_the_row_twice(library: str, tmp_path: Path) -> None:
    """Weights would be ignored, or belong to other rows."""
    heavy = np.random.default_rng(7).random(NUM_ROWS["train"]) < 0.3

    def weigh(result: Columns) -> Columns:
        is_train = result["row_id"][0] == 0
        # The heavy rows have another truth, so that they can be told
        target = np.where(heavy, result["target"] + 2 * result["noise"], result["target"]) if is_train else result["target"]
        return {**result, "target": target, "weight": np.where(heavy, 2.0, 1.0) if is_train else result["weight"]}

    def ignore(result: Columns) -> Columns:
        return {**weigh(result), "weight": np.ones(len(result["row_id"]))}

    def double(result: Columns) -> Columns:
        result = ignore(result)
        if result["row_id"][0] != 0:
            return result
        return {name: np.concatenate([values, values[heavy]]) for name, values in result.items()}

    result = {}
    for name, folder in (
        # Without categories, of which LightGBM counts the rows
        ("plain", prepare(tmp_path / "plain", "regression", ignore, categories=False)),
        ("weighed", prepare(tmp_path / "weighed", "regression", weigh, weight="weight", categories=False)),
        ("double", prepare(tmp_path / "double", "regression", double, categories=False)),
    ):
        # Of the leaves' limits, LightGBM's 20 rows must not bind; and nothing is drawn
        settings = {"num_rounds": 10, "min_leaf_weight": 60.0, "row_fraction": 1.0, "column_fraction": 1.0}
        train.train(config(library, folder, tmp_path / f"{name}.out", early_stopping_rounds=10, max_leaves=8, **settings))
        result[name] = TreeMember(tmp_path / f"{name}.out").predict(folder, "test")["prediction"]
    apart = np.abs(result["plain"] - result["double"]).mean()
    assert np.abs(result["weighed"] - result["double"]).mean() < apart / 20
    assert apart > 0.02


def test_heavy_groups_decide_a_ranking(library: str, tmp_path: Path) -> None:
    """A group's weight would be lost, or given to another group."""

    def change(heavy: int) -> Callable[[Columns], Columns]:
        def of(found: Columns) -> Columns:
            of_even = found["group"] % 2 == 0
            target = np.where(of_even == (found["first"] > 0), 1.0, 0.0)  # in odd groups it falls with the first feature
            return {**found, "target": target, "weight": np.where(found["group"] % 2 == heavy, 5.0, 0.5)}

        return of

    for heavy, sign in ((0, 1), (1, -1)):
        folder = prepare(tmp_path / str(heavy), "ranking", change(heavy), weight="weight")
        train.train(config(library, folder, tmp_path / f"{heavy}.out", num_rounds=5))
        prediction = TreeMember(tmp_path / f"{heavy}.out").predict(folder, "test")["prediction"]
        assert sign * np.corrcoef(prediction, read(folder, "test")["first"] > 0)[0, 1] > 0.9


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    """A library would end in a traceback, or learn the opposite."""
    for name, weight in (("negative", -1.0), ("missing", np.nan)):
        change = lambda found, weight=weight: {**found, "weight": np.where(found["cluster"] == 9, weight, 1.0)}  # noqa: E731
        folder = prepare(tmp_path / name, "regression", change, weight="weight")
        with pytest.raises(UserError, match=rf"the weight weight is {weight:g}, but must be 0 or more: correct the data"):
            train.train(config("xgboost", folder, tmp_path / "out"))
    folder = prepare(tmp_path / "nothing", "regression", lambda found: {**found, "weight": 0 * found["weight"]}, "weight")
    with pytest.raises(UserError, match="no training row has a target and a weight"):
        train.train(config("xgboost", folder, tmp_path / "out"))


# Groups


def test_groups_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would be ranked against those of other groups, or features stand beside another row's relevance."""
    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)

    def change(found: Columns) -> Columns:
        return {
            **found,
            "weight": found["group"] + (found["cluster"] % 2),
            "other": np.where(found["first"] > 2, np.nan, 1.0),
        }

    folder = prepare(tmp_path / "data", "ranking", change, weight="weight")
    rows = TreeData(folder, "train", manifest.read_manifest(folder))
    dataset = dataset_of(objective_of(config("xgboost", folder, tmp_path), rows), rows)
    table = read(folder, "train")
    table = table[table["weight"] > 0].sort_values("group", kind="stable")
    assert dataset.group_sizes is not None
    assert np.array_equal(dataset.group_sizes, table.groupby("group").size())
    assert np.array_equal(dataset.target, table["target"])
    assert np.array_equal(dataset.rows.column("row_id"), table["row_id"])
    assert dataset.weight == pytest.approx(table.groupby("group")["weight"].transform("mean").to_numpy())
    features = table[rows.features].to_numpy()
    assert np.array_equal(dataset.rows.matrix(), features, equal_nan=True)
    assert np.array_equal(dataset.rows.feature_table().to_pandas().to_numpy(), features, equal_nan=True)
    objective = objective_of(config("xgboost", folder, tmp_path, target="other", objective="ranking"), rows)
    assert len(dataset_of(objective, rows).rows) == (table["first"] <= 2).sum()


def test_xgboost_gets_the_target_and_weight_of_each_row(
    rule_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XGBoost would rank all rows as one group, or learn by labels and weights of other rows or groups."""
    from ensemble.trees import xgb

    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)
    for kind in ("ranking", "regression"):
        rows = TreeData(rule_data(kind), "train", manifest.read_manifest(rule_data(kind)))
        settings = config("xgboost", rule_data(kind), tmp_path)
        dataset = dataset_of(objective_of(settings, rows), rows)
        per_row = np.arange(len(rows)).astype(np.float32)
        dataset = dataclasses.replace(dataset, weight=per_row if kind == "regression" else per_row // GROUP_SIZE)
        for memory in ("in_core", "low"):
            settings = dataclasses.replace(settings, memory=memory)
            matrix = xgb.matrix(settings, dataset, tmp_path, f"{kind}-{memory}")
            assert np.array_equal(matrix.get_label(), dataset.target)
            if kind == "ranking":
                assert np.array_equal(np.diff(matrix.get_uint_info("group_ptr")), dataset.group_sizes)
                assert np.array_equal(matrix.get_weight(), np.arange(len(rows) // GROUP_SIZE))
            else:
                assert np.array_equal(matrix.get_weight(), dataset.weight)


def test_large_groups_are_cut_for_lightgbm(rule_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of more than 10,000 products would end in LightGBM's traceback."""
    from ensemble.trees import lgbm

    assert lgbm.divided(np.array([3, 10_000, 10_001, 25_000])).tolist() == [3, 10_000, 5_000, 5_001, 8_333, 8_333, 8_334]
    monkeypatch.setattr(lgbm, "MAX_GROUP_ROWS", 7)
    train.train(config("lightgbm", rule_data("ranking"), tmp_path / "out"))
    result = TreeMember(tmp_path / "out").predict(rule_data("ranking"), "test")
    assert score("ndcg_at_10", result) > 0.8


def test_grades_are_places_within_the_group() -> None:
    """The worse of two products of a week would get the higher relevance, or equal ones different relevances."""
    generator = np.random.default_rng(0)
    sizes = np.array([1, 5, 40, 200])
    values = generator.integers(0, 60, sizes.sum()).astype(np.float32)
    result, start = grades(values, sizes), 0
    for size in sizes:
        own, of_group = values[start : start + size], result[start : start + size]
        assert of_group.tolist() == [31 * (own < value).sum() // size for value in own]
        start += size
    assert (result.min(), result.max()) == (0, 30)


def test_groups_are_not_parted_over_ranks(rule_data: Any, tmp_path: Path) -> None:
    """Each rank would rank a part of every group, and nobody know it."""
    script = str(ROOT / "scripts/train_trees.py")
    line = [sys.executable, script, f"data={rule_data('ranking')}", f"out={tmp_path / 'out'}", "threads=1"]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(distributed.free_port())}
    ranks = [
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        ends = [(rank.communicate(timeout=120)[1], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for errors, code in ends:
        assert code == 2
        assert "error: objective=ranking keeps the rows of a group together: train it on one rank" in errors
    assert list(tmp_path.iterdir()) == []
