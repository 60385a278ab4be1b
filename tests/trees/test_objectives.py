"""Every objective in both libraries, on small tables with a known rule: what is learned, scored, and refused."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ensemble import folders as manifest
from ensemble import predictions
from ensemble.arrow import TableWriter
from ensemble.commands import predict
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.predictor import fit
from ensemble.task import Task
from ensemble.trees import boosting, distributed, threads, train
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.contributions import of_classes
from ensemble.trees.objective import OUTPUT_OF, dataset_of, grades, objective_of
from ensemble.trees.predict import MODULES, TreeMember
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

ROOT = Path(__file__).resolve().parents[2]
FILES = {"xgboost": "model.ubj", "lightgbm": "model.txt"}
METRICS = {
    "binary": "average_precision",
    "multiclass": "multiclass_log_loss",
    "regression": "root_mean_squared_error",
    "ranking": "ndcg_at_10",
}
KINDS = list(METRICS)
NUM_ROWS = {"train": 1600, "validation": 800, "test": 800, "forecast": 60}
NUM_CODES = 30
GROUP_SIZE = 20
Columns = dict[str, np.ndarray]


def module(library: str) -> ModuleType:
    return importlib.import_module(MODULES[library])


# Data


def columns(split: str) -> Columns:
    """Two features that matter, the second not always there, a code whose parity matters, and one feature of noise.

    `truth` is a number of which `noisy` is seen; groups do not stand together.
    """
    num_rows = NUM_ROWS[split]
    generator = np.random.default_rng(list(NUM_ROWS).index(split))
    first, second, noise = generator.standard_normal((3, num_rows)).round(1)
    code = generator.integers(NUM_CODES, size=num_rows).astype(float)
    truth = first + 0.7 * second + 0.8 * (code % 2)
    second[generator.random(num_rows) < 0.1] = np.nan
    code[generator.random(num_rows) < 0.05] = np.nan
    return {
        "row_id": 1000 * list(NUM_ROWS).index(split) + np.arange(num_rows),
        "group": np.arange(num_rows) % (num_rows // GROUP_SIZE),
        "cluster": np.arange(num_rows) // 3,
        "first": first,
        "second": second,
        "noise": noise,
        "code": code,
        "truth": truth,
        "noisy": truth + 0.5 * generator.standard_normal(num_rows),
        "weight": np.ones(num_rows),
    }


def target_of(kind: str, found: Columns) -> np.ndarray:
    noisy = found["noisy"]
    return {
        "binary": noisy > 1.5,
        "multiclass": np.digitize(noisy, [-0.3, 1.1]),
        "regression": noisy,
        "ranking": np.clip(np.floor(noisy + 1), 0, 4),
    }[kind]


def prepare(
    folder: Path,
    kind: str,
    change: Callable[[Columns], Columns] = lambda result: result,
    weight: str = "",
    categories: bool = True,
) -> Path:
    """A folder of prepared data; `change` may put other columns in the place of some, and other targets as `target`."""
    kinds = {"row_id": pa.int64(), "group": pa.int32(), "cluster": pa.int32()}
    for split in NUM_ROWS:
        result = columns(split)
        result["target"] = target_of(kind, result)
        result = change(result)
        if split == "forecast":
            result["target"] = np.full(len(result["row_id"]), np.nan)
        schema = pa.schema([(name, kinds.get(name, pa.float32())) for name in result])
        with TableWriter(folder / "rows" / split, schema) as writer:
            writer.write(pa.table([pa.array(result[name], kinds.get(name, pa.float32())) for name in result], schema=schema))
    task = Task(
        kind=kind, target="target", metric=METRICS[kind], group="group", cluster="cluster", weight=weight,
        classes=("low", "middle", "high") if kind == "multiclass" else (),
    )  # fmt: skip
    features: list[dict[str, Any]] = [{"name": name} for name in ("first", "second", "noise", "code")]
    if categories:
        features[3]["categories"] = NUM_CODES
    about = {
        "kind": "prepared data", "recipe": "small", "task": dataclasses.asdict(task), "features": features,
        "splits": {split: {"rows": len(read(folder, split))} for split in NUM_ROWS},
        "categories": [], "config": {}, "has_text": False,
    }  # fmt: skip
    manifest.write_manifest(folder, about)
    return folder


def read(folder: Path, split: str) -> Any:
    from ensemble.arrow import open_table

    return open_table(folder / "rows" / split).to_pandas()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of prepared data for a kind of task; it is shared, and not to be changed."""
    folders: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = prepare(tmp_path_factory.mktemp("data") / kind, kind)
        return folders[kind]

    return of


