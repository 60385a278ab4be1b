"""Every objective in both libraries, on small tables with a known rule: its predictions, and the metric that stops it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import copied_members
import lightgbm
import numpy as np
import polars as pl
import prepared_folders
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from known_rules import KINDS, METRICS, NUM_ROWS, Columns, config, history_of, prepare, read, score
from tree_members import SCRIPT, config_of, interrupt, model, rows_of, run, words

from ensemble import folders, predictions
from ensemble.commands import predict
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.predictor import fit
from ensemble.task import ABSOLUTE_ERROR, Task
from ensemble.trees import boosting, distributed, threads, train
from ensemble.trees.contributions import of_classes
from ensemble.trees.objective import OUTPUT_OF
from ensemble.trees.predict import TreeMember, library_module
from ensemble.trees.scaling import Scaling

# Predictions


@pytest.mark.parametrize("kind", KINDS)
def test_each_objective_learns(kind: str, library: str, rule_data: Any, tmp_path: Path) -> None:
    """An objective would get the wrong labels or groups, or the ensemble would misinterpret its output."""
    metric, out = METRICS[kind], tmp_path / library
    summary = train.train(config(library, rule_data(kind), out))
    assert (summary["objective"], summary["target"], summary["metric"]) == (kind, "target", metric)
    result = TreeMember(out).predict(rule_data(kind), "test")
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
    is_better = ours > blind + 0.5 * (1 - blind) if METRIC_FUNCTIONS[metric].higher_is_better else ours < 0.7 * blind
    assert is_better, (ours, blind)
    importance = json.loads((out / "importance.json").read_text())
    assert next(iter(importance)) == "first"
    assert list(importance)[-1] == "noise"
    assert {"log_loss" in entry for entry in history_of(out)} == {kind == "binary"}


def test_rare_classes_do_not_diverge(tmp_path: Path) -> None:
    """At a high learning rate, LightGBM's leaves of a rare class would become so large that its predictions oscillate."""
    sizes = np.array([9000, 4500, 3000, 450, 40, 10])
    label = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(0).normal(size=(len(label), 6))
    values[:, 0] += 2 * label
    frame = pl.DataFrame({"y": [f"class {number}" for number in label], **{f"x{n}": values[:, n] for n in range(6)}})
    data = copied_members.prepared_of(tmp_path, frame, num_folds=1)
    settings = {"learning_rate": 0.3, "num_rounds": 6, "row_fraction": 1.0, "column_fraction": 1.0, "l2": 1.0}
    settings |= {"max_leaves": 31, "min_leaf_weight": 1.0, "early_stopping_rounds": 50}
    train.train(copied_members.config_of("lightgbm", data, tmp_path / "out", **settings))
    (booster,) = (model for model, _ in copied_members.models_of(tmp_path / "out"))
    trees = lightgbm.Booster(model_str=booster.model_to_string()).trees_to_dataframe()
    leaves = trees[trees["left_child"].isnull() & (trees["tree_index"] >= len(sizes))]  # the first include the priors
    assert leaves["value"].abs().max() <= 4 * 0.3 + 1e-6


def test_few_rows_of_each_class_can_be_split(tmp_path: Path) -> None:
    """No leaf would reach the default weight of two classes, and all rows would have the same prediction."""
    label = np.arange(200) % 10
    columns = {"row_id": np.arange(200), "group": label, "x": label.astype(np.float32), "target": label.astype(np.float32)}
    splits = {"train": pa.table(columns), "validation": pa.table(columns)}
    task = Task(
        kind="multiclass", target="target", metric="accuracy", group="group", cluster="group", classes=tuple("0123456789")
    )
    prepared_folders.write(tmp_path / "data", splits, task, [{"name": "x"}])
    for library in distributed.LIBRARIES:
        summary = train.train(
            config_of(library, tmp_path / "data", tmp_path / library, num_rounds=5, learning_rate=0.3, metric="accuracy")
        )
        assert summary["validation_accuracy"] == 1.0


