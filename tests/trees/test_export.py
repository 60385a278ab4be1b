"""ONNX files of tree members: every objective of both libraries, on values for which an export is easily wrong."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import prepared_folders
import pyarrow as pa
import pytest
from known_rules import KINDS, METRICS
from tree_members import ROOT, config_of, rows_of

from ensemble import folders
from ensemble.errors import Failure, UserError
from ensemble.task import Task
from ensemble.trees import export
from ensemble.trees import train as member
from ensemble.trees.predict import TreeMember, library_module

NUM_ROWS = {"train": 1500, "validation": 600, "test": 600}
FEATURES: list[dict[str, Any]] = [
    {"name": "tied"}, {"name": "gappy"}, {"name": "fine"},
    {"name": "code", "categories": 12, "values": list("abcdefghijkl")},
]  # fmt: skip
Prepare = Callable[[str], Path]
Train = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """Prepared data of a kind of task: ties, a feature that is missing at times, thresholds between floats, categories."""

    @functools.cache
    def prepare(kind: str) -> Path:
        folder, tables = tmp_path_factory.mktemp("prepared") / kind, {}
        for number, (split, num_rows) in enumerate(NUM_ROWS.items()):
            generator = np.random.default_rng(number)
            tied, gappy, fine = generator.standard_normal((3, num_rows))
            code = generator.integers(12, size=num_rows).astype(float)
            truth = tied.round(1) + gappy + np.sin(5 * fine) + np.sin(7 * code) + 0.2 * generator.standard_normal(num_rows)
            result = {
                "target": {
                    "binary": truth > 0.5,
                    "multiclass": np.digitize(truth, [-0.5, 0.8]),
                    "regression": 100 * truth + 1000,
                    "ranking": np.clip(np.floor(truth + 1), 0, 4),
                }[kind],
                "tied": tied.round(1),
                "gappy": np.where(generator.random(num_rows) < 0.2, np.nan, gappy),
                "fine": 1000 * fine,
                "code": np.where(generator.random(num_rows) < 0.1, np.nan, code),
            }
            whole = {"row_id": np.arange(num_rows), "group": np.arange(num_rows) // 20, "cluster": np.arange(num_rows)}
            arrays = {name: pa.array(values, pa.float32()) for name, values in result.items()}
            tables[split] = pa.table({**{name: pa.array(values, pa.int64()) for name, values in whole.items()}, **arrays})
        classes = ("low", "middle", "high") if kind == "multiclass" else ()
        task = Task(kind=kind, target="target", metric=METRICS[kind], group="group", cluster="cluster", classes=classes)
        prepared_folders.write(folder, tables, task, FEATURES)
        return folder

    return prepare


@pytest.fixture(scope="module")
def trained(data: Prepare, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """The folder of a member of a library that learned a kind of task."""

    @functools.cache
    def train(library: str, kind: str) -> Path:
        out = tmp_path_factory.mktemp("trees") / library
        settings = {"num_rounds": 12, "learning_rate": 0.3, "min_leaf_weight": 1.0}
        member.train(config_of(library, data(kind), out, **settings))
        return out

    return train


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_predicts_as_the_member(library: str, kind: str, data: Prepare, trained: Train, tmp_path: Path) -> None:
    """The file would predict other values than those in the report."""
    folder, file = trained(library, kind), tmp_path / "new/member.onnx"
    output = export.export(folder, file, data(kind))
    assert output["rows"] == export.NUM_CHECKED + NUM_ROWS["test"]
    expected = TreeMember(folder).predict(data(kind), "test")["prediction"]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    features = rows_of(data(kind), "test").matrix()
    (result,) = session.run(["prediction"], {"features": features})
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= 1e-5 * max(1, np.abs(expected).max())
    assert np.ptp(expected) > 0.1
    (one,) = session.run(None, {"features": features[:1]})
    assert one == pytest.approx(result[:1], rel=1e-6)  # alone, ONNX Runtime adds the leaves in another order


def test_trees_without_a_split_are_exported(library: str, data: Prepare, tmp_path: Path) -> None:
    """The export of a member that learned nothing would end in a traceback: the leaves of a ranking would be integers."""
    member.train(config_of(library, data("ranking"), tmp_path / "member", num_rounds=2, min_leaf_weight=1e9))
    export.export(tmp_path / "member", tmp_path / "member.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "member.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"features": rows_of(data("ranking"), "test").matrix()})
    assert scores.tolist() == TreeMember(tmp_path / "member").predict(data("ranking"), "test")["prediction"].tolist()
    assert np.ptp(scores) == 0


def test_the_file_contains_its_description(library: str, data: Prepare, trained: Train, tmp_path: Path) -> None:
    """The order of the features, the numbers of the categories, and the training data would be unknown."""
    export.export(trained(library, "multiclass"), tmp_path / "member.onnx", data("multiclass"))
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "member.onnx").metadata_props}
    assert json.loads(metadata["features"]) == FEATURES
    assert json.loads(metadata["classes"]) == ["low", "middle", "high"]
    assert json.loads(metadata["opset"]) == {"ai.onnx": 17, "ai.onnx.ml": 3}
    assert metadata["fingerprint"] == folders.read_manifest(data("multiclass"))["fingerprint"]
    assert metadata["model"] == folders.verify(trained(library, "multiclass"))["fingerprint"]
    assert (metadata["library"], metadata["output"], metadata["recipe"]) == (library, "probabilities", "small")


def test_categories_are_distinguished(library: str, trained: Train) -> None:
    """The tests here could not fail for categories: no tree would split on them, or only on single categories."""
    module = library_module(library)
    booster = module.load(trained(library, "binary") / module.FILE)
    trees = export.READERS[library](booster).trees
    splits = [node for tree in trees for node in tree if isinstance(node, export.Split)]
    assert max(len(split.categories or ()) for split in splits) > 1
    assert {split.missing_to_yes for split in splits if split.categories is None} == {True, False}


def test_other_kinds_of_members_are_refused(tmp_path: Path) -> None:
    """The export of a linear model or of CatBoost would end in a traceback."""
    member_folder = tmp_path / "member"
    member_folder.mkdir()
    folders.write_json(member_folder / "summary.json", {"kind": "linear"})
    folders.write_manifest(member_folder, {"kind": member.KIND})
    with pytest.raises(UserError, match="is of kind 'linear', and only xgboost and lightgbm can be exported"):
        export.export(member_folder, tmp_path / "member.onnx")


def nearest(value: float) -> float:
    return float(np.float32(value))


def changed(change: Callable[[export.Split], dict[str, Any]]) -> Callable[[Any], Callable[[Any], export.Trees]]:
    """A reader of trees that gets one thing wrong."""

    def reader(right: Callable[[Any], export.Trees]) -> Callable[[Any], export.Trees]:
        def wrong(booster: Any) -> export.Trees:
            result = right(booster)
            trees = [
                [dataclasses.replace(node, **change(node)) if isinstance(node, export.Split) else node for node in tree]
                for tree in result.trees
            ]
            return dataclasses.replace(result, trees=trees)

        return wrong

    return reader


@pytest.mark.parametrize(
    ("library", "change"),
    [
        ("xgboost", lambda node: {"or_equal": True}),
        ("xgboost", lambda node: {"missing_to_yes": True}),
        ("xgboost", lambda node: {"categories": node.categories[1:]} if len(node.categories or ()) > 1 else {}),
        ("lightgbm", lambda node: {"or_equal": False}),
        ("lightgbm", lambda node: {"missing_to_yes": False}),
        ("lightgbm", lambda node: {"missing_to_yes": True}),
        ("lightgbm", lambda node: {"threshold": float(np.nextafter(np.float32(node.threshold), np.float32(np.inf)))}),
    ],
)
def test_a_wrong_file_is_never_written(
    library: str, change: Any, trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a new version of a library stored its trees in another way, a wrong file would be written without a message."""
    monkeypatch.setitem(export.READERS, library, changed(change)(export.READERS[library]))
    with pytest.raises(Failure, match=r"differs from .* by up to .* on \d+ of 20000 rows, .*: nothing was written"):
        export.export(trained(library, "binary"), tmp_path / "member.onnx")
    assert list(tmp_path.iterdir()) == []


