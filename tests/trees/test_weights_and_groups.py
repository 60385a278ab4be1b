"""Weights of rows and groups of a ranking: the values that the libraries get, and their effect on the predictions."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_rules import GROUP_SIZE, KINDS, NUM_ROWS, Columns, config, prepare, read, score
from tree_members import SCRIPT, Start, ends, model, rows_of, start_ranks, words

from ensemble.errors import UserError
from ensemble.trees import train
from ensemble.trees.objective import ValidationMetrics, dataset_of, grades, objective_of
from ensemble.trees.predict import TreeMember


def test_a_refit_does_not_join_groups_of_different_splits(library: str, tmp_path: Path) -> None:
    """Two queries with the same number, of train and of validation, would become one query of twice as many rows."""
    folder = prepare(tmp_path / "data", "ranking", lambda table: {**table, "group": table["group"] - table["group"].min()})
    message = r"refit=true joins the splits train and validation, which both have the group 0: prepare the data with other"
    with pytest.raises(UserError, match=message):
        train.train(config(library, folder, tmp_path / "out", refit=True))
    train.train(config(library, folder, tmp_path / "out", num_rounds=2))


def test_a_short_ranking_is_learned(library: str, tmp_path: Path) -> None:
    """By LightGBM no leaf would reach the default weight, and all rows of a group would have the same score."""

    def shorten(table: Columns) -> Columns:
        is_kept = (table["group"] < 20) | (len(table["group"]) < NUM_ROWS["train"])
        return {name: values[is_kept] for name, values in table.items()}

    folder = prepare(tmp_path / "data", "ranking", shorten)
    settings = config(library, folder, tmp_path / "out", min_leaf_weight=0.0)
    train.train(settings)
    result = TreeMember(tmp_path / "out").predict(folder, "validation")
    blind = score("ndcg_at_10", result, np.zeros(len(result["target"])))
    assert score("ndcg_at_10", result) > blind + 0.5 * (1 - blind)


def test_a_ranking_of_few_large_groups_is_learned(tmp_path: Path) -> None:
    """LightGBM's second derivatives grow with the groups, not with their rows: no leaf would reach a weight by rows."""
    folder = prepare(tmp_path / "data", "ranking", lambda table: {**table, "group": table["group"] % 2})
    train.train(config("lightgbm", folder, tmp_path / "out", min_leaf_weight=0.0))
    result = TreeMember(tmp_path / "out").predict(folder, "validation")
    assert score("ndcg_at_10", result) > score("ndcg_at_10", result, np.zeros(len(result["target"]))) + 0.2


# Weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_weight_0_is_ignored(kind: str, library: str, tmp_path: Path) -> None:
    """The target of such a row, its rank within its group, or its values in the bins would change the model."""

    def weigh(table: Columns) -> Columns:
        drop = (table["row_id"] < 1000) & (table["row_id"] % 3 == 0)
        wrong = np.where(drop, 1 - table["target"] if kind == "binary" else 2 - table["target"].clip(0, 2), table["target"])
        return {**table, "target": wrong, "weight": np.where(drop, 0.0, 1.0), "first": np.where(drop, 99.0, table["first"])}

    def leave_out(table: Columns) -> Columns:
        keep = weigh(table)["weight"] > 0
        return {name: values[keep] for name, values in table.items()}

    for name, change in (("weighed", weigh), ("left", leave_out)):
        folder = prepare(tmp_path / name, kind, change, weight="weight")
        train.train(config(library, folder, tmp_path / f"{name}.out", num_rounds=8))
    assert model(tmp_path / "weighed.out") == model(tmp_path / "left.out")


@pytest.mark.parametrize("kind", ["binary", "regression", "ranking"])
def test_the_unit_of_the_weights_does_not_matter(kind: str, library: str, tmp_path: Path) -> None:
    """With weights that sum to 1, no leaf would reach `min_leaf_weight`, and all rows would have the same prediction."""
    for unit in (1.0, 2.0**-12):
        weigh = lambda table, unit=unit: {**table, "weight": unit * (1 + table["group"] % 3)}  # noqa: E731
        folder = prepare(tmp_path / f"{unit}", kind, weigh, weight="weight")
        train.train(config(library, folder, tmp_path / f"{unit}.out", num_rounds=8, min_leaf_weight=0.0))
    assert model(tmp_path / "1.0.out") == model(tmp_path / f"{2.0**-12}.out")


def test_a_ranking_is_validated_without_the_unit_of_its_weights(tmp_path: Path) -> None:
    """With small weights NDCG would be 1 after one tree, since all rows of a group together would not fill one place."""
    scores = []
    for unit in (1.0, 0.01, 1000.0):
        weigh = lambda table, unit=unit: {**table, "weight": unit * (table["row_id"] % 3)}  # noqa: E731
        folder = prepare(tmp_path / f"{unit}", "ranking", weigh, weight="weight")
        rows = rows_of(folder)
        validate = ValidationMetrics(objective_of(config("xgboost", folder, tmp_path), rows), rows)
        scores.append(validate(np.random.default_rng(0).random(len(rows)))["ndcg_at_10"])
    assert scores[0] < 0.95
    assert scores[1:] == pytest.approx([scores[0]] * 2)


