"""Training of tree members of both libraries: their rows, early stopping, files, and predictions with reasons."""

import dataclasses
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import copied_members
import flat_data
import numpy as np
import polars as pl
import pytest
import tree_members
from copied_members import folds_of, prepared_of
from tree_members import ROOT, SCRIPT, features_of, rows_of, run, words

from ensemble import folders, metrics
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import prepare
from ensemble.recipes.hot_sellers.settings import MarketConfig, PrepareConfig
from ensemble.trees import train
from ensemble.trees.boosting import CannotLearn, Training
from ensemble.trees.distributed import LIBRARIES
from ensemble.trees.objective import Dataset, ValidationMetrics, objective_of
from ensemble.trees.predict import MODULES, TreeMember, library_module
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> ModuleType:
    return library_module(request.param)


def config(library: ModuleType | str, data: Path, out: Path, **settings: Any) -> TreesConfig:
    name = library if isinstance(library, str) else next(n for n, m in MODULES.items() if m == library.__name__)
    values = {"num_rounds": 30, "early_stopping_rounds": 10, "learning_rate": 0.1, **settings}
    return tree_members.config_of(name, data, out, **values)


def test_rows_that_are_too_few_have_an_error_message(tmp_path: Path) -> None:
    """With fewer than 40 rows LightGBM finds no split: a fit without folds would end with its traceback, instead of going on
    with the other members."""
    columns = {**flat_data.columns(20), "c": np.zeros(20, np.float32)}
    data = flat_data.write(tmp_path / "data", {"train": columns, "validation": columns})
    with pytest.raises(CannotLearn, match=r"^lightgbm cannot learn from the rows of \S+ \([^\n]+\): leave it out$"):
        train.train(config("lightgbm", data, tmp_path / "m"))
    assert train.train(config("xgboost", data, tmp_path / "m"))["status"] == "done"


# Data