def test_thresholds_are_rounded_down(trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value equal to a threshold of LightGBM would go to the other child, as with the usual converter."""
    for value in (0.1, -0.1, 1 / 3, 0.5, -2.0):
        rounded = export.float32_threshold(value)
        assert nearest(rounded) == rounded <= value < float(np.nextafter(np.float32(rounded), np.float32(np.inf)))
    near_zero = nearest(1e-35)
    assert [export.float32_threshold(value) for value in (0.0, 1e-36, near_zero)] == [near_zero] * 3
    assert -1.0001e-35 < export.float32_threshold(-near_zero) == export.float32_threshold(-1e-36) < -near_zero
    assert [export.float32_threshold(value) for value in (1e300, -1e300)] == [np.inf, -np.inf]
    monkeypatch.setattr(export, "float32_threshold", nearest)
    with pytest.raises(Failure, match="nothing was written"):
        export.export(trained("lightgbm", "regression"), tmp_path / "member.onnx")


def test_a_split_by_whether_a_value_is_missing(tmp_path: Path) -> None:
    """A member with such a split could not be exported: LightGBM's threshold of 1e300 is infinity in float32."""
    generator, tables = np.random.default_rng(0), {}
    for split, num_rows in NUM_ROWS.items():
        is_missing, ids = generator.random(num_rows) < 0.4, np.arange(num_rows)
        columns = {
            "target": 5.0 * is_missing + 0.1 * generator.standard_normal(num_rows),
            "gappy": np.where(is_missing, np.nan, generator.standard_normal(num_rows)),
        }
        arrays = {name: pa.array(values, pa.float32()) for name, values in columns.items()}
        tables[split] = pa.table({**{name: pa.array(ids) for name in ("row_id", "group", "cluster")}, **arrays})
    task = Task(kind="regression", target="target", metric=METRICS["regression"], group="group", cluster="cluster")
    prepared_folders.write(tmp_path / "prepared", tables, task, [{"name": "gappy"}])
    member.train(config_of("lightgbm", tmp_path / "prepared", tmp_path / "lightgbm", num_rounds=3, min_leaf_weight=1.0))
    export.export(tmp_path / "lightgbm", tmp_path / "member.onnx")
    file, trees = onnxruntime.InferenceSession((tmp_path / "member.onnx").read_bytes()), TreeMember(tmp_path / "lightgbm")
    rows = np.array([[np.nan], [1], [np.inf], [-np.inf], [3e38]], np.float32)
    (result,) = file.run(None, {file.get_inputs()[0].name: rows})
    np.testing.assert_allclose(np.ravel(result), trees.predict_features(rows), rtol=1e-5)


def test_invalid_exports_are_refused(data: Prepare, trained: Train, tmp_path: Path) -> None:
    """A damaged member, other data or an unknown objective would end in a traceback, or in a wrong file."""
    import xgboost

    copy = tmp_path / "member"
    copy.mkdir()
    for path in trained("xgboost", "binary").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "model.ubj").write_bytes(b"x" * (copy / "model.ubj").stat().st_size)
    with pytest.raises(UserError, match="was changed after it was written"):
        export.export(copy, tmp_path / "member.onnx")
    with pytest.raises(UserError, match=r"has the fingerprint .*, so its test split may contain training rows"):
        export.export(trained("xgboost", "binary"), tmp_path / "member.onnx", data("regression"))
    rows = xgboost.DMatrix(np.ones((4, 2)), np.ones(4))
    booster = xgboost.train({"objective": "count:poisson", "nthread": 1}, rows, 1)
    with pytest.raises(UserError, match="the objective count:poisson cannot be exported: train with one of binary:logistic"):
        export.read_xgboost(booster)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: (Not a directory|File exists)"):
        export.export(trained("xgboost", "binary"), tmp_path / "file/member.onnx")
    assert not list(tmp_path.glob("*.onnx"))


