"""Small tables with folds, and the members that tests of copies train on them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tree_members

from ensemble import folders
from ensemble.data import out_of_fold, prepared
from ensemble.data.cross_validation import CrossValidation, Fold
from ensemble.recipes.table.prepare import prepare
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.trees.predict import library_module, model_files
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

NUM_ROWS = 260
NUM_LABELLED = 240
KINDS = ("regression", "binary", "multiclass")
SETTINGS: dict[str, Any] = {
    "num_rounds": 12, "early_stopping_rounds": 12, "learning_rate": 0.3, "min_leaf_weight": 1.0, "l2": 1.0, "max_leaves": 8,
    "threads": 1, "chunk_rounds": 4, "checkpoint_s": 0.0,
}  # fmt: skip


def frame_of(kind: str, offset: float = 0.0) -> pl.DataFrame:
    """The target depends on two numbers and a colour; it is missing in the last rows, which are the forecast."""
    generator = np.random.default_rng(0)
    size, other = generator.uniform(-1, 1, (2, NUM_ROWS)).round(3)
    colour = generator.choice(["amber", "blue", "coral"], NUM_ROWS)
    truth = 3 * size + other + 2 * (colour == "coral") + 0.2 * generator.standard_normal(NUM_ROWS)
    target = {
        "regression": offset + (10 * truth).round(),
        "binary": np.where(truth > 0.7, "yes", "no"),
        "multiclass": np.array(["high", "low", "mid"])[np.digitize(truth, [-0.5, 1.5])],
    }[kind]
    frame = pl.DataFrame({"colour": colour, "size": size, "other": other, "day": np.arange(NUM_ROWS), "y": target})
    return frame.with_columns(y=pl.when(pl.int_range(NUM_ROWS) < NUM_LABELLED).then("y"))


def prepared_of(folder: Path, frame: pl.DataFrame, name: str = "data", **settings: Any) -> Path:
    """A folder of prepared data from a table with the target `y`."""
    table = folder / f"{name}.parquet"
    frame.write_parquet(table)
    settings = {"target": "y", "num_folds": 3, **settings}
    manifest = prepare(PrepareConfig(out=str(folder / name), source=(str(table),), **settings))
    prepared.check("table", folder / name, manifest)
    return folder / name


def config_of(library: str, data: Path, out: Path | str = "", **settings: Any) -> TreesConfig:
    return tree_members.config_of(library, data, out, **{**SETTINGS, **settings})


def folds_of(data: Path) -> list[Fold]:
    cv = CrossValidation.from_manifest(folders.read_manifest(data))
    assert cv
    return cv.folds(data, "cluster")


def models_of(folder: Path) -> list[tuple[Any, Scaling]]:
    """The models in the files of a member, each with the scale on which it learned the target."""
    summary = folders.read_json(folder / "summary.json")
    library = library_module(summary["kind"])
    files = model_files(library.FILE, summary.get("models", 1))
    models = [library.load(folder / file) for file in files]
    return list(zip(models, Scaling.all_from_summary(summary, len(files)), strict=True))


def content(folder: Path) -> dict[str, bytes]:
    """The models and the out-of-fold predictions of a member."""
    files = [*folder.glob("model*"), folder / out_of_fold.FILE, folder / "known.json"]
    assert len(files) >= 3
    return {file.name: file.read_bytes() for file in files}