def test_a_metric_that_counts_right_classes_stops_no_training(tmp_path: Path) -> None:
    """With a frequent class the accuracy is constant for the first trees, so the first one would be the best."""
    frame = pl.DataFrame({"y": ["usual"] * 90 + ["rare"] * 6 + ["rarer"] * 4, "x": range(100)})
    data = copied_members.prepared_of(tmp_path, frame, metric="accuracy")
    settings = copied_members.config_of("xgboost", data)
    assert train.resolve(settings, rows_of(data))[1].metric == "multiclass_log_loss"
    two_classes = copied_members.prepared_of(tmp_path, frame.filter(pl.col("y") != "rarer"), "two", metric="accuracy")
    assert train.resolve(copied_members.config_of("xgboost", two_classes), rows_of(two_classes))[1].metric == "log_loss"
    assert train.resolve(dataclasses.replace(settings, metric="accuracy"), rows_of(data))[1].metric == "accuracy"


@pytest.mark.parametrize("kind", KINDS)
def test_the_forecast_of_any_kind_has_reasons(kind: str, library: str, rule_data: Any, tmp_path: Path) -> None:
    """The forecast would fail with several classes, or give the reasons for another class."""
    train.train(config(library, rule_data(kind), tmp_path / "out", num_rounds=10))
    result = TreeMember(tmp_path / "out").predict(rule_data(kind), "forecast")
    assert np.isnan(result["target"]).all()
    (features,) = rows_of(rule_data(kind), "forecast").batches()
    module = library_module(library)
    booster = module.load(tmp_path / "out" / module.FILE)
    scaling = Scaling.all_from_summary(folders.read_json(tmp_path / "out/summary.json"), 1)[0]
    assert scaling.is_identity == (kind != "regression")
    likeliest = result["prediction"].argmax(axis=1) if kind == "multiclass" else None
    parts = scaling.parts(of_classes(module.contributions(booster, features), likeliest))[:, :-1]
    assert parts.shape == features.shape
    if kind == "multiclass":
        # The probability of the likeliest class rises with its contributions, but does not follow from them alone
        high = parts[:, 0][likeliest == 2]
        assert np.corrcoef(high, features[likeliest == 2, 0])[0, 1] > 0.5
        low = parts[:, 0][likeliest == 0]
        assert np.corrcoef(low, features[likeliest == 0, 0])[0, 1] < -0.5
    strongest = [sorted(row[row != 0], key=abs, reverse=True) for row in parts]
    for row, (reasons, expected) in enumerate(zip(result["reasons"], strongest, strict=True)):
        of_class = [reason for reason in reasons if kind != "multiclass" or reason["class"] == likeliest[row]]
        assert [reason["contribution"] for reason in of_class] == pytest.approx(expected, abs=1e-6)
        assert kind != "multiclass" or len({reason["class"] for reason in reasons}) == 2


def test_missing_values_are_learned_from(library: str, tmp_path: Path) -> None:
    """Missing values would be read as zeros, or rows with missing values would be left out."""

    def change(result: Columns) -> Columns:
        return {**result, "target": np.where(np.isnan(result["second"]), 3.0, 0.0) + 0.1 * result["noise"]}

    folder = prepare(tmp_path / "data", "regression", change)
    train.train(config(library, folder, tmp_path / "out", num_rounds=80))
    result = TreeMember(tmp_path / "out").predict(folder, "test")
    assert score("root_mean_squared_error", result) < 0.25 < result["target"].std() / 3


def test_categories_are_not_split_by_thresholds(library: str, tmp_path: Path) -> None:
    """Odd and even categories could be separated only by as many thresholds as there are categories."""

    def change(table: Columns) -> Columns:
        return {**table, "target": table["code"] % 2 == 1}

    scores = {}
    for name, categories in (("codes", True), ("numbers", False)):
        folder = prepare(tmp_path / name, "binary", change, categories=categories)
        train.train(config(library, folder, tmp_path / f"{name}.out", num_rounds=3, max_leaves=4))
        scores[name] = score("average_precision", TreeMember(tmp_path / f"{name}.out").predict(folder, "test"))
    assert scores["codes"] > 0.95
    assert scores["numbers"] < 0.7


