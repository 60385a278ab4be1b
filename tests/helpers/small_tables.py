"""Tables that are prepared in this process, and ensembles that the commands fit on them, for tests of the recipe table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from scripts_run import fork

from ensemble.arrow import open_table
from ensemble.recipes.table import prepare as table
from ensemble.recipes.table.settings import PrepareConfig


def prepare(folder: Path, *files: Path | str, **settings: Any) -> dict[str, Any]:
    """Prepare files in `folder`/out, and return the manifest; the target is `y` unless `settings` names another."""
    given = {"out": str(folder / "out"), "source": tuple(map(str, files)), "target": "y", **settings}
    return table.prepare(PrepareConfig(**given))


def rows_of(folder: Path, manifest: dict[str, Any]) -> pl.DataFrame:
    """All rows in the order in which they are stored, with the column `split`. manifest : the manifest of `folder`/out."""
    tables = {name: pl.from_arrow(open_table(folder / "out" / "rows" / name)) for name in manifest["splits"]}
    frames = [rows.with_columns(split=pl.lit(name)) for name, rows in tables.items()]
    return pl.concat(frames, how="diagonal")


def names_of(folder: Path, column: str) -> pl.Series:
    """The texts of the numbers in a column of `folder`/out."""
    return pl.from_arrow(open_table(folder / "out" / "names" / column))["name"]


def fit_trees(folder: Path, source: Path, *settings: str, num_rounds: int, run: Callable[..., str] = fork) -> str:
    """Prepare a table, train both tree libraries and combine them; the output of the last command."""
    data, trees, predictions = f"data={folder}/data", f"{folder}/members", f"{folder}/predictions"
    run("prepare_data", "--recipe", "table", f"source=[{source}]", f"out={folder}/data", *settings)
    rounds = (f"num_rounds={num_rounds}", "learning_rate=0.1", "threads=1", "together=one_after_other")
    run("train_trees", "library=both", data, f"out={trees}", *rounds)
    for library in ("xgboost", "lightgbm"):
        run("predict", f"member={trees}/{library}", data, f"out={predictions}", "threads=1")
    return run("ensemble_predictor", "fit", f"predictions={predictions}", data, f"out={folder}/ensemble", "num_draws=20")
