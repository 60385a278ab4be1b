"""Trees grown anew on train and validation: as many, of those rows, and to the same bits after an interruption."""

from pathlib import Path

import pytest

from ensemble import folders
from ensemble.trees import rows
from ensemble.trees import train as member
from ensemble.trees.boosting import Stopped, Training
from ensemble.trees.predict import library_module
from ensemble.trees.settings import TreesConfig


def settings(library: str, prepared: Path, out: Path, **others: object) -> TreesConfig:
    return TreesConfig(
        library=library, data=str(prepared), out=str(out), num_rounds=25, early_stopping_rounds=5, threads=1, **others
    )  # type: ignore[arg-type]


def test_a_refit_is_a_training_on_both_splits(library: str, prepared: Path, tmp_path: Path) -> None:
    """The newest rows would be left out, or other trees be kept than those that early stopping chose the number of."""
    plain = member.train(settings(library, prepared, tmp_path / "plain"))
    config = settings(library, prepared, tmp_path / "refit", refit=True)
    summary = member.train(config)
    assert summary["trees"] == plain["trees"]
    about = folders.read_manifest(prepared)
    assert summary["rows"] == about["splits"]["train"]["rows"] + about["splits"]["validation"]["rows"]
    train, validation = (rows.TreeData(prepared, split, about) for split in ("train", "validation"))
    module = library_module(library)
    by_hand = settings(library, prepared, tmp_path, memory="in_core")
    by_hand = TreesConfig(**{**vars(by_hand), "num_rounds": summary["trees"], "early_stopping_rounds": 1000})
    booster, history, _ = module.train(by_hand, train.joined(validation), validation, Training(is_refit=True))
    assert len(history) == summary["trees"]
    assert module.to_bytes(booster) == module.to_bytes(module.load(tmp_path / "refit" / module.FILE))
    assert (tmp_path / "refit" / module.FILE).read_bytes() != (tmp_path / "plain" / module.FILE).read_bytes()


def test_all_trees_are_kept_though_an_earlier_number_scored_better(library: str, prepared: Path, tmp_path: Path) -> None:
    """The trees would be cut by scores of rows that they have learned."""
    about = folders.read_manifest(prepared)
    train, validation = (rows.TreeData(prepared, split, about) for split in ("train", "validation"))
    config = settings(library, prepared, tmp_path, learning_rate=1.0)
    _, history, best = library_module(library).train(config, train, validation, Training(is_refit=True))
    assert (len(history), best) == (25, 25)


def test_a_refit_that_was_stopped_ends_with_the_same_bits(
    library: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted job would leave the trees of the first half as the member."""
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