def test_a_weight_of_2_equals_two_rows(library: str, tmp_path: Path) -> None:
    """Weights would be ignored, or belong to other rows."""
    heavy = np.random.default_rng(7).random(NUM_ROWS["train"]) < 0.3

    def weigh(result: Columns) -> Columns:
        is_train = result["row_id"][0] == 0
        # The heavy rows follow another rule, so that their weight changes the predictions
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
        # No leaf is so small that LightGBM's limit of 20 rows has an effect, and nothing is drawn at random
        settings = {"num_rounds": 10, "row_fraction": 1.0, "column_fraction": 1.0}
        unit = 1 + heavy.mean() if name == "weighed" else 1.0  # weights are relative to their mean, as penalties must be
        settings |= {"min_leaf_weight": 60.0 / unit, "l2": 5.0 / unit}
        train.train(config(library, folder, tmp_path / f"{name}.out", early_stopping_rounds=10, max_leaves=8, **settings))
        result[name] = TreeMember(tmp_path / f"{name}.out").predict(folder, "test")["prediction"]
    apart = np.abs(result["plain"] - result["double"]).mean()
    assert np.abs(result["weighed"] - result["double"]).mean() < apart / 20
    assert apart > 0.02


def test_a_ranking_follows_the_groups_with_large_weights(library: str, tmp_path: Path) -> None:
    """The weight of a group would be lost, or belong to another group."""

    def change(heavy: int) -> Callable[[Columns], Columns]:
        def weigh(table: Columns) -> Columns:
            is_even = table["group"] % 2 == 0
            target = np.where(is_even == (table["first"] > 0), 1.0, 0.0)  # in odd groups it falls with the first feature
            return {**table, "target": target, "weight": np.where(table["group"] % 2 == heavy, 5.0, 0.5)}

        return weigh

    for heavy, sign in ((0, 1), (1, -1)):
        folder = prepare(tmp_path / str(heavy), "ranking", change(heavy), weight="weight")
        train.train(config(library, folder, tmp_path / f"{heavy}.out", num_rounds=5))
        prediction = TreeMember(tmp_path / f"{heavy}.out").predict(folder, "test")["prediction"]
        assert sign * np.corrcoef(prediction, read(folder, "test")["first"] > 0)[0, 1] > 0.9


def test_invalid_weights_are_refused(tmp_path: Path) -> None:
    """A library would end in a traceback, or learn the opposite."""
    for name, weight in (("negative", -1.0), ("missing", np.nan)):
        change = lambda table, weight=weight: {**table, "weight": np.where(table["cluster"] == 9, weight, 1.0)}  # noqa: E731
        folder = prepare(tmp_path / name, "regression", change, weight="weight")
        with pytest.raises(UserError, match=rf"the weight weight is {weight:g}, but must be 0 or more: correct the data"):
            train.train(config("xgboost", folder, tmp_path / "out"))
    folder = prepare(tmp_path / "nothing", "regression", lambda table: {**table, "weight": 0 * table["weight"]}, "weight")
    with pytest.raises(UserError, match="no training row has a value of target and a weight above 0"):
        train.train(config("xgboost", folder, tmp_path / "out"))


# Groups


def test_groups_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would be ranked against those of other groups, or get the relevance of another row."""
    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)

    def change(table: Columns) -> Columns:
        weight, other = table["group"] + (table["cluster"] % 2), np.where(table["first"] > 2, np.nan, 1.0)
        return {**table, "weight": weight, "other": other}

    folder = prepare(tmp_path / "data", "ranking", change, weight="weight")
    rows = rows_of(folder)
    dataset = dataset_of(objective_of(config("xgboost", folder, tmp_path), rows), rows)
    table = read(folder, "train")
    table = table[table["weight"] > 0].sort_values("group", kind="stable")
    assert dataset.group_sizes is not None
    assert np.array_equal(dataset.group_sizes, table.groupby("group").size())
    assert np.array_equal(dataset.target, table["target"])
    assert np.array_equal(dataset.rows.column("row_id"), table["row_id"])
    weight = table.groupby("group")["weight"].transform("mean").to_numpy()
    assert dataset.weight == pytest.approx(weight / weight.mean())
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
        rows = rows_of(rule_data(kind))
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


def test_large_groups_are_divided_for_lightgbm(rule_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of more than 10,000 products would end in LightGBM's traceback."""
    from ensemble.trees import lgbm

    assert lgbm.divided(np.array([3, 10_000, 10_001, 25_000])).tolist() == [3, 10_000, 5_000, 5_001, 8_333, 8_333, 8_334]
    monkeypatch.setattr(lgbm, "MAX_GROUP_ROWS", 7)
    train.train(config("lightgbm", rule_data("ranking"), tmp_path / "out"))
    result = TreeMember(tmp_path / "out").predict(rule_data("ranking"), "test")
    assert score("ndcg_at_10", result) > 0.8


def test_the_order_of_rows_does_not_decide_how_large_groups_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file sorted by target, each part of a group would have rows of about one relevance: NDCG@10 of 0.58, not 0.70."""

    def sort(table: Columns) -> Columns:
        order = np.argsort(table["target"], kind="stable")
        in_order = {name: values[order] for name, values in table.items()}
        return {**in_order, "group": in_order["group"] % 4, "row_id": table["row_id"]}

    monkeypatch.setattr("ensemble.trees.lgbm.MAX_GROUP_ROWS", 50)
    folder = prepare(tmp_path / "data", "ranking", sort)
    train.train(config("lightgbm", folder, tmp_path / "out", min_leaf_weight=0.0))
    assert score("ndcg_at_10", TreeMember(tmp_path / "out").predict(folder, "validation")) > 0.64


def test_grades_are_ranks_within_the_group() -> None:
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


def test_groups_are_not_divided_over_ranks(rule_data: Any, tmp_path: Path, start: Start) -> None:
    """Each rank would rank a part of every group, without a message."""
    line = [SCRIPT, *words(data=rule_data("ranking"), out=tmp_path / "out", threads=1)]
    for code, _, errors in ends(start_ranks(start, [line] * 2)):
        assert code == 2
        assert "error: objective=ranking keeps the rows of a group together: train it on one rank" in errors
    assert list(tmp_path.iterdir()) == []