def test_batches_contain_all_rows_of_the_table(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than one batch, a row would be lost, or a column would have the name of another."""
    data = rows_of(prepared)
    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)
    batches = list(data.batches())
    assert len(batches) > 10
    table = data.table.to_pandas()
    assert np.array_equal(np.concatenate(batches), table[data.features].to_numpy(), equal_nan=True)
    assert sum(map(len, batches)) == len(data)
    some = np.random.default_rng(0).permutation(len(data))[:300]
    assert np.array_equal(data.take(some).matrix(), np.concatenate(batches)[some], equal_nan=True)
    assert np.array_equal(data.take(some).take(some[:9] % 300).column("hot"), data.column("hot")[some[some[:9] % 300]])


def test_targets_and_ids_are_no_features(prepared: Path) -> None:
    """A target or row id among the features would give a perfect score and a useless forecast."""
    data = rows_of(prepared)
    assert not set(data.features) & {*prepare.TARGETS, *prepare.INDEX_COLUMNS}
    assert len(data.features) >= 54


def test_xgboost_gets_every_batch(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than one batch it would get only the last, or the first twice."""
    from ensemble.trees import xgb

    monkeypatch.setattr("ensemble.trees.rows.ROWS_PER_BATCH", 97)
    data = rows_of(prepared)
    config = TreesConfig(data=str(prepared), memory="in_core")
    matrix = xgb.matrix(config, Dataset(rows=data, target=data.column("hot")), None, "rows")
    assert matrix.num_row() == len(data)
    assert matrix.feature_names == data.features
    assert np.array_equal(matrix.get_label(), data.column("hot"))


# Training


def test_one_seed_gives_one_model(library: ModuleType, prepared: Path, tmp_path: Path) -> None:
    """A result could not be reproduced, or another seed would give the same model."""
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        train.train(config(library, prepared, tmp_path / name, seed=seed))
    models = {name: (tmp_path / name / library.FILE).read_bytes() for name in ("first", "second", "other")}
    assert models["first"] == models["second"]
    assert models["first"] != models["other"]


def test_training_stops_early_by_average_precision(library: ModuleType, prepared: Path, tmp_path: Path) -> None:
    """Training would stop by the log loss, which with few positives is best at another tree, or would keep all trees."""
    settings = config(
        library, prepared, tmp_path / "out", num_rounds=200, early_stopping_rounds=8, learning_rate=0.4, seed=3,
        min_leaf_weight=10.0,
    )  # fmt: skip
    summary = train.train(settings)
    history = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    precision = [entry["average_precision"] for entry in history]
    best = int(np.argmax(precision))
    assert [entry["step"] for entry in history] == list(range(1, len(history) + 1))
    assert summary["trees"] == best + 1
    assert len(history) == best + 1 + 8 < 200
    assert summary["validation_average_precision"] == precision[best]
    assert int(np.argmin([entry["log_loss"] for entry in history])) != best, "choose data on which the two differ"
    booster = library.load(tmp_path / "out" / library.FILE)
    num_trees = booster.num_boosted_rounds() if library.FILE.endswith("ubj") else booster.num_trees()
    assert num_trees == summary["trees"]


def test_the_score_of_early_stopping_is_that_of_the_prediction_file(trained: Path, prepared: Path) -> None:
    """Early stopping would use another metric than the report."""
    result = TreeMember(trained).predict(prepared, "validation")
    score = metrics.binary_scores(result["target"], result["prediction"], result["group"])["average_precision"]
    output = json.loads((trained / "summary.json").read_text())["validation_average_precision"]
    assert output == pytest.approx(score, abs=1e-6)


def test_a_member_has_all_its_files(trained: Path, prepared: Path) -> None:
    """The report would lack the picture or the curve, and the settings of the member would be unknown."""
    library = library_module(trained.name)
    names = {library.FILE, "config.json", "metrics.jsonl", "importance.json", "importance.png", "summary.json"}
    assert {path.name for path in trained.iterdir()} == {*names, "known.json", "manifest.json"}
    picture = (trained / "importance.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    importance = json.loads((trained / "importance.json").read_text())
    assert set(importance) == set(rows_of(prepared).features)
    assert list(importance.values()) == sorted(importance.values(), reverse=True)
    assert min(importance.values()) >= 0 < max(importance.values())
    summary = json.loads((trained / "summary.json").read_text())
    assert (summary["kind"], summary["fingerprint"]) == (trained.name, folders.read_manifest(prepared)["fingerprint"])
    assert json.loads((trained / "config.json").read_text())["library"] == trained.name


def test_the_planted_feature_comes_first(library: ModuleType, prepared_copy: Path, tmp_path: Path) -> None:
    """Importances would have the names of other features."""
    manifest = folders.read_manifest(prepared_copy)
    planted = [feature["name"] for feature in manifest["features"]][17]

    class Planted(TreeData):
        def column(self, name: str) -> np.ndarray:
            values = super().column(planted if name == "hot" else name)
            return (values > np.nanmedian(values)).astype(np.float32) if name == "hot" else values

        def batches(self) -> Any:
            yield features_of(self)

    booster, _, _ = library.train(
        config(library, prepared_copy, tmp_path, num_rounds=5, column_fraction=1.0),
        *(Planted(prepared_copy, split, manifest) for split in ("train", "validation")),
        Training(),
    )
    importance = library.importance(booster)
    assert max(importance, key=importance.__getitem__) == planted


def test_a_failed_training_leaves_no_files(
    library: ModuleType, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete member could be used for predictions, or prevent the next attempt."""

    def fail(*_: Any) -> None:
        raise RuntimeError("out of disk")

    monkeypatch.setattr(library, "importance", fail)
    with pytest.raises(RuntimeError, match="out of disk"):
        train.train(config(library, prepared, tmp_path / "member", num_rounds=2))
    assert list(tmp_path.iterdir()) == []


def test_a_member_is_replaced_only_on_request(prepared: Path, tmp_path: Path) -> None:
    """A member would be overwritten by mistake, or overwrite=true would delete a file of the user."""
    settings = config("xgboost", prepared, tmp_path / "member", num_rounds=2)
    train.train(settings)
    (tmp_path / "member/old.txt").write_text("old")
    with pytest.raises(UserError, match=r"exists already: .*overwrite=true"):
        train.train(settings)
    overwriting = dataclasses.replace(settings, overwrite=True)
    with pytest.raises(UserError, match=r"member holds old.txt, which its manifest does not list"):
        train.train(overwriting)
    assert (tmp_path / "member/old.txt").read_text() == "old"
    (tmp_path / "member/old.txt").unlink()
    before = (tmp_path / "member/manifest.json").stat().st_ino
    train.train(overwriting)
    assert (tmp_path / "member/manifest.json").stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["member"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", 1.5),
        ("num_rounds", 0),
        ("early_stopping_rounds", 0),
        ("max_leaves", 1),
        ("max_leaves", 131_073),
        ("min_leaf_weight", -1.0),
        ("row_fraction", 0.0),
        ("column_fraction", 1.1),
        ("l2", -1.0),
        ("seed", -1),
        ("timeout_s", float("inf")),
    ],
)
def test_impossible_settings_are_refused(setting: str, value: float, prepared: Path, tmp_path: Path) -> None:
    """A mistake would end in a library's traceback, or be replaced by the default."""
    with pytest.raises(UserError, match=f"{setting}={value} is impossible: it must be "):
        train.train(dataclasses.replace(config("xgboost", prepared, tmp_path / "member"), **{setting: value}))
    assert list(tmp_path.iterdir()) == []


# Prediction


def test_a_saved_model_predicts_as_it_did_in_memory(library: ModuleType, prepared: Path, tmp_path: Path) -> None:
    """The saved model would have other trees than the one that was validated."""
    splits = (rows_of(prepared, split) for split in ("train", "validation"))
    booster, _, _ = library.train(config(library, prepared, tmp_path), *splits, Training())
    (tmp_path / library.FILE).write_bytes(library.to_bytes(booster))
    features = features_of(rows_of(prepared, "test"))
    assert np.array_equal(
        library.predict(booster, features), library.predict(library.load(tmp_path / library.FILE), features)
    )


def test_contributions_sum_to_the_margin(trained: Path, prepared: Path) -> None:
    """The report would explain a prediction by numbers that do not sum to it, or with the names of other features."""
    library = library_module(trained.name)
    booster = library.load(trained / library.FILE)
    features = features_of(rows_of(prepared, "test"))
    probability = library.predict(booster, features).astype(np.float64)
    margin = np.log(probability / (1 - probability))
    contributions = library.contributions(booster, features)[:, :-1]
    assert contributions.shape == features.shape
    used = np.array([gain > 0 for gain in library.importance(booster).values()])
    assert np.array_equal(contributions.any(axis=0), used)
    bias = margin - contributions.sum(axis=1)
    assert np.ptp(bias) < 1e-4
    assert np.ptp(margin) > 0.1


def test_the_forecast_has_reasons(trained: Path, prepared: Path) -> None:
    """The page would show reasons of another row, or not the largest ones."""
    library = library_module(trained.name)
    result = TreeMember(trained).predict(prepared, "forecast")
    assert TreeMember(trained).predict(prepared, "test")["reasons"] is None
    data = rows_of(prepared, "forecast")
    contributions = library.contributions(library.load(trained / library.FILE), features_of(data))[:, :-1]
    for row, reasons in enumerate(result["reasons"]):
        ordered = sorted(contributions[row][contributions[row] != 0], key=abs, reverse=True)
        expected = [*ordered[:16], *([sum(ordered[16:])] if ordered[16:] else [])]
        assert [reason["contribution"] for reason in reasons] == pytest.approx(expected, abs=1e-6)
        assert [reason["feature"] for reason in reasons[16:]] == [""] * len(reasons[16:])
        for reason in reasons[:16]:
            assert reason["value"] == pytest.approx(data.column(reason["feature"])[row], nan_ok=True)


def test_only_the_likeliest_are_explained(trained: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With millions of products the explanations would take longer than the forecast."""
    monkeypatch.setattr("ensemble.trees.predict.EXPLAINED_ROWS", (5, 5))
    result = TreeMember(trained).predict(prepared, "forecast")
    explained = {row for row, reasons in enumerate(result["reasons"]) if reasons}
    assert explained <= set(np.argsort(-result["prediction"], kind="stable")[:5])
    assert explained


def test_predictions_have_the_ids_of_their_rows(trained: Path, prepared: Path) -> None:
    """The ensemble would join a prediction to another product."""
    result, table = TreeMember(trained).predict(prepared, "test"), rows_of(prepared, "test").table
    for name, column in (("row_id", "row_id"), ("target", "hot"), ("group", "week"), ("cluster", "product")):
        assert np.array_equal(result[name], table[column].to_numpy())
    assert ((result["prediction"] > 0) & (result["prediction"] < 1)).all()


def test_a_damaged_member_is_named(trained: Path, prepared: Path, tmp_path: Path) -> None:
    """Both libraries abort the process on a damaged model, or load it and predict something else."""
    folders.verify(trained)
    for source in sorted(path for path in trained.iterdir() if path.name != "importance.png"):
        for damage in ("flipped", "cut", "missing"):
            folder = tmp_path / f"{source.name}-{damage}"
            folder.mkdir()
            for path in trained.iterdir():
                content = path.read_bytes()
                if path == source and damage == "missing":
                    continue
                if path == source:
                    middle = len(content) // 2
                    rest = bytes([content[middle] ^ 1]) + content[middle + 1 :] if damage == "flipped" else b""
                    content = content[:middle] + rest
                (folder / path.name).write_bytes(content)
            with pytest.raises(UserError, match=rf"{source.name} .*: .*run the stage that wr(ote|ites) it"):
                TreeMember(folder).predict(prepared, "test")


def test_a_missing_model_file_is_named(library: ModuleType, tmp_path: Path) -> None:
    """A wrong path would end in a library's traceback."""
    with pytest.raises(UserError, match="is missing or damaged: train the member again"):
        library.load(tmp_path / library.FILE)


def test_other_features_and_splits_are_refused(trained: Path, prepared_copy: Path) -> None:
    """Feature 3 of the new data would be used as feature 3 of the old: wrong predictions without a message."""
    with pytest.raises(UserError, match="has no split 'tset': it has train, validation, blend, test, forecast"):
        TreeMember(trained).predict(prepared_copy, "tset")
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "features": manifest["features"][1:]})
    with pytest.raises(UserError, match=r"in another way than the training data of .*, with other values of features"):
        TreeMember(trained).predict(prepared_copy, "test")
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {"recipe": "sudoku", "splits": {}, "features": []})
    with pytest.raises(UserError, match="has no table of features for trees: it was prepared for the recipe sudoku"):
        TreeMember(trained).predict(prepared_copy, "test")


def test_data_with_other_splits_are_refused(trained: Path, prepared_copy: Path) -> None:
    """The member would be scored on rows that it was trained on, or the error would advise a split that the data lack."""
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "config": {**manifest["config"], "shares": [0.1, 0.1, 0.1, 0.7]}})
    with pytest.raises(UserError, match=r"so its test split may contain training rows: .*, or only splits=\[forecast\]$"):
        TreeMember(trained).predict(prepared_copy, "test")
    assert len(TreeMember(trained).predict(prepared_copy, "forecast")["row_id"])
    (prepared_copy / folders.NAME).unlink()
    splits = {name: split for name, split in manifest["splits"].items() if name != "forecast"}
    folders.write_manifest(prepared_copy, {**manifest, "splits": splits})
    with pytest.raises(UserError, match=r"so its test split may contain training rows: .* was trained on$"):
        TreeMember(trained).predict(prepared_copy, "test")