def test_the_script_prints_difference_and_speed(trained: Train, tmp_path: Path) -> None:
    """The user would not know how exact and how fast the file is."""
    words = [f"member={trained('lightgbm', 'binary')}", "out=member.onnx"]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/export_model.py", *words], cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error"}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, neutral, by_onnx, by_native = done.stdout.splitlines()
    assert first.startswith("member.onnx: differs by ")
    assert "get a neutral prediction" in neutral
    assert by_onnx.startswith("one row by onnx: ")
    assert by_native.startswith("one row by native: ")
    assert [path.name for path in tmp_path.iterdir()] == ["member.onnx"]


def test_the_script_refuses_another_recipe(trained: Train, tmp_path: Path) -> None:
    """The option would be ignored for trees, unlike for networks."""
    words = ["--recipe", "emulator", f"member={trained('lightgbm', 'binary')}", "out=member.onnx"]
    script = [sys.executable, ROOT / "scripts/export_model.py", *words]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, "for the recipe small, not for emulator" in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.iterdir())


def test_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    """out=precious.csv would replace a table by a model."""
    (tmp_path / "precious.csv").write_text("1,2\n")
    with pytest.raises(
        UserError, match=r"precious.csv exists and this project did not write it, so the ONNX file does not replace it"
    ):
        export.export(tmp_path / "member", tmp_path / "precious.csv")
    assert (tmp_path / "precious.csv").read_text() == "1,2\n"
