"""The plan of a fit of a table."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from copied_members import prepared_of

from ensemble import configuration, folders
from ensemble.data import cross_validation, out_of_fold
from ensemble.data.cross_validation import CrossValidation
from ensemble.metrics.ranking import ndcg_at_10
from ensemble.pipeline.run import share_of
from ensemble.recipes.table.plan import combining, plan
from ensemble.trees import train
from ensemble.trees.settings import TreesConfig

FORWARD = CrossValidation(scheme="forward", num_folds=2, embargo=0.0, begins=(0.0, 1.0, 2.0))
RANDOM = CrossValidation(scheme="random", num_folds=5)
GROUPS = CrossValidation(scheme="groups", num_folds=5)
COLUMNS = {"target": "y", "metric": "", "group": "group", "cluster": "cluster"}


@pytest.mark.parametrize(
    ("kind", "num_rows", "scheme", "expected"),
    [
        ("regression", 5000, FORWARD, {"combiner": "auto"}),
        ("regression", 100, FORWARD, {"combiner": "equal,simplex"}),
        ("binary", 5000, FORWARD, {"combiner": "simplex", "calibration": "none"}),
        ("ranking", 5000, FORWARD, {"combiner": "simplex"}),
        ("regression", 5000, RANDOM, {"combiner": "simplex,ridge"}),
        ("regression", 500, RANDOM, {"combiner": "simplex"}),
        ("regression", 5000, GROUPS, {"combiner": "simplex"}),
        ("binary", 5000, RANDOM, {"combiner": "simplex", "calibration": "platt,none"}),
    ],
)
def test_numbers_are_combined_as_is_best_for_the_next_blocks_and_with_few_rows(
    kind: str, num_rows: int, scheme: CrossValidation, expected: Any
) -> None:
    """Weights that fit only past blocks, a few rows or the division into folds would be used, or probabilities be calibrated
    to a past frequency."""
    rows = {"splits": {"train": {"rows": num_rows}}}
    assert combining({"task": {**COLUMNS, "kind": kind}, cross_validation.KEY: scheme.to_dict(), **rows}) == expected


@pytest.mark.parametrize(("num_features", "num_classes", "num_ranks"), [(14, 2, 1), (16, 26, 4), (200, 2, 4), (750, 2, 11)])
def test_a_gpu_trains_only_wide_networks_faster(num_features: int, num_classes: int, num_ranks: int) -> None:
    """A small network would wait for a GPU in each step, or a wide one would be trained on a CPU."""
    classes = [str(number) for number in range(num_classes)]
    manifest = {
        "splits": {"train": {"rows": 20_000}},
        "features": [{"name": f"x{number}"} for number in range(num_features)],
        "task": {**COLUMNS, "kind": "binary" if num_classes == 2 else "multiclass", "classes": classes},
    }
    tabm = next(member for member in plan(manifest, 4) if member.name == "tabm")
    assert num_ranks / 2 < tabm.cores_as_fast_as_gpu <= num_ranks


@pytest.mark.parametrize(
    ("num_rows", "num_features", "is_planned"),
    [(500, 5000, True), (1000, 5000, True), (2000, 5000, True), (2000, 9000, False), (6000, 5000, False)],
)
def test_a_wide_table_has_a_linear_model(num_rows: int, num_features: int, is_planned: bool) -> None:
    """The best member of many tables with more columns than rows would be taken for slow, or a slow one be trained."""
    features = [{"name": f"x{number}"} for number in range(num_features)]
    manifest = {"splits": {"train": {"rows": num_rows}}, "features": features, "task": {**COLUMNS, "kind": "regression"}}
    assert (plan(manifest, 2)[0].name == "linear") == is_planned


def test_members_of_thousands_of_columns_need_more_seconds() -> None:
    """CatBoost with a limit of 12 s took 50 s for one tree of each copy, so the fit would exceed its time limit by half."""

    def least_s(num_features: int) -> dict[str, float]:
        manifest = {
            "splits": {"train": {"rows": 120}},
            "features": [{"name": f"x{number}"} for number in range(num_features)],
            "task": {**COLUMNS, "kind": "binary"},
            cross_validation.KEY: CrossValidation(scheme="random", num_folds=8).to_dict(),
        }
        return {member.name: member.least_seconds for member in plan(manifest, 2) if not member.variant_of}

    few, many = least_s(100), least_s(20_000)
    assert few == {**dict.fromkeys(("linear", "lightgbm", "extra_trees", "catboost", "xgboost"), 2.0), "tabm": 15.0}
    assert all(15 < many[name] < 60 for name in few)
    assert many["catboost"] > many["xgboost"] > many["lightgbm"] > many["linear"] > many["extra_trees"]


def test_a_linear_model_of_minutes_needs_as_many_seconds() -> None:
    """It would be stopped at its first penalty, and the time be lost for the trees; or it would be left out of a fit whose
    limit is twice as long."""
    manifest = {
        "splits": {"train": {"rows": 2000}},
        "features": [{"name": f"x{number}"} for number in range(5000)],
        "task": {**COLUMNS, "kind": "regression"},
        cross_validation.KEY: CrossValidation(scheme="random", num_folds=8).to_dict(),
    }
    linear, *later = plan(manifest, 2)
    assert linear.name == "linear"
    assert 60 < linear.least_seconds < 80
    assert linear.least_seconds < 150 * share_of(linear, [member for member in later if not member.variant_of], 150)


@pytest.mark.parametrize("num_rows", [500, 50_000, 100_000])
def test_each_variant_has_settings_of_its_own(num_rows: int) -> None:
    """The time that a limit leaves would be spent on a repetition of a member, which adds little to the ensemble."""
    features = [{"name": f"x{number}"} for number in range(20)]
    manifest = {"splits": {"train": {"rows": num_rows}}, "features": features, "task": {**COLUMNS, "kind": "regression"}}
    settings = [member.settings for member in plan(manifest, 2) if member.kind == "trees"]
    assert len(settings) == 4 + 6 + (num_rows == 500)
    assert all(settings.count(one) == 1 for one in settings)


def test_members_minimise_different_errors_if_the_absolute_error_is_the_metric() -> None:
    """The ensemble would have members that are less different, or that all minimise another error than its own."""
    manifest = {"splits": {"train": {"rows": 500}}, "features": [{"name": "x"}]}
    of_absolute_error = {"linear", "extra_trees", "catboost", "xgboost"}
    for metric, expected in (("mean_absolute_error", of_absolute_error), ("root_mean_squared_error", set())):
        planned = plan({**manifest, "task": {**COLUMNS, "kind": "regression", "metric": metric}}, 2)
        squared = [member.settings["library"] for member in planned if member.settings.get("objective") == "regression"]
        assert set(squared) == expected


@pytest.mark.parametrize(("num_rows", "num_classes", "num_early"), [(500, 2, 0), (50_000, 2, 1), (50_000, 26, -3)])
def test_the_first_variants_are_trained_before_the_network(num_rows: int, num_classes: int, num_early: int) -> None:
    """The network would take the time of variants that help more; or it would come late where trees need one per class."""
    manifest = {
        "splits": {"train": {"rows": num_rows}},
        "features": [{"name": f"x{number}"} for number in range(20)],
        "task": {**COLUMNS, "kind": "multiclass", "classes": [str(number) for number in range(num_classes)]},
    }
    names = [member.name for member in plan(manifest, 2)]
    assert names.index("tabm") == names.index("xgboost") + 1 + num_early


@pytest.mark.parametrize(
    ("kind", "num_rows", "num_features", "expected"),
    [
        ("binary", 500, 16, {"extra_trees": (0.25, 200), "extra_trees_2": (1.0, 200)}),
        ("multiclass", 500, 16, {"extra_trees": (0.25, 200), "extra_trees_2": (1.0, 200)}),
        ("multiclass", 6000, 16, {"extra_trees": (0.25, 40), "extra_trees_2": (1.0, 40)}),
        ("multiclass", 7000, 16, {}),
        ("binary", 4000, 400, {"extra_trees": (0.05, 100)}),
        ("regression", 4000, 16, {"extra_trees": (1.0, 100)}),
        ("regression", 4000, 400, {"extra_trees": (0.5, 100)}),
        ("ranking", 4000, 16, {"extra_trees": (1.0, 100)}),
        ("binary", 10_000, 16, {}),
    ],
)
def test_forests_of_small_tables(kind: str, num_rows: int, num_features: int, expected: Any) -> None:
    """A forest of a large table would have gigabytes, or its splits would draw the wrong number of features."""
    manifest = {
        "splits": {"train": {"rows": num_rows}},
        "features": [{"name": f"x{number}"} for number in range(num_features)],
        "task": {**COLUMNS, "kind": kind, "classes": ["a", "b", "c"] if kind == "multiclass" else []},
    }
    forests = [member for member in plan(manifest, 2) if member.settings.get("library") == "extra_trees"]
    assert {
        member.name: (member.settings["column_fraction"], member.settings["num_rounds"]) for member in forests
    } == expected


def test_trees_of_large_tables_have_more_leaves() -> None:
    """In the time for a table of 250,000 rows, trees of 31 leaves would stay far behind, and CatBoost would come first."""
    manifest = {"splits": {"train": {"rows": 250_000}}, "features": [{"name": f"x{number}"} for number in range(20)]}
    members = [member for member in plan({**manifest, "task": {**COLUMNS, "kind": "binary"}}, 2) if not member.variant_of]
    assert [member.name for member in members] == ["lightgbm", "xgboost", "catboost", "tabm"]
    assert all(member.settings["max_leaves"] >= 127 for member in members[:3])


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_few_rows_of_a_class_are_told_apart(library: str, tmp_path: Path) -> None:
    """No leaf would reach the weight that suits other tables, and a member would give all rows one probability."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((2, 600))
    frame = pl.DataFrame({"a": values[0], "b": values[1], "y": np.where(values[0] >= np.sort(values[0])[-6], "yes", "no")})
    data = prepared_of(tmp_path, frame)
    members = [member for member in plan(folders.read_manifest(data), 1) if member.settings.get("library") == library]
    assert len(members) >= 2
    for member in members:
        paths = {"data": str(data), "out": str(tmp_path / member.name)}
        settings = {**member.settings, **paths, "learning_rate": 0.3, "num_rounds": 20, "threads": 1}
        train.train(configuration.from_dict(TreesConfig, settings))
        rows = pq.read_table(tmp_path / member.name / out_of_fold.FILE)
        is_rare = np.isin(rows["row_id"].to_numpy(), np.flatnonzero(frame["y"] == "yes"))
        prediction = rows["prediction"].to_numpy()
        assert is_rare.sum() == 6
        assert prediction[is_rare].mean() > 5 * prediction[~is_rare].mean()


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_few_groups_of_a_ranking_are_learned(library: str, tmp_path: Path) -> None:
    """The second derivatives of a group sum to about 1: hardly any leaf would reach the weight that suits other tables."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((90, 4))
    relevance = np.clip(np.round(2 + 1.5 * (values[:, 0] + 0.3 * generator.standard_normal(90))), 0, 4).astype(int)
    frame = pl.DataFrame({**dict(zip("abcd", values.T, strict=True)), "group": np.repeat([0, 1, 2], 30), "y": relevance})
    data = prepared_of(tmp_path, frame, task="ranking", group="group")
    member = next(member for member in plan(folders.read_manifest(data), 1) if member.name == library)
    paths = {"data": str(data), "out": str(tmp_path / library)}
    train.train(configuration.from_dict(TreesConfig, {**member.settings, **paths, "threads": 1}))
    rows = pq.read_table(tmp_path / library / out_of_fold.FILE)
    row_id = rows["row_id"].to_numpy()
    assert ndcg_at_10(relevance[row_id], rows["prediction"].to_numpy(), row_id // 30) > 0.88