def test_damaged_data_are_refused(prepared_copy: Path, tmp_path: Path) -> None:
    """A flipped byte in the features would give another model under the same fingerprint."""
    file = prepared_copy / "rows" / "train" / "data-00000-of-00001.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"rows/train/.* was changed after it was written"):
        train.train(TreesConfig(data=str(prepared_copy), out=str(tmp_path / "out")))


# The script, in a process of its own


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_script_configures_openmp_first_and_never_loads_torch(library: str, prepared: Path, tmp_path: Path) -> None:
    """The wait policy would be set too late (ten times slower on a shared machine), or torch would be loaded for trees."""
    code = f"""
import importlib.abc, json, os, runpy, sys
class Spy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("xgboost", "lightgbm"):
            seen[name] = {{key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}}
seen = {{}}
sys.meta_path.insert(0, Spy())
for script, words in (("train_trees", ["library={library}", "out={tmp_path}/member", "num_rounds=5"]),
                      ("predict", ["member={tmp_path}/member", "out={tmp_path}/predictions", "splits=[test]"])):
    sys.argv = [script, "data={prepared}", *words]
    if script == "predict":
        from ensemble.trees import threads
        threads.configure = lambda requested: 1  # OpenMP was configured for the training
    runpy.run_path(f"{ROOT}/scripts/{{script}}.py", run_name="__main__")
print(json.dumps([seen, sorted({{"torch", "polars", "accelerate", "transformers"}} & sys.modules.keys())]))
"""
    done = run(["-W", "error", "-c", code], SLURM_CPUS_PER_TASK="1")
    assert done.returncode == 0, done.stderr
    seen, loaded = json.loads(done.stdout.splitlines()[-1])
    assert seen == {library: {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}}
    assert loaded == []
    assert (tmp_path / "predictions/member.test.parquet").exists()


