"""Which libraries each process loads, and that --help of a script loads none."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import HEAVY, ROOT, SCRIPTS

from ensemble.recipe import BUILT_IN


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_and_its_settings_load_nothing_heavy() -> None:
    """Every --help would wait for libraries that it does not use."""
    folders = ["neural", "trees", "predictor", *(package.removeprefix("ensemble.") for package in BUILT_IN.values())]
    modules = [
        "configuration",
        "errors",
        "recipe",
        "doctor.examine",
        *folders,
        *(f"{folder}.settings" for folder in folders),
    ]
    assert not HEAVY & loaded_by("\n".join(f"import ensemble.{module}" for module in modules))
    assert HEAVY & loaded_by("import numpy") == {"numpy"}, "this test could not fail"


def test_trees_load_no_torch(prepared: Path) -> None:
    """Two OpenMP runtimes in one process: slow, or a crash; and torch where no one needs it."""
    loaded = loaded_by(
        "from ensemble.trees import threads; threads.configure()\n"
        "from ensemble.trees import train, xgb, lgbm\n"
        "from ensemble.arrow import open_table\n"
        f"open_table({str(prepared / 'rows' / 'train')!r}).to_pandas()"
    )
    assert {"xgboost", "lightgbm"} <= loaded
    assert not loaded & {"torch", "accelerate", "polars"}


def test_training_loads_no_polars_and_no_trees(prepared: Path) -> None:
    """A compute node would need the libraries of the stage before, and OpenMP run twice in one process."""
    loaded = loaded_by(
        "from ensemble.neural import loop\n"
        "from ensemble.recipes.hot_sellers import training\n"
        "from ensemble.recipes.hot_sellers.settings import RecipeConfig\n"
        "import numpy as np\n"
        f"recipe = training.make(RecipeConfig(), {str(prepared)!r})\n"
        "recipe.rows('train').gather(np.arange(8))\n"
        "recipe.model()\n"
        "recipe.metrics({'target': np.arange(4) % 2, 'prediction': np.ones(4) / 2, 'group': np.zeros(4)})\n"
    )
    assert {"torch", "evaluate"} <= loaded
    assert not loaded & {"polars", "xgboost", "lightgbm", "transformers", "scipy"}


def test_weights_that_are_whole_load_nothing_that_shards() -> None:
    """Every prediction would begin half a second later, for libraries that only FSDP needs."""
    begin = "from ensemble.neural import launch; launch.start()\nfrom ensemble.neural import loop, predict"
    names = "'ensemble.neural.sharded', 'torch.distributed.checkpoint', 'torch.distributed.fsdp'"
    assert "torch" in loaded_by(f"{begin}\nimport sys; assert not {{{names}}} & sys.modules.keys()")


def test_the_combiner_loads_no_member() -> None:
    """Joining prediction files would need every member's library."""
    loaded = loaded_by("from ensemble import combine, metrics, predictions\nfrom ensemble.predictor import fit, members")
    assert not loaded & {"torch", "xgboost", "lightgbm", "polars"}


def test_the_loaded_ensemble_loads_no_member() -> None:
    """A notebook that asks it would have every member's OpenMP in its process."""
    loaded = loaded_by("from ensemble.predictor import loaded, worker")
    assert not loaded & {"torch", "xgboost", "lightgbm", "polars", "fastapi"}


# ------------------------------------------------------------------------------------------------ scripts


def commands(script: Path) -> list[list[str]]:
    """The words before --help: none, and each command of a script that has several.

    Those of benchmark.py import the libraries that they measure.
    """
    if script.stem == "benchmark":
        return [[]]
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    match = re.search(r"\{([\w,-]+)\}\s+\.\.\.", done.stdout)
    return [[], *([name] for name in match[1].split(","))] if match else [[]]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help_answers_without_loading_a_library(script: Path) -> None:
    """The first thing that a new user types would take seconds, or fail where a library is missing."""
    for words in commands(script):
        line = [sys.executable, "-X", "importtime", str(script), *words, "--help"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: ")
        loaded = {entry.split("|")[-1].strip().split(".")[0] for entry in done.stderr.splitlines()}
        assert "argparse" in loaded, "the list of imports could not be read"
        assert not loaded & HEAVY


def test_scripts_run_from_anywhere(tmp_path: Path) -> None:
    """The commands of the README would work in one folder only."""
    line = [sys.executable, str(ROOT / "scripts" / "prepare_data.py"), "out=x", "panel.horizonweeks=3"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    sentence = "the command line: there is no setting 'panel.horizonweeks'; did you mean 'panel.horizon_weeks'?"
    assert done.stderr == f"error: {sentence}\n"
    assert not list(tmp_path.iterdir())


def test_type_checkers_know_what_a_predictor_is(tmp_path: Path) -> None:
    """Editors would complete nothing after `Predictor.`, and mypy would refuse `Predictor.fit`."""
    (tmp_path / "notebook.py").write_text("from ensemble import Predictor\nPredictor.fit\n")
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=skip"]
    files = ["ensemble/__init__.py", str(tmp_path / "notebook.py")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