def config(library: str, data: Path, out: Path, **settings: Any) -> TreesConfig:
    values: dict[str, Any] = {"num_rounds": 40, "early_stopping_rounds": 10, "learning_rate": 0.15, "min_leaf_weight": 1.0}
    values |= {"threads": 1, **settings}
    return TreesConfig(library=library, data=str(data), out=str(out), **values)  # type: ignore[arg-type]


def model(out: Path) -> bytes:
    (file,) = (out / name for name in FILES.values() if (out / name).exists())
    return file.read_bytes()


def history_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def score(metric: str, found: dict[str, Any], prediction: np.ndarray | None = None) -> float:
    prediction = found["prediction"] if prediction is None else prediction
    return METRIC_FUNCTIONS[metric].function(found["target"], prediction, found["group"])


# What is learned


@pytest.mark.parametrize("kind", KINDS)
def test_each_objective_learns(kind: str, library: str, data: Any, tmp_path: Path) -> None:
    """An objective would get the wrong labels or groups, or its output be misread by the ensemble."""
    metric, out = METRICS[kind], tmp_path / library
    summary = train.train(config(library, data(kind), out))
    assert (summary["objective"], summary["target"], summary["metric"]) == (kind, "target", metric)
    result = TreeMember(out).predict(data(kind), "test")
    file = tmp_path / "member.test.parquet"
    predictions.write(file, predictions.Predictions(**result, member="member", split="test"))
    assert predictions.read(file).output == OUTPUT_OF[kind] == summary["output"]
    num_rows = NUM_ROWS["test"]
    if kind == "multiclass":
        assert result["prediction"].shape == (num_rows, 3)
        assert predictions.read(file).classes == ("low", "middle", "high")
        constant = np.tile(np.bincount(result["target"].astype(int)) / num_rows, (num_rows, 1))
    else:
        assert result["prediction"].shape == (num_rows,)
        constant = np.full(num_rows, result["target"].mean())
    ours, blind = score(metric, result), score(metric, result, constant)
    assert ours > blind + 0.5 * (1 - blind) if METRIC_FUNCTIONS[metric].higher_is_better else ours < 0.7 * blind, (
        ours,
        blind,
    )
    importance = json.loads((out / "importance.json").read_text())
    assert next(iter(importance)) == "first"
    assert list(importance)[-1] == "noise"
    assert {"log_loss" in entry for entry in history_of(out)} == {kind == "binary"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_forecast_of_any_kind_has_reasons(kind: str, library: str, data: Any, tmp_path: Path) -> None:
    """The forecast would crash where there are several classes, or give the reasons of another one."""
    train.train(config(library, data(kind), tmp_path / "out", num_rounds=10))
    result = TreeMember(tmp_path / "out").predict(data(kind), "forecast")
    assert np.isnan(result["target"]).all()
    rows = TreeData(data(kind), "forecast", manifest.read_manifest(data(kind)))
    (features,) = rows.batches()
    library_module = module(library)
    booster = library_module.load(tmp_path / "out" / FILES[library])
    scaling = Scaling.all_from_summary(manifest.read_json(tmp_path / "out/summary.json"), 1)[0]
    assert scaling.is_identity == (kind != "regression")
    likeliest = result["prediction"].argmax(axis=1) if kind == "multiclass" else None
    parts = scaling.parts(of_classes(library_module.contributions(booster, features), likeliest))[:, :-1]
    assert parts.shape == features.shape
    if kind == "multiclass":
        # Softmax of the likeliest class rises with its parts: its log odds by the others' cannot be had from them alone
        high = parts[:, 0][likeliest == 2]
        assert np.corrcoef(high, features[likeliest == 2, 0])[0, 1] > 0.5
        low = parts[:, 0][likeliest == 0]
        assert np.corrcoef(low, features[likeliest == 0, 0])[0, 1] < -0.5
    strongest = [sorted(row[row != 0], key=abs, reverse=True) for row in parts]
    for row, (reasons, expected) in enumerate(zip(result["reasons"], strongest, strict=True)):
        of = [reason for reason in reasons if kind != "multiclass" or reason["class"] == likeliest[row]]
        assert [reason["contribution"] for reason in of] == pytest.approx(expected, abs=1e-6)
        assert kind != "multiclass" or len({reason["class"] for reason in reasons}) == 2


def test_missing_values_are_learned_from(library: str, tmp_path: Path) -> None:
    """Missing values would be taken for zeros, or rows with them be left out."""

    def change(result: Columns) -> Columns:
        return {**result, "target": np.where(np.isnan(result["second"]), 3.0, 0.0) + 0.1 * result["noise"]}

    folder = prepare(tmp_path / "data", "regression", change)
    train.train(config(library, folder, tmp_path / "out", num_rounds=80))
    result = TreeMember(tmp_path / "out").predict(folder, "test")
    assert score("root_mean_squared_error", result) < 0.25 < result["target"].std() / 3


def test_codes_are_no_quantities(library: str, tmp_path: Path) -> None:
    """Categories would be cut at thresholds, and an odd one needs as many of those as there are codes."""

    def change(found: Columns) -> Columns:
        return {**found, "target": found["code"] % 2 == 1}

    scores = {}
    for name, categories in (("codes", True), ("numbers", False)):
        folder = prepare(tmp_path / name, "binary", change, categories=categories)
        train.train(config(library, folder, tmp_path / f"{name}.out", num_rounds=3, max_leaves=4))
        scores[name] = score("average_precision", TreeMember(tmp_path / f"{name}.out").predict(folder, "test"))
    assert scores["codes"] > 0.95
    assert scores["numbers"] < 0.7


def test_a_code_that_was_never_seen_is_predicted(library: str, tmp_path: Path) -> None:
    """A library would refuse the row, crash, or take the code for another one's."""

    def change(result: Columns) -> Columns:
        unseen = (result["row_id"] < 1000) & (result["code"] >= 28)  # in train
        return {**result, "code": np.where(unseen, np.nan, result["code"])}

    folder = prepare(tmp_path / "data", "regression", change)
    train.train(config(library, folder, tmp_path / "out"))
    result = TreeMember(tmp_path / "out").predict(folder, "test")
    assert (read(folder, "test")["code"] == 29).any()
    assert np.isfinite(result["prediction"]).all()
    assert score("root_mean_squared_error", result) < 0.8


@pytest.mark.parametrize("code", [-1.0, 0.5, float(NUM_CODES)])
def test_codes_that_are_none_are_refused(code: float, library: str, tmp_path: Path) -> None:
    """A library would crash, or round the code to another one."""
    folder = prepare(tmp_path / "data", "binary", lambda found: {**found, "code": np.where(found["code"] == 3, code, 2)})
    with pytest.raises(UserError, match=rf"the feature code is {code:g}, but must be the number of a category, 0 to 29"):
        train.train(config(library, folder, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


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
        with pytest.raises(UserError, match=rf"the weight weight is {weight:g}, and must be 0 or more"):
            train.train(config("xgboost", folder, tmp_path / "out"))
    folder = prepare(tmp_path / "nothing", "regression", lambda found: {**found, "weight": 0 * found["weight"]}, "weight")
    with pytest.raises(UserError, match="no training row has a target and a weight"):
        train.train(config("xgboost", folder, tmp_path / "out"))


# Constraints


@pytest.mark.parametrize("kind", ["binary", "regression", "ranking"])
def test_monotone_holds(kind: str, library: str, tmp_path: Path) -> None:
    """A price that falls would lower a forecast somewhere, though the user ruled that out; or another feature be bound."""

    def change(found: Columns) -> Columns:
        wave = np.sin(2 * found["first"]) + 0.5 * found["noise"] + 0.2 * np.nan_to_num(found["second"])
        target = wave > 0.5 if kind == "binary" else wave if kind == "regression" else np.clip(np.round(wave + 1), 0, 3)
        return {**found, "target": target}

    folder = prepare(tmp_path / "data", kind, change)
    others = np.random.default_rng(0).standard_normal((20, 4))
    grid = np.repeat(others[:, None, :], 60, axis=1).astype(np.float32)
    grid[:, :, 0] = np.linspace(-3, 3, 60)
    grid[:, :, 3] = np.arange(20)[:, None]
    for name, monotone in (("free", {}), ("rising", {"first": 1}), ("falling", {"first": -1, "noise": 1})):
        train.train(config(library, folder, tmp_path / name, monotone=monotone, num_rounds=20, early_stopping_rounds=20))
        booster = module(library).load(tmp_path / name / FILES[library])
        steps = np.diff(module(library).predict(booster, grid.reshape(-1, 4)).reshape(20, 60), axis=1)
        rises, falls = (steps > 1e-6).any(), (steps < -1e-6).any()
        assert (rises, falls) == (name != "falling", name != "rising")


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
    assert np.array_equal(np.concatenate(list(dataset.rows.batches())), features, equal_nan=True)
    assert np.array_equal(dataset.rows.feature_table().to_pandas().to_numpy(), features, equal_nan=True)
    objective = objective_of(config("xgboost", folder, tmp_path, target="other", objective="ranking"), rows)
    assert len(dataset_of(objective, rows).rows) == (table["first"] <= 2).sum()


def test_xgboost_gets_the_target_and_weight_of_each_row(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XGBoost would rank all rows as one group, or learn by labels and weights of other rows or groups."""
    from ensemble.trees import xgb

    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)
    for kind in ("ranking", "regression"):
        rows = TreeData(data(kind), "train", manifest.read_manifest(data(kind)))
        settings = config("xgboost", data(kind), tmp_path)
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


def test_large_groups_are_cut_for_lightgbm(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of more than 10,000 products would end in LightGBM's traceback."""
    from ensemble.trees import lgbm

    assert lgbm._divided(np.array([3, 10_000, 10_001, 25_000])).tolist() == [3, 10_000, 5_000, 5_001, 8_333, 8_333, 8_334]
    monkeypatch.setattr(lgbm, "MAX_GROUP_ROWS", 7)
    train.train(config("lightgbm", data("ranking"), tmp_path / "out"))
    result = TreeMember(tmp_path / "out").predict(data("ranking"), "test")
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


# Early stopping


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("binary", "average_precision"),
        ("binary", "log_loss"),
        ("binary", "roc_auc"),
        ("multiclass", "accuracy"),
        ("multiclass", "multiclass_log_loss"),
        ("regression", "mean_absolute_error"),
        ("ranking", "ndcg_at_10"),
    ],
)
def test_the_named_metric_stops(kind: str, metric: str, library: str, data: Any, tmp_path: Path) -> None:
    """The trees would be cut where another metric is best, or where this one is worst."""
    out = tmp_path / "out"
    summary = train.train(config(library, data(kind), out, metric=metric, num_rounds=120, early_stopping_rounds=12))
    scores = np.array([entry[metric] for entry in history_of(out)])
    best = int(scores.argmax() if METRIC_FUNCTIONS[metric].higher_is_better else scores.argmin())
    assert summary["trees"] == best + 1
    assert len(scores) == best + 1 + 12 < 120
    assert summary[f"validation_{metric}"] == scores[best]
    result = TreeMember(out).predict(data(kind), "validation")
    assert score(metric, result) == pytest.approx(scores[best], abs=1e-5)


def test_what_is_not_defined_is_never_best() -> None:
    """A metric that is NaN for the first trees would stop the training with them."""
    history = [{"roc_auc": value, "log_loss": value} for value in (np.nan, 0.5, 0.7, 0.7, np.nan)]
    assert boosting.best_round(history, "roc_auc") == 3
    assert boosting.best_round(history, "log_loss") == 2


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("binary", {"objective": "regression", "target": "noisy"}),
        ("binary", {"objective": "ranking", "target": "noisy"}),
        ("binary", {"objective": "ranking"}),
        ("binary", {"target": "is_high"}),
        ("ranking", {"objective": "regression", "target": "truth"}),
        ("ranking", {"objective": "binary", "target": "is_high"}),
    ],
)
def test_another_objective_is_scored_by_the_task(kind: str, settings: dict[str, str], library: str, tmp_path: Path) -> None:
    """The trees would be cut where they forecast growth best, and the ensemble take growth for a probability."""
    folder = prepare(tmp_path / "data", kind, lambda result: {**result, "is_high": result["noisy"] > 1})
    out = tmp_path / "out"
    summary = train.train(config(library, folder, out, **settings))
    result = TreeMember(out).predict(folder, "validation")
    assert result["output"] == summary["output"] == "score"
    assert np.array_equal(result["target"], read(folder, "validation")["target"])
    assert {*history_of(out)[0]} == {"kind", "step", METRICS[kind]}
    ours, blind = score(METRICS[kind], result), score(METRICS[kind], result, np.zeros(len(result["target"])))
    assert ours == pytest.approx(summary[f"validation_{METRICS[kind]}"], abs=1e-5)
    assert ours > blind + 0.5 * (1 - blind)