def test_a_category_without_training_rows_is_predicted(library: str, tmp_path: Path) -> None:
    """A library would refuse the row, crash, or use another category."""

    def change(result: Columns) -> Columns:
        unseen = (result["row_id"] < 1000) & (result["code"] >= 28)  # in train
        return {**result, "code": np.where(unseen, np.nan, result["code"])}

    folder = prepare(tmp_path / "data", "regression", change)
    train.train(config(library, folder, tmp_path / "out"))
    result = TreeMember(tmp_path / "out").predict(folder, "test")
    assert (read(folder, "test")["code"] == 29).any()
    assert np.isfinite(result["prediction"]).all()
    assert score("root_mean_squared_error", result) < 0.8


# Constraints


@pytest.mark.parametrize("kind", ["binary", "regression", "ranking"])
def test_monotone_holds(kind: str, library: str, tmp_path: Path) -> None:
    """A lower price would lower some prediction although the user excluded this, or another feature would be constrained."""

    def change(table: Columns) -> Columns:
        wave = np.sin(2 * table["first"]) + 0.5 * table["noise"] + 0.2 * np.nan_to_num(table["second"])
        target = wave > 0.5 if kind == "binary" else wave if kind == "regression" else np.clip(np.round(wave + 1), 0, 3)
        return {**table, "target": target}

    folder = prepare(tmp_path / "data", kind, change)
    others = np.random.default_rng(0).standard_normal((20, 4))
    grid = np.repeat(others[:, None, :], 60, axis=1).astype(np.float32)
    grid[:, :, 0] = np.linspace(-3, 3, 60)
    grid[:, :, 3] = np.arange(20)[:, None]
    for name, monotone in (("free", {}), ("rising", {"first": 1}), ("falling", {"first": -1, "noise": 1})):
        train.train(config(library, folder, tmp_path / name, monotone=monotone, num_rounds=20, early_stopping_rounds=20))
        module = library_module(library)
        booster = module.load(tmp_path / name / module.FILE)
        steps = np.diff(module.predict(booster, grid.reshape(-1, 4)).reshape(20, 60), axis=1)
        rises, falls = (steps > 1e-6).any(), (steps < -1e-6).any()
        assert (rises, falls) == (name != "falling", name != "rising")


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
def test_the_given_metric_stops_the_training(kind: str, metric: str, library: str, rule_data: Any, tmp_path: Path) -> None:
    """The number of trees would be best by another metric, or worst by this one."""
    out = tmp_path / "out"
    summary = train.train(config(library, rule_data(kind), out, metric=metric, num_rounds=120, early_stopping_rounds=12))
    scores = np.array([entry[metric] for entry in history_of(out)])
    best = int(scores.argmax() if METRIC_FUNCTIONS[metric].higher_is_better else scores.argmin())
    assert summary["trees"] == best + 1
    assert len(scores) == best + 1 + 12 < 120
    assert summary[f"validation_{metric}"] == scores[best]
    result = TreeMember(out).predict(rule_data(kind), "validation")
    assert score(metric, result) == pytest.approx(scores[best], abs=1e-5)


def test_an_undefined_score_is_never_best() -> None:
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
    """The number of trees would be best for growth, and the ensemble would use growth as a probability."""
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
    file = TreeMember(out).write_contributions(folder, "validation", "mine", tmp_path)
    unit = json.loads(pq.read_table(file).schema.metadata[b"ensemble"])["unit"]
    is_binary = settings.get("objective", kind) == "binary"
    assert unit == ("log odds" if is_binary else "score")


