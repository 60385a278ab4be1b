"""Settings with which copies cannot be trained, and out-of-fold predictions of other rows, have an error message."""

from pathlib import Path
from typing import Any

import pytest
from copied_members import config_of, frame_of, prepared_of

from ensemble.data import out_of_fold
from ensemble.errors import UserError
from ensemble.task import Task
from ensemble.trees import search, train
from ensemble.trees.predict import TreeMember
from ensemble.trees.settings import SearchConfig


@pytest.fixture(scope="module")
def trained(data_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "m"
    train.train(config_of("xgboost", data_of("binary"), out))
    return out


def test_other_out_of_fold_predictions_are_refused(trained: Path, data_of: Any, tmp_path: Path) -> None:
    """An ensemble would be fitted on predictions of other rows, or on a damaged file."""
    import shutil

    data = data_of("binary")
    task, fingerprint = Task(kind="binary", metric="log_loss", target="target", group="group", cluster="cluster"), "f00d"
    with pytest.raises(UserError, match=r"with the fingerprint \w+, but .* has the fingerprint f00d: predict the data"):
        out_of_fold.read(trained, data, task, fingerprint)
    with pytest.raises(UserError, match="has no out-of-fold predictions: train it on data for cross-validation"):
        out_of_fold.read(tmp_path, data, task, fingerprint)
    other = prepared_of(tmp_path, frame_of("binary"), seed=5, drop=("day",))
    with pytest.raises(UserError, match="oof"):
        TreeMember(trained).predict(other, "oof")
    damaged = Path(shutil.copytree(trained, tmp_path / "damaged"))
    file = bytearray((damaged / out_of_fold.FILE).read_bytes())
    file[len(file) // 2] ^= 1
    (damaged / out_of_fold.FILE).write_bytes(file)
    with pytest.raises(UserError, match=r"out_of_fold\.parquet was changed after it was written"):
        TreeMember(damaged)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"memory": "low"}, "memory=low does not support the folds of"),
        (
            {"library": "catboost", "objective": "regression"},
            "metric=log_loss scores a probability, and objective=regression target=target gives scores, of which only",
        ),
        (
            {"library": "catboost", "monotone": {"size": 1}},
            "monotone= is not supported with library=catboost: choose xgboost or lightgbm",
        ),
        (
            {"library": "linear", "monotone": {"size": 1}},
            "monotone= is not supported with library=linear: choose xgboost or lightgbm",
        ),
    ],
)
def test_settings_that_copies_do_not_support_are_refused(
    settings: dict[str, Any], sentence: str, data_of: Any, tmp_path: Path
) -> None:
    """A setting would be ignored without a message."""
    library = settings.pop("library", "xgboost")
    if library == "catboost":
        pytest.importorskip("catboost")
    with pytest.raises(UserError, match=sentence):
        train.train(config_of(library, data_of("binary"), tmp_path / "m", **settings))
    assert list(tmp_path.iterdir()) == []


def test_a_linear_model_is_trained_in_memory_and_has_no_search(prepared: Path, tmp_path: Path) -> None:
    """A setting would be ignored, or the search would end with a traceback."""
    with pytest.raises(UserError, match="memory=low does not support library=linear: leave memory=low out"):
        train.train(config_of("linear", prepared, tmp_path / "m", memory="low"))
    searched = config_of("linear", prepared, tmp_path / "m", search=SearchConfig(trials=2))
    with pytest.raises(UserError, match="a search does not support library=linear: choose xgboost or lightgbm"):
        search.search(searched)
    assert list(tmp_path.iterdir()) == []
