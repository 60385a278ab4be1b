"""Trees trained again on train and validation: as many trees, on those rows, with the same bits after an interruption."""

import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copied_members import models_of
from tree_members import config_of, rows_of

from ensemble import folders
from ensemble.data.inputs import BLEND
from ensemble.folders import NEWEST
from ensemble.trees import copies, refit, rows
from ensemble.trees import train as member
from ensemble.trees.boosting import Stopped, Training
from ensemble.trees.predict import TreeMember, average_predictions, library_module, model_files
from ensemble.trees.settings import TreesConfig


def settings(library: str, prepared: Path, out: Path, **others: Any) -> TreesConfig:
    return config_of(library, prepared, out, num_rounds=25, early_stopping_rounds=5, **others)


def test_a_refit_is_a_training_on_both_splits(library: str, prepared: Path, tmp_path: Path) -> None:
    """The newest rows would be left out, or the number of trees would not be that of early stopping."""
    plain = member.train(settings(library, prepared, tmp_path / "plain"))
    config = settings(library, prepared, tmp_path / "refit", refit=True)
    summary = member.train(config)
    assert summary["trees"] == plain["trees"]
    train, validation = rows_of(prepared), rows_of(prepared, "validation")
    assert summary["rows"] == len(train) + len(validation)
    module = library_module(library)
    by_hand, _, _ = member.resolve(settings(library, prepared, tmp_path, memory="in_core"), train)
    by_hand = TreesConfig(**{**vars(by_hand), "num_rounds": summary["trees"], "early_stopping_rounds": 1000})
    booster, history, _ = module.train(by_hand, train.joined(validation), validation, Training(is_refit=True))
    assert len(history) == summary["trees"]
    assert module.to_bytes(booster) == module.to_bytes(module.load(tmp_path / "refit" / module.FILE))
    assert (tmp_path / "refit" / module.FILE).read_bytes() != (tmp_path / "plain" / module.FILE).read_bytes()


def test_blend_is_learned_by_the_trees_that_predict_later_splits(library: str, prepared: Path, tmp_path: Path) -> None:
    """The newest rows would be left out, or weights would be fitted on predictions of rows that the trees learned."""
    summary = member.train(settings(library, prepared, tmp_path / "refit", refit=True))
    train, validation, blend = (rows_of(prepared, split) for split in ("train", "validation", "blend"))
    module = library_module(library)
    by_hand, _, _ = member.resolve(settings(library, prepared, tmp_path, memory="in_core"), train)
    by_hand = TreesConfig(**{**vars(by_hand), "num_rounds": summary["trees"]})
    joined = train.joined(validation).joined(blend)
    booster, _, _ = module.train(by_hand, joined, validation, Training(is_refit=True))
    newest = tmp_path / "refit" / NEWEST
    assert module.to_bytes(booster) == module.to_bytes(module.load(newest / module.FILE))
    assert folders.read_json(newest / "summary.json")["rows"] == len(joined)
    earlier = shutil.copytree(tmp_path / "refit", tmp_path / "earlier", ignore=shutil.ignore_patterns(NEWEST))
    content = {name: value for name, value in folders.read_json(earlier / "manifest.json").items() if name == "kind"}
    (earlier / "manifest.json").unlink()
    folders.write_manifest(earlier, content)
    for split, folder in (("blend", earlier), ("test", newest), ("forecast", newest)):
        expected = TreeMember(folder).predict(prepared, split)["prediction"]
        assert np.array_equal(TreeMember(tmp_path / "refit").predict(prepared, split)["prediction"], expected), split
    other = TreeMember(earlier).predict(prepared, "test")["prediction"]
    assert not np.array_equal(other, TreeMember(newest).predict(prepared, "test")["prediction"])


@pytest.mark.parametrize("library", ["catboost", "extra_trees", "linear"])
def test_a_library_that_trains_by_itself_is_refitted_too(library: str, prepared: Path, tmp_path: Path) -> None:
    """Training would end with a traceback, or refit with another number of trees or on other rows."""
    pytest.importorskip(library) if library == "catboost" else None
    summary = member.train(settings(library, prepared, tmp_path / "m", refit=True, learning_rate=0.2))
    module = library_module(library)
    train, validation, blend = (rows_of(prepared, split) for split in ("train", "validation", "blend"))
    by_hand, _, _ = member.resolve(settings(library, prepared, tmp_path, learning_rate=0.2), train, validation)
    _, history, best = module.train_copies(by_hand, [(train, validation)], Training(), map)
    count = summary["candidate" if library == "linear" else "trees"]
    assert (count, summary["validation_log_loss"]) == (best, history[best - 1]["log_loss"])
    by_hand = dataclasses.replace(by_hand, num_rounds=best)
    joined = train.joined(validation)
    for split, rows_to_fit, rows_to_predict in (
        ("blend", joined, blend),
        ("test", joined.joined(blend), rows_of(prepared, "test")),
    ):
        (booster,), _, _ = module.train_copies(by_hand, [(rows_to_fit, None)], Training(is_refit=True), map)
        expected = module.predict(booster, rows_to_predict.matrix())
        assert np.array_equal(TreeMember(tmp_path / "m").predict(prepared, split)["prediction"], expected), split