def test_the_trees_are_those_of_the_best_round(tmp_path: Path) -> None:
    """LightGBM adds no tree if the drawn features have no split, so trees after the best score would be kept."""
    size, other, noise = np.random.default_rng(0).normal(size=(3, 600))
    data = prepared_of(tmp_path, pl.DataFrame({"size": size, "other": other, "y": np.sin(2 * size) + other + 1.5 * noise}))
    (fold, *_), rows = folds_of(data), rows_of(data)
    fit, stop = rows.take(fold.fit), rows.take(fold.stop)
    settings = copied_members.config_of("lightgbm", data, monotone={"other": -1}, num_rounds=40)
    booster, history, best = library_module("lightgbm").train(settings, fit, stop, Training())
    assert booster.num_trees() == best < len(history)
    score = ValidationMetrics(objective_of(settings, fit), stop)
    assert score(booster.predict(stop.matrix())) == pytest.approx(history[best - 1])


# The generated market


def test_a_member_learns_the_rule_of_the_generated_market(tmp_path: Path) -> None:
    """Features or labels would be of other weeks: average precision would be the base rate."""
    market = MarketConfig(num_products=600, num_reviews=40_000)
    prepare.prepare(PrepareConfig(out=str(tmp_path / "prepared"), market=market))
    train.train(config("xgboost", tmp_path / "prepared", tmp_path / "member", num_rounds=60, early_stopping_rounds=30))
    result = TreeMember(tmp_path / "member").predict(tmp_path / "prepared", "test")
    scores = metrics.binary_scores(result["target"], result["prediction"], result["group"])
    assert scores["average_precision"] >= 2 * result["target"].mean()


def test_the_example_of_the_help_can_be_trained(prepared: Path, tmp_path: Path) -> None:
    """A user who copies the example of the help would get an error for it."""
    (example,) = re.findall(r"'(monotone=\{.*?\})'", " ".join(run([SCRIPT, "--help"]).stdout.split()))
    done = run([SCRIPT, example, *words(data=prepared, out=tmp_path / "member", num_rounds=2)])
    assert done.returncode == 0, done.stderr