def test_rows_without_the_other_target_are_left_out(library: str, tmp_path: Path) -> None:
    """A product without a rating would be learned as one with the rating 0, or the library refuse all rows."""
    without = np.random.default_rng(3).random(NUM_ROWS["train"]) < 0.4

    def hide(found: Columns) -> Columns:
        hidden = without[: len(found["row_id"])]
        return {**found, "noisy": np.where(hidden, np.nan, found["noisy"])}

    def leave_out(found: Columns) -> Columns:
        keep = ~without[: len(found["row_id"])] if found["row_id"][0] == 0 else np.full(len(found["row_id"]), True)
        return {name: values[keep] for name, values in found.items()}

    for name, change in (("hidden", hide), ("left", leave_out)):
        folder = prepare(tmp_path / name, "binary", change)
        settings = {"objective": "regression", "target": "noisy", "num_rounds": 8}
        train.train(config(library, folder, tmp_path / f"{name}.out", **settings))
    assert model(tmp_path / "hidden.out") == model(tmp_path / "left.out")


# Going on


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("kind", [*KINDS, "another"])
def test_interrupted_any_objective_ends_with_the_same_bits(
    kind: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requeued job would end with another model: with several classes the scores of one would be taken for another's."""

    def weigh(found: Columns) -> Columns:
        return {**found, "weight": 0.5 + found["cluster"] % 3, "noisy": np.where(found["first"] > 2, np.nan, found["noisy"])}

    folder = prepare(tmp_path / "data", "binary" if kind == "another" else kind, weigh, weight="weight")
    settings: dict[str, Any] = {"num_rounds": 20, "early_stopping_rounds": 20, "chunk_rounds": 6, "checkpoint_s": 0.0}
    if kind == "another":
        settings |= {"objective": "ranking", "target": "noisy"}
    if kind != "multiclass":
        settings["monotone"] = {"noise": -1}
    train.train(config(library, folder, tmp_path / "whole", **settings))
    write = Checkpoints.write

    def write_and_die(*content: Any) -> None:
        write(*content)
        raise Killed

    monkeypatch.setattr(Checkpoints, "write", write_and_die)
    for resume in ("", "last", "last"):
        with pytest.raises(Killed):
            train.train(config(library, folder, tmp_path / "again", **settings), resume)
    monkeypatch.undo()
    train.train(config(library, folder, tmp_path / "again", **settings), "last")
    assert model(tmp_path / "again") == model(tmp_path / "whole")
    assert (tmp_path / "again/metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_low_memory_grows_the_same_trees(kind: str, data: Any, tmp_path: Path) -> None:
    """With rows on disk, labels, weights or groups would belong to other rows."""
    for memory in ("in_core", "low"):
        train.train(config("xgboost", data(kind), tmp_path / memory, num_rounds=6, memory=memory))
    assert model(tmp_path / "low") == model(tmp_path / "in_core")


# What is refused


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("binary", {"objective": "rank"}, r"objective=rank is unknown: choose binary, multiclass, regression, ranking, or "),
        ("binary", {"target": "noizy"}, r"target=noizy is not a column that can be learned: did you mean noisy\?"),
        (
            "binary",
            {"target": "first"},
            r"target=first is not a column that can be learned: choose from truth, noisy, weight, target",
        ),
        ("binary", {"metric": "accuracy"}, r"metric=accuracy does not score a binary task: choose average_precision, "),
        ("regression", {"metric": "rmse"}, r"metric=rmse does not score a regression task: choose root_mean_squared_error"),
        (
            "binary",
            {"objective": "multiclass", "target": "noisy"},
            r"objective=multiclass target=noisy gives no probability of target, .*: leave both out, or take regression or",
        ),
        (
            "regression",
            {"target": "truth"},
            r"objective=regression target=truth gives no value of target, .* leave both out$",
        ),
        ("multiclass", {"objective": "regression"}, r"gives no probabilities of target, .* leave both out$"),
        (
            "binary",
            {"target": "noisy"},
            r"noisy is -?[0-9.]+, and for objective=binary it must be 0 or 1: take objective=reg",
        ),
        (
            "binary",
            {"objective": "regression", "metric": "log_loss"},
            r"metric=log_loss scores a probability, and .* gives scores, .*: choose average_precision, roc_auc",
        ),
        (
            "binary",
            {"monotone": {"frist": 1}},
            r"monotone names the feature frist, which does not exist: did you mean first\?",
        ),
        (
            "binary",
            {"monotone": {"first": 2}},
            r"monotone has first: 2: write 1 if the prediction may only rise with it, -1",
        ),
        (
            "binary",
            {"monotone": {"code": 1}},
            r"monotone names code, whose values are categories without an order: leave it",
        ),
        ("multiclass", {"monotone": {"first": 1}}, r"monotone= is not possible with several classes"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: str, settings: dict[str, Any], message: str, library: str, data: Any, tmp_path: Path
) -> None:
    """A typo would end in a library's traceback, or in a member with another output than it seems to have."""
    with pytest.raises(UserError, match=message):
        train.train(config(library, data(kind), tmp_path / "out", **settings))
    assert list(tmp_path.iterdir()) == []


def test_a_split_that_cannot_be_scored_is_refused(library: str, tmp_path: Path) -> None:
    """Every score would be NaN, and the first tree the best."""

    def hide(found: Columns) -> Columns:
        hidden = (found["row_id"] >= 1000) & (found["cluster"] == 9)
        return {**found, "target": np.where(hidden, np.nan, found["target"])}

    with pytest.raises(UserError, match="a validation row has no target: prepare the data without such rows"):
        train.train(config(library, prepare(tmp_path / "data", "regression", hide), tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("multiclass", 3.0, r"target is 3, and for objective=multiclass it must be the number of a class, 0 to 2"),
        ("multiclass", 0.5, r"target is 0.5, and for objective=multiclass it must be the number of a class, 0 to 2"),
        ("binary", 2.0, r"target is 2, and for objective=binary it must be 0 or 1"),
        ("regression", np.inf, r"target is inf, and for objective=regression it must be finite"),
        ("ranking", 0.5, r"target is 0.5, but a relevance must be a whole number from 0 to 30"),
        ("ranking", 31.0, r"target is 31, but a relevance must be a whole number from 0 to 30"),
    ],
)
def test_targets_that_are_none_are_refused(kind: str, value: float, message: str, library: str, tmp_path: Path) -> None:
    """A library would end in a traceback, abort the process, or learn something else."""
    folder = prepare(
        tmp_path / "data", kind, lambda found: {**found, "target": np.where(found["cluster"] == 9, value, found["target"])}
    )
    with pytest.raises(UserError, match=message):
        train.train(config(library, folder, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


# The scripts


def run(script: str, *words: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "SLURM_"))}
    line = [sys.executable, "-W", "error", str(ROOT / "scripts" / script), *words]
    done = subprocess.run(line, env=clean, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


def test_members_with_other_objectives_join_the_ensemble(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line would lack the settings, or the ensemble refuse or misread the scores of such members."""
    others = {
        "ranked": ["library=xgboost", "objective=ranking", "monotone={reviews_4w: 1}", "metric=roc_auc"],
        "grown": ["library=lightgbm", "objective=regression", "target=growth"],
    }
    for name, words in others.items():
        settings = ["num_rounds=20", "min_leaf_weight=0.1", "threads=1"]
        run("train_trees.py", f"data={prepared}", f"out={tmp_path / name}", *settings, *words)
    train.train(config("lightgbm", prepared, tmp_path / "native"))
    monkeypatch.setattr(threads, "configure", lambda number: number)  # once per process, and XGBoost is loaded here
    about = manifest.read_manifest(prepared)
    for name in ("native", *others):
        predict.predict(
            predict.PredictConfig(member=str(tmp_path / name), data=str(prepared), out=str(tmp_path / "predictions")), about
        )
        for split in ("blend", "test", "forecast"):
            result = predictions.read(tmp_path / f"predictions/{name}.{split}.parquet")
            assert result.output == ("probability" if name == "native" else "score")
            assert np.array_equal(result.target, read(prepared, split)["hot"], equal_nan=True)
    fit.fit(tmp_path / "predictions", prepared, tmp_path / "ensemble", num_draws=20)
    assert {*others, "native"} <= {*manifest.read_json(tmp_path / "ensemble/ensemble.json")["members"]}


def test_groups_are_not_parted_over_ranks(data: Any, tmp_path: Path) -> None:
    """Each rank would rank a part of every group, and nobody know it."""
    script = str(ROOT / "scripts/train_trees.py")
    line = [sys.executable, script, f"data={data('ranking')}", f"out={tmp_path / 'out'}", "threads=1"]
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