def test_rows_without_the_other_target_are_left_out(library: str, tmp_path: Path) -> None:
    """A product without a rating would be learned as one with the rating 0, or the library would refuse all rows."""
    without = np.random.default_rng(3).random(NUM_ROWS["train"]) < 0.4

    def hide(table: Columns) -> Columns:
        hidden = without[: len(table["row_id"])]
        return {**table, "noisy": np.where(hidden, np.nan, table["noisy"])}

    def leave_out(table: Columns) -> Columns:
        keep = ~without[: len(table["row_id"])] if table["row_id"][0] == 0 else np.full(len(table["row_id"]), True)
        return {name: values[keep] for name, values in table.items()}

    for name, change in (("hidden", hide), ("left", leave_out)):
        folder = prepare(tmp_path / name, "binary", change)
        settings = {"objective": "regression", "target": "noisy", "num_rounds": 8}
        train.train(config(library, folder, tmp_path / f"{name}.out", **settings))
    assert model(tmp_path / "hidden.out") == model(tmp_path / "left.out")


# Resuming


@pytest.mark.parametrize("kind", [*KINDS, "another", ABSOLUTE_ERROR])
def test_interrupted_any_objective_ends_with_the_same_bits(kind: str, library: str, tmp_path: Path) -> None:
    """A requeued job would end with another model: the scores of one class would be taken for those of another."""

    def weigh(table: Columns) -> Columns:
        return {**table, "weight": 0.5 + table["cluster"] % 3, "noisy": np.where(table["first"] > 2, np.nan, table["noisy"])}

    of_task = {"another": "binary", ABSOLUTE_ERROR: "regression"}.get(kind, kind)
    folder = prepare(tmp_path / "data", of_task, weigh, weight="weight")
    settings: dict[str, Any] = {"num_rounds": 20, "early_stopping_rounds": 20, "chunk_rounds": 6, "checkpoint_s": 0.0}
    if kind == "another":
        settings |= {"objective": "ranking", "target": "noisy"}
    if kind == ABSOLUTE_ERROR:
        settings["objective"] = kind
    if kind not in ("multiclass", ABSOLUTE_ERROR):
        settings["monotone"] = {"noise": -1}
    train.train(config(library, folder, tmp_path / "whole", **settings))
    for resume in ("", "last", "last"):
        interrupt(config(library, folder, tmp_path / "again", **settings), 1, resume)
    train.train(config(library, folder, tmp_path / "again", **settings), "last")
    assert model(tmp_path / "again") == model(tmp_path / "whole")
    assert (tmp_path / "again/metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_low_memory_grows_the_same_trees(kind: str, rule_data: Any, tmp_path: Path) -> None:
    """With rows on disk, labels, weights or groups would belong to other rows."""
    for memory in ("in_core", "low"):
        train.train(config("xgboost", rule_data(kind), tmp_path / memory, num_rounds=6, memory=memory))
    assert model(tmp_path / "low") == model(tmp_path / "in_core")


# The scripts


def test_members_with_other_objectives_join_the_ensemble(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line would lack the settings, or the ensemble would refuse or misinterpret the scores of such members."""
    others = {
        "ranked": ["library=xgboost", "objective=ranking", "monotone={reviews_4w: 1}", "metric=roc_auc"],
        "grown": ["library=lightgbm", "objective=regression", "target=growth"],
    }
    for name, arguments in others.items():
        settings = words(data=prepared, out=tmp_path / name, num_rounds=20, min_leaf_weight=0.1, threads=1)
        done = run(["-W", "error", SCRIPT, *settings, *arguments])
        assert done.returncode == 0, done.stderr
    train.train(config("lightgbm", prepared, tmp_path / "native"))
    monkeypatch.setattr(threads, "configure", lambda number: number)  # once per process, and XGBoost is loaded here
    manifest = folders.read_manifest(prepared)
    for name in ("native", *others):
        config_of_member = predict.PredictConfig(
            member=str(tmp_path / name), data=str(prepared), out=str(tmp_path / "predictions")
        )
        predict.predict(config_of_member, manifest)
        for split in ("blend", "test", "forecast"):
            result = predictions.read(tmp_path / f"predictions/{name}.{split}.parquet")
            assert result.output == ("probability" if name == "native" else "score")
            assert np.array_equal(result.target, read(prepared, split)["hot"], equal_nan=True)
    fit.fit(tmp_path / "predictions", prepared, tmp_path / "ensemble", num_draws=20)
    assert {*others, "native"} <= {*folders.read_json(tmp_path / "ensemble/ensemble.json")["members"]}
