"""Fits of small tables in this process, for tests of the whole command."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ensemble import verification
from ensemble.pipeline import run
from ensemble.pipeline.budget import Budget
from ensemble.pipeline.plan import PlannedMember
from ensemble.pipeline.settings import config_class

NUM_ROWS, NUM_NEW = 110, 10
SETTINGS = {"num_rounds": 8, "early_stopping_rounds": 8, "learning_rate": 0.3, "min_leaf_weight": 1.0, "chunk_rounds": 4}


def people(kind: str = "binary") -> pl.DataFrame:
    """A table whose target depends on age and colour; the last rows have no target."""
    generator = np.random.default_rng(0)
    age, colour = generator.integers(18, 80, NUM_ROWS), generator.choice(["amber", "blue", "coral"], NUM_ROWS)
    truth = (age - 45) / 15 + 2 * (colour == "coral") + 0.4 * generator.standard_normal(NUM_ROWS)
    target = {
        "binary": np.where(truth > 0.7, "yes", "no"),
        "multiclass": np.array(["low", "mid", "top"])[np.digitize(truth, [-0.2, 1.4])],
        "regression": (1000 * truth).round(1),
    }[kind]
    day = np.datetime64("2024-01-01") + 7 * np.arange(NUM_ROWS).astype("timedelta64[D]")
    names = [f"p{row:03}" for row in range(NUM_ROWS)]
    frame = pl.DataFrame({"who": names, "age": age, "colour": colour, "day": day.astype(str), "y": target})
    return frame.with_columns(y=pl.when(pl.int_range(NUM_ROWS) < NUM_ROWS - NUM_NEW).then("y"))


def planned(*names: str) -> list[PlannedMember]:
    return [PlannedMember(name=name, kind="trees", settings={"library": name.split("-")[0], **SETTINGS}) for name in names]


def configured(table: Path, out: Path, **settings: Any) -> Any:
    settings = {"target": "y", "id": "who", "drop": ("day",), "num_folds": 3, "time_limit": 0.0, "num_draws": 4, **settings}
    return config_class("table")(out=str(out), source=(str(table),), **settings)


def fit(table: Path, out: Path, resume: bool = False, **settings: Any) -> list[dict[str, Any]]:
    config = configured(table, out, **settings)
    return run.fit(config, "table", resume, Budget(config.time_limit, passed=0.0))


def bits(out: Path) -> dict[str, bytes]:
    """The content of files with models, predictions and scores, which does not depend on the clock."""
    contents = {}
    for file in sorted(out.rglob("*")):
        if file.suffix in (".parquet", ".csv", ".ubj", ".txt") or file.name in (
            "scores.json",
            "known.json",
            "metrics.jsonl",
        ):
            contents[str(file.relative_to(out))] = file.read_bytes()
    return contents


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of every file under a folder, except the record of verified files, which depends on their age."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != verification.NAME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
