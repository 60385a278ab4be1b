"""What is refused before anything is written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from prediction_files import change, fit

from ensemble import folders, predictions
from ensemble.errors import UserError
from ensemble.predictor import fit as predictor
from ensemble.predictor import member_files

Damage = Callable[[Path], Any]


def every_test_file(**changed: Any) -> Damage:
    """The same change for all members, so that they still agree with each other."""
    return lambda folder: [change(path, **changed) for path in folder.glob("*.test.parquet")]


def every_blend_file(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """The same edit of a column for all members and baselines."""

    def damage(folder: Path) -> None:
        for path in folder.glob("*.blend.parquet"):
            change(path, **{name: edit(pq.read_table(path)[name].to_numpy().copy())})

    return damage


def of_vague(split: str, name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """One column of one member's file."""

    def damage(folder: Path) -> None:
        path = folder / f"vague.{split}.parquet"
        change(path, **{name: edit(pq.read_table(path)[name].to_numpy().copy())})

    return damage


def of_models(name: str, **model_of_split: str) -> Damage:
    """The model by which each split of one member was predicted."""

    def damage(folder: Path) -> None:
        for split, model in model_of_split.items():
            change(folder / f"{name}.{split}.parquet", config={"kind": "xgboost", "model": model})

    return damage


def remove(pattern: str) -> Damage:
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def rename(old: str, new: str) -> Damage:
    return lambda folder: [path.rename(folder / path.name.replace(old, new)) for path in folder.glob(f"{old}*")]


def second_is(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: np.concatenate([values[:1], [value], values[2:]]).astype(values.dtype)


def last_is_first(values: np.ndarray) -> np.ndarray:
    return np.append(values[:-1], values[0])


def cut(folder: Path) -> None:
    path = folder / "vague.test.parquet"
    table = pq.read_table(path)[:-1]
    metadata = json.loads(table.schema.metadata[predictions.KEY])
    del metadata["checksums"]  # as another program writes it
    pq.write_table(table.replace_schema_metadata({predictions.KEY: json.dumps(metadata)}), path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove("vague.test.parquet"), "vague.test.parquet does not exist: write it"),
        (remove("vague.forecast.parquet"), "vague.forecast.parquet does not exist: write it"),
        (lambda folder: (folder / "vague.test.parquet").write_bytes(b"PAR1"), "is not a valid Parquet file"),
        (remove("[cv]*"), "there is no member in .*, only baselines"),
        (remove("*"), "there are no prediction files of blend in"),
        (of_vague("test", "prediction", second_is(np.nan)), "1 of .* predictions are NaN"),
        (of_vague("blend", "prediction", second_is(1.5)), "member 'vague' predicts 1.5 .*, which is not a probability"),
        (of_vague("test", "row_id", last_is_first), "is predicted more than once"),
        (of_vague("test", "row_id", second_is(10**9)), "member vague lacks 1 of the rows of clear and has 1 others"),
        (cut, "member vague lacks 1 of the rows of clear and has 0 others"),
        (of_vague("test", "target", lambda target: 1 - target), "member vague has another target than clear"),
        (of_vague("test", "group", lambda week: week + 1), "member vague has another group than clear"),
        (of_vague("test", "cluster", lambda product: product + 1), "member vague has another cluster than clear"),
        (
            lambda folder: change(folder / "vague.blend.parquet", fingerprint="f0"),
            "predicted blend of data with the .* f0",
        ),
        (every_blend_file("target", lambda target: 1 - target), r"row \d+ has hot=\d in the prediction files, and \d in"),
        (
            every_blend_file("cluster", lambda product: product + 1),
            r"row \d+ has product=\d+ in the prediction files, and \d",
        ),
        (every_blend_file("row_id", lambda row_id: row_id + 10**6), r"have a row \d+, which .*rows/blend lacks"),
        (every_test_file(fingerprint="f0"), "predicted test of data with the .* f0"),
        (
            lambda folder: shutil.copy(folder / "vague.test.parquet", folder / "vague.blend.parquet"),
            "vague.blend.parquet holds vague's predictions of test: name it vague.test.parquet",
        ),
        (
            of_models("vague", blend="new", test="old", forecast="new"),
            "the predictions of member vague for blend and test are of different models, .*: predict all splits again",
        ),
        (
            of_models("clear", blend="new", test="new", forecast="old"),
            "member clear for blend and forecast are of different",
        ),
        (rename("vague", "new"), "new.blend.parquet holds vague's predictions of blend: name it vague.blend.parquet"),
        (rename("vague", "prediction"), "name=prediction is a name that the ensemble uses itself: give another name="),
        (rename("vague", "rank"), "name=rank is a name that the ensemble uses itself: give another name="),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    damage: Damage, sentence: str, copied: Path, prepared: Path, tmp_path: Path
) -> None:
    """An ensemble of forecasts for other data, rows or splits: its score would be wrong, and nobody would see why."""
    damage(copied)
    with pytest.raises(UserError, match=sentence) as raised:
        fit(copied, prepared, tmp_path / "ensemble")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"members": ("clear", "nobody")}, "nobody.blend.parquet does not exist: write it with scripts/predict.py"),
        ({"members": ("clear", "clear")}, "two members have one name in clear, clear"),
        ({"members": ("ensemble",)}, "name=ensemble is a name that the ensemble uses itself: give another name="),
        ({"seed": -1}, "seed=-1 is impossible: it must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, Any], sentence: str, files: Path, prepared: Path, tmp_path: Path
) -> None:
    """A typo would end in a traceback, or in an ensemble of one member twice."""
    with pytest.raises(UserError, match=sentence):
        fit(files, prepared, tmp_path / "ensemble", **settings)
    with pytest.raises(UserError, match="num_draws=0 is impossible"):
        predictor.fit(files, prepared, tmp_path / "ensemble", num_draws=0)
    assert list(tmp_path.iterdir()) == []


def test_other_data_are_refused(files: Path, prepared_copy: Path, tmp_path: Path) -> None:
    """The forecast would name products of other data."""
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "first_week": "1999-01-04"})
    with pytest.raises(UserError, match=r"member clear predicted blend of data with the .*: predict again with this"):
        fit(files, prepared_copy, tmp_path / "ensemble")


def test_a_folder_without_permission_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of another user, who has the umask 077, no file would be found, and the advice would be to predict."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match=r"^predictions cannot be read .Permission denied.: check its permissions$"):
        member_files.read(Path("predictions"), "data", {"splits": {}}, (), "blend", "test")