def test_a_refit_has_the_learning_rate_of_the_first_training(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a higher rate in a short time, the refits would have few trees of the low rate of the settings."""
    pytest.importorskip("catboost")
    monkeypatch.setattr(copies, "rate_in_time", lambda rate, of_a_tree, left: 0.9)
    short = member.train(settings("catboost", prepared, tmp_path / "short", refit=True, max_seconds=600.0))
    same = member.train(settings("catboost", prepared, tmp_path / "same", refit=True, learning_rate=0.9))
    assert (short["learning_rate"], short["trees"]) == (0.9, same["trees"])
    for file in ("model.cbm", f"{NEWEST}/model.cbm"):
        assert (tmp_path / "short" / file).read_bytes() == (tmp_path / "same" / file).read_bytes()


def test_refits_differ_in_their_seed_and_are_averaged(library: str, prepared: Path, tmp_path: Path) -> None:
    """The second booster would be the first again, or only one of them would predict."""
    one = member.train(settings(library, prepared, tmp_path / "one", refit=True))
    two = member.train(settings(library, prepared, tmp_path / "two", refit=True, num_refits=2))
    other = member.train(settings(library, prepared, tmp_path / "other", refit=True, seed=1))
    assert (one.get("models"), two["models"]) == (None, 2)
    module = library_module(library)
    for folder in ("", NEWEST):
        first, second = (tmp_path / "two" / folder / name for name in model_files(module.FILE, 2))
        assert first.read_bytes() == (tmp_path / "one" / folder / module.FILE).read_bytes()
        if other["trees"] == one["trees"]:
            assert second.read_bytes() == (tmp_path / "other" / folder / module.FILE).read_bytes()
        assert second.read_bytes() != first.read_bytes()
        split = "test" if folder else "blend"
        features = next(rows_of(prepared, split).batches())
        each = [module.predict(booster, features) for booster, _ in models_of(tmp_path / "two" / folder)]
        expected = average_predictions("probability", each)
        assert np.allclose(TreeMember(tmp_path / "two").predict(prepared, split)["prediction"], expected, atol=1e-7)


def test_rows_with_few_positives_can_be_split(prepared: Path) -> None:
    """With 24 positives no leaf reaches the default weight, and every row would have the same prediction."""
    train = rows_of(prepared)
    hot = np.flatnonzero(train.column("hot") == 1)[:24]
    few = train.take(np.union1d(hot, np.flatnonzero(train.column("hot") == 0)[:600]))
    config, _, _ = member.resolve(settings("xgboost", prepared, prepared), few)
    assert config.min_leaf_weight == pytest.approx(24 * 600 / 624 / 20)
    assert member.resolve(settings("xgboost", prepared, prepared, min_leaf_weight=7.0), few)[0].min_leaf_weight == 7.0
    small = few.take(np.arange(len(few)))
    small.task = dataclasses.replace(few.task, weight="weight")
    column = few.column
    small.column = lambda name: np.full(len(few), 1e-4) if name == "weight" else column(name)  # type: ignore[method-assign]
    config, _, _ = member.resolve(settings("xgboost", prepared, prepared), small)
    assert config.min_leaf_weight == pytest.approx(24 * 600 / 624 / 20)  # weights are relative to their mean


def test_few_positives_are_not_ranked(prepared: Path) -> None:
    """The score of the order of a few positives would stop the training after one or two trees."""
    train, validation = rows_of(prepared), rows_of(prepared, "validation")
    hot, other = (np.flatnonzero((validation.column("hot") == 1) == is_hot) for is_hot in (True, False))
    for num_hot, expected in ((19, "log_loss"), (20, "average_precision")):
        few = validation.take(np.union1d(hot[:num_hot], other))
        config, objective, _ = member.resolve(settings("xgboost", prepared, prepared), train, few)
        assert (config.metric, objective.metric) == (expected, expected)
        named = settings("xgboost", prepared, prepared, metric="roc_auc")
        assert member.resolve(named, train, few)[1].metric == "roc_auc"


def test_a_refit_keeps_all_trees(library: str, prepared: Path, tmp_path: Path) -> None:
    """The number of trees would be chosen by scores of training rows."""
    train, validation = rows_of(prepared), rows_of(prepared, "validation")
    config = settings(library, prepared, tmp_path, learning_rate=1.0)
    _, history, best = library_module(library).train(config, train, validation, Training(is_refit=True))
    assert (len(history), best) == (25, 25)


def test_a_refit_that_was_stopped_ends_with_the_same_bits(
    library: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted job would leave the trees of the first training as the member."""
    module = library_module(library)
    whole = settings(library, prepared, tmp_path / "whole", refit=True)
    member.train(whole)
    train = module.train

    def train_until_refit(config: TreesConfig, *splits: rows.TreeData) -> object:
        if splits[-1].is_refit:  # type: ignore[attr-defined]
            raise Stopped
        return train(config, *splits)

    cut = settings(library, prepared, tmp_path / "cut", refit=True, checkpoint_s=0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", train_until_refit)
        assert member.train(cut)["status"] == "preempted"
    assert not (tmp_path / "cut").exists()
    assert member.train(cut, "auto")["status"] == "done"
    assert (tmp_path / "cut" / module.FILE).read_bytes() == (tmp_path / "whole" / module.FILE).read_bytes()


def test_fewer_refits_on_blend_still_predict_a_regression(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose time ended before its last refit on blend could not predict test, since it has too many scalings."""
    config = settings(
        "lightgbm", prepared, tmp_path / "out", refit=True, num_refits=2, objective="regression", target="growth"
    )
    boosters = refit.boosters

    def one_booster_on_blend(*arguments: Any) -> Iterator[Any]:
        return itertools.islice(boosters(*arguments), 1 if BLEND in arguments[2] else None)

    monkeypatch.setattr(refit, "boosters", one_booster_on_blend)
    member.train(config)
    summaries = [folders.read_json(tmp_path / "out" / folder / "summary.json") for folder in ("", NEWEST)]
    assert [(summary["models"], len(summary["scalings"])) for summary in summaries] == [(2, 2), (1, 1)]
    assert np.isfinite(TreeMember(tmp_path / "out").predict(prepared, "test")["prediction"]).all()
