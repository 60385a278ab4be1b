"""A recipe of a user's own that predicts new raw data, from Python and by the command."""

import os
import subprocess
import sys
import types
from pathlib import Path

import polars as pl
import pytest
from launcher import ROOT
from scripts_run import forked

from ensemble.pipeline import fit_folder

NAME = "shop.counts"
SETTINGS = '''
import dataclasses

@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of the preparation."""

    source: str = "???"
    """A Parquet file."""
    out: str = "???"
    """The folder to write."""
    overwrite: bool = False
    """Replace `out` if it exists."""
'''
PREPARE = """
import dataclasses

import polars as pl
from ensemble import folders
from ensemble.arrow import write_table
from ensemble.task import Task

TASK = Task(kind="regression", target="sold", metric="root_mean_squared_error", group="group", cluster="row_id")

def write(rows, names, out, overwrite=False):
    number = pl.int_range(pl.len())
    ids = [number.alias("row_id"), (number % 5).alias("group")]
    rows = rows.with_columns(*ids, pl.col("colour", "sold").cast(pl.Float32))
    parts = {name: rows.filter(pl.col("row_id") % len(names) == k) for k, name in enumerate(names)}
    with folders.new_folder(out, overwrite, "prepared data") as folder:
        for name, part in parts.items():
            write_table(folder / "rows" / name, part.to_arrow())
        colour = {"name": "colour", "meaning": "colour", "unit": "category", "categories": 3, "source": "shop"}
        entries = {"kind": "prepared data", "recipe": "shop.counts", "task": dataclasses.asdict(TASK), "config": {}}
        splits = {name: {"rows": len(part)} for name, part in parts.items()}
        return folders.write_manifest(folder, {**entries, "splits": splits, "features": [colour], "alike": {}})

def prepare(config):
    rows = pl.read_parquet(config.source)
    return write(rows, ["train", "validation", "blend", "test"], config.out, config.overwrite)
"""
NEW_DATA = """
import polars as pl
from shop.counts.prepare import write

def check(training, source, metadata):
    pass

def prepare(training, settings):
    rows = pl.concat(pl.read_parquet(file) for file in settings["source"])
    write(rows.with_columns(sold=pl.lit(float("nan"))), ["forecast"], settings["out"])
"""
FIT = """
import pickle
import sys
from pathlib import Path

import polars as pl
from ensemble import Predictor

rows = pl.read_parquet(sys.argv[1])
with Predictor.fit(rows, recipe="shop.counts", out="out", members=["lightgbm"], threads=1) as predictor:
    predictor.predict(rows[:3].drop("sold")).write_csv("fitted.csv")
    Path("stored").write_bytes(pickle.dumps(predictor))
"""
AGAIN = """
import pickle
import sys
from pathlib import Path

import polars as pl

sys.path.append(sys.argv[2])
with pickle.loads(Path("stored").read_bytes()) as predictor:
    predictor.predict(pl.read_parquet(sys.argv[1])[:3].drop("sold")).write_csv("again.csv")
"""


def run(folder: Path, *words: str | Path) -> None:
    """A Python script in a folder, as if the project were installed."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `out`, after a fit by a script beside the recipe's package, from another current folder."""
    folder = tmp_path_factory.mktemp("own")
    package = folder / "beside/shop/counts"
    package.mkdir(parents=True)
    for name, content in (("__init__", ""), ("settings", SETTINGS), ("prepare", PREPARE), ("new_data", NEW_DATA)):
        (package / f"{name}.py").write_text(content)
    (folder / "beside/fit.py").write_text(FIT)
    (folder / "again.py").write_text(AGAIN)
    sold = [k % 3 + k * 7 % 11 / 11 for k in range(240)]
    pl.DataFrame({"colour": [k % 3 for k in range(240)], "sold": sold}).write_parquet(folder / "shop.parquet")
    (folder / "current").mkdir()
    run(folder / "current", folder / "beside/fit.py", folder / "shop.parquet")
    return folder / "current"


def test_a_package_beside_the_script_is_found_by_all_processes(fitted: Path) -> None:
    """Only the folder of the script leads to the package, and the fit and the workers would not find it."""
    assert pl.read_csv(fitted / "fitted.csv")["prediction"].is_sorted(), "the three colours"


def test_a_pickle_is_loaded_by_a_process_that_has_not_named_the_recipe(fitted: Path) -> None:
    """A pool of processes that were spawned would be told to add --recipe to a command that does not exist."""
    run(fitted, fitted.parent / "again.py", fitted.parent / "shop.parquet", fitted.parent / "beside")
    assert (fitted / "again.csv").read_text() == (fitted / "fitted.csv").read_text()


def test_a_source_that_is_one_text_is_not_read_by_letters(fitted: Path) -> None:
    """The page would name a file for each letter of the path, and a fit that is continued would not find these files."""
    page = (fitted / "out/report.html").read_text(encoding="utf-8")
    assert "scripts/fit.py --recipe shop.counts source=rows.parquet" in page
    config = types.SimpleNamespace(source="shop.parquet", metadata=("a", "b"))
    assert fit_folder.raw_paths(config) == ["shop.parquet", "a", "b"]


@pytest.mark.parametrize(
    ("colours", "sentence"),
    [
        (
            [0, 7],
            "the feature colour has the value 7 in rows/forecast: a category must be a whole number from 0 to 2, or NaN",
        ),
        ([-1, 0], "the feature colour has the value -1 in rows/forecast: a category must be"),
        ([0.5], "the feature colour has the value 0.5 in rows/forecast: a category must be"),
        ([], "rows/forecast has 0 rows, and the manifest gives 0: the two numbers must be equal, and at least 1"),
    ],
)
def test_new_data_that_members_cannot_use_are_refused(
    fitted: Path, tmp_path: Path, colours: list[float], sentence: str
) -> None:
    """A category would be an IndexError or another category, and a forecast without rows a traceback."""
    pl.DataFrame({"colour": colours}, schema={"colour": pl.Float64}).write_parquet(tmp_path / "new.parquet")
    words = (f"ensemble={fitted / 'out/ensemble'}", f"source={tmp_path / 'new.parquet'}", f"out={tmp_path / 'forecast'}")
    done = forked("ensemble_predictor", "predict", "--recipe", NAME, *words, folder=fitted.parent / "beside")
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert not (tmp_path / "forecast").exists()
