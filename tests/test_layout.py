"""Who may import whom, what each process loads, and what a script may be: the rules of the design, held."""

import ast
import dataclasses
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
MAX_SCRIPT_LINES = 120
HEAVY = {
    "accelerate", "datasets", "evaluate", "fastapi", "holidays", "huggingface_hub", "jinja2", "lightgbm", "matplotlib",
    "numpy", "omegaconf", "onnx", "onnxruntime", "pandas", "polars", "prometheus_client", "pyarrow", "pydantic",
    "safetensors", "scipy", "sklearn", "tensorboard", "torch", "tqdm", "transformers", "uvicorn", "xgboost",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rule:
    """Modules named by `who` import nothing under `forbidden`, but for what is under `allowed`."""

    why: str
    who: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()


NEURAL, TREES, COMBINER = (
    ("ensemble.neural",),
    ("ensemble.trees",),
    (
        "ensemble.card",
        "ensemble.combine",
        "ensemble.forecast",
        "ensemble.hub",
        "ensemble.predictor",
        "ensemble.ranking_table",
        "ensemble.report",
    ),
)
SERVICE = tuple(
    f"ensemble.serving.{file.stem}" for file in (ROOT / "ensemble/serving").glob("*.py") if file.stem != "worker"
)
DOCTOR = ("ensemble.doctor",)
LEAVES = ("ensemble.errors", "ensemble.config", "ensemble.cores", "ensemble.pretrained", "ensemble.signals")
RULES = (
    Rule("nothing imports a script", ("ensemble", "scripts"), ("scripts", *(script.stem for script in SCRIPTS))),
    Rule("`import ensemble` loads nothing", ("ensemble.__init__",), ("",)),
    Rule("errors and cores import nothing of ours", ("ensemble.errors", "ensemble.cores"), ("ensemble",)),
    Rule("settings know errors only", ("ensemble.config",), ("ensemble",), ("ensemble.errors",)),
    Rule(
        "data know nothing of members, but for what they rank",
        ("ensemble.data",),
        ("ensemble",),
        ("ensemble.data", "ensemble.rankings", *LEAVES),
    ),
    Rule("a bag asks copies of any kind", ("ensemble.bag",), ("ensemble",), ("ensemble.data", *LEAVES)),
    Rule("neural and trees meet in predictions", NEURAL, (*TREES, *COMBINER)),
    Rule("trees and neural meet in predictions", TREES, (*NEURAL, *COMBINER)),
    Rule("the combiner knows prediction files, not members", COMBINER, (*NEURAL, *TREES)),
    Rule(
        "the prediction file and the metrics know no member",
        ("ensemble.predictions", "ensemble.metrics"),
        ("ensemble",),
        ("ensemble.data.manifest", "ensemble.metrics", *LEAVES),
    ),
    Rule(
        "the ranking file knows no member",
        ("ensemble.rankings",),
        ("ensemble",),
        ("ensemble.data.item_ranks", "ensemble.data.manifest", "ensemble.predictions", *LEAVES),
    ),
    Rule(
        "the doctor runs where the rest is broken",
        DOCTOR,
        ("ensemble", *sorted(HEAVY)),
        (*DOCTOR, "ensemble.cores", "ensemble.errors", "torch"),
    ),
    Rule("members meet the service in processes of their own", SERVICE, (*NEURAL, *TREES, "ensemble.data.panel")),
    Rule("the service is asked by its users only", (*NEURAL, *TREES, *COMBINER, "ensemble.data"), ("ensemble.serving",)),
    Rule("models import each other only", ("ensemble.neural.models",), ("ensemble",), ("ensemble.neural.models",)),
    Rule(
        "recipes import data, models and small helpers",
        ("ensemble.neural.recipes",),
        ("ensemble",),
        (
            "ensemble.data",
            "ensemble.metrics",
            *LEAVES,
            *(
                f"ensemble.neural.{helper}"
                for helper in (
                    "carry",
                    "config",
                    "item_losses",
                    "jacobian",
                    "loader",
                    "models",
                    "optim",
                    "recipe",
                    "statistics",
                )
            ),
        ),
    ),
    Rule(
        "the loop knows recipes by their protocol only",
        tuple(
            f"ensemble.neural.{file.stem}" for file in (ROOT / "ensemble/neural").glob("[a-z]*.py") if file.stem != "member"
        ),
        ("ensemble.neural.recipes", "ensemble.neural.models", "ensemble.neural.member"),
    ),
)


def is_under(name: str, parents: tuple[str, ...]) -> bool:
    return any(parent in ("", name) or name.startswith(f"{parent}.") for parent in parents)


def imported(module: str, tree: ast.AST) -> Iterator[str]:
    """What a module imports at run time, at its top or inside a function: `from a import b` is a.b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        yield from imported(module, node)


def broken_rules(module: str, source: str) -> set[str]:
    """Each broken rule with what breaks it; a package's own file is named by `__init__`."""
    return {
        f"{module} imports {name}: {rule.why}"
        for name in imported(module, ast.parse(source))
        for rule in RULES
        if is_under(module, rule.who) and is_under(name, rule.forbidden) and not is_under(name, rule.allowed)
    }


def every_module() -> dict[str, str]:
    files = [*SCRIPTS, *(ROOT / "ensemble").rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text(encoding="utf-8") for file in files}


def test_import_rules() -> None:
    """A library would creep in where it must not be, and one member could not live without the other's."""
    modules = every_module()
    assert len(modules) > 30
    assert not {fault for module, source in modules.items() for fault in broken_rules(module, source)}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ensemble.predictor", "from scripts import predict"),
        ("ensemble.predictor", "import scripts.predict"),
        ("scripts.train", "from predict import main"),
        ("scripts.train", "def main():\n    import prepare_data"),
        ("ensemble.__init__", "import numpy"),
        ("ensemble.__init__", "from ensemble.errors import UserError"),
        ("ensemble.errors", "from ensemble import config"),
        ("ensemble.cores", "from ensemble.errors import UserError"),
        ("ensemble.config", "from ensemble.data import manifest"),
        ("ensemble.data.panel", "from ensemble import predictions"),
        ("ensemble.data.panel", "from ..neural import loader"),
        ("ensemble.data.arrow", "def f():\n    if True:\n        from ensemble.trees import member"),
        ("ensemble.neural.loop", "from ensemble.trees.threads import settle"),
        ("ensemble.neural.member", "from ensemble import combine"),
        ("ensemble.trees.xgb", "import ensemble.neural.loader as loader"),
        ("ensemble.trees.member", "from ensemble import predictor"),
        ("ensemble.combine", "from ensemble.neural.models import forecaster"),
        ("ensemble.predictor", "def fit():\n    from ensemble.trees import member"),
        ("ensemble.report", "from ensemble.trees.member import predict"),
        ("ensemble.hub", "from ensemble.trees import member"),
        ("ensemble.serving.service", "from ensemble.trees import member"),
        ("ensemble.serving.loaded", "def load():\n    from ensemble.neural import member"),
        ("ensemble.serving.loaded", "from ensemble.data import panel"),
        ("ensemble.predictor", "from ensemble.serving.loaded import EnsemblePredictor"),
        ("ensemble.doctor.machine", "from ensemble.neural import environment"),
        ("ensemble.doctor.network", "import numpy"),
        ("ensemble.bag", "from ensemble.trees import member"),
        ("ensemble.predictions", "from ensemble.data import arrow"),
        ("ensemble.rankings", "from ensemble.neural import member"),
        ("ensemble.metrics", "from ensemble import predictions"),
        ("ensemble.neural.models.forecaster", "from ensemble.errors import UserError"),
        ("ensemble.neural.models.forecaster", "from .. import loader"),
        ("ensemble.neural.recipes.hot_sellers", "from ensemble.neural import loop"),
        ("ensemble.neural.recipes.hot_sellers", "from ensemble.neural.loop import Recipe"),
        ("ensemble.neural.recipes.hot_sellers", "from ensemble.neural.member import predict"),
        ("ensemble.neural.loop", "from ensemble.neural.recipes import hot_sellers"),
        ("ensemble.neural.loop", "from .recipes import hot_sellers"),
        ("ensemble.neural.checkpoint", "try:\n    from ensemble.neural.models import forecaster\nfinally:\n    pass"),
    ],
)
def test_a_planted_import_is_caught(module: str, source: str) -> None:
    """The rules could not fail."""
    assert broken_rules(module, source)
    assert not broken_rules(module, '"""Nothing is imported."""')


def test_types_may_be_imported_for_the_type_checker() -> None:
    """A recipe could not name the protocol that it fulfils."""
    name_types = "if TYPE_CHECKING:\n    from ensemble.neural.loop import Recipe"
    assert not broken_rules("ensemble.neural.recipes.hot_sellers", name_types)


# ------------------------------------------------------------------------------------------------ what a process loads


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
    settings = [f"{folder}.config" for folder in ("", ".benchmarks", ".data", ".neural", ".trees")]
    modules = ["", ".errors", ".doctor.examine", ".neural", ".trees", *settings]
    assert not HEAVY & loaded_by("\n".join(f"import ensemble{module}" for module in modules))
    assert HEAVY & loaded_by("import numpy") == {"numpy"}, "this test could not fail"


def test_trees_load_no_torch(prepared: Path) -> None:
    """Two OpenMP runtimes in one process: slow, or a crash; and torch where no one needs it."""
    loaded = loaded_by(
        "from ensemble.trees import threads; threads.settle()\n"
        "from ensemble.trees import member, xgb, lgbm\n"
        "from ensemble.data.arrow import open_table\n"
        f"open_table({str(prepared / 'rows' / 'train')!r}).to_pandas()"
    )
    assert {"xgboost", "lightgbm"} <= loaded
    assert not loaded & {"torch", "accelerate", "polars"}


def test_training_loads_no_polars_and_no_trees(prepared: Path) -> None:
    """A compute node would need the libraries of the stage before, and OpenMP run twice in one process."""
    loaded = loaded_by(
        "from ensemble.neural import loop\n"
        "from ensemble.neural.recipes import hot_sellers\n"
        "from ensemble.neural.config import HotSellersConfig\n"
        "import numpy as np\n"
        f"recipe = hot_sellers.make(HotSellersConfig(), {str(prepared)!r})\n"
        "recipe.rows('train').gather(np.arange(8))\n"
        "recipe.model()\n"
        "recipe.metrics({'target': np.arange(4) % 2, 'prediction': np.ones(4) / 2, 'group': np.zeros(4)})\n"
    )
    assert {"torch", "evaluate"} <= loaded
    assert not loaded & {"polars", "xgboost", "lightgbm", "transformers", "scipy"}


def test_weights_that_are_whole_load_nothing_that_shards() -> None:
    """Every prediction would begin half a second later, for libraries that only FSDP needs."""
    begin = "from ensemble.neural import launch; launch.start()\nfrom ensemble.neural import loop, member"
    names = "'ensemble.neural.sharded', 'torch.distributed.checkpoint', 'torch.distributed.fsdp'"
    assert "torch" in loaded_by(f"{begin}\nimport sys; assert not {{{names}}} & sys.modules.keys()")


def test_the_combiner_loads_no_member() -> None:
    """Joining prediction files would need every member's library."""
    loaded = loaded_by("from ensemble import combine, metrics, predictions, predictor")
    assert not loaded & {"torch", "xgboost", "lightgbm", "polars"}


def test_the_loaded_ensemble_loads_no_member() -> None:
    """A notebook that asks it would have every member's OpenMP in its process."""
    loaded = loaded_by("from ensemble.serving import loaded, worker")
    assert not loaded & {"torch", "xgboost", "lightgbm", "polars", "fastapi"}


# ------------------------------------------------------------------------------------------------ scripts


def commands(script: Path) -> list[list[str]]:
    """The words before --help: none, and each command of a script that has several."""
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.search(r"\{([\w,-]+)\} \.\.\.", done.stdout)
    return [[], *([name] for name in found[1].split(","))] if found else [[]]


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


LIBRARIES = {"ensemble", *sys.stdlib_module_names, *importlib.metadata.packages_distributions()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_parses_calls_and_exits(script: Path) -> None:
    """Work would hide in a script, where no test and no other script can reach it."""
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_SCRIPT_LINES
    assert script.stem not in LIBRARIES, "accelerate launch puts scripts/ first on sys.path: it would replace the library"
    documentation = ast.get_docstring(ast.parse(source)) or ""
    assert f"scripts/{script.name}" in documentation, "the command that runs it"
    assert source.endswith('if __name__ == "__main__":\n    errors.run(main)\n')


def test_library_names_are_known() -> None:
    """The test above could not fail."""
    assert {"evaluate", "datasets", "profile", "torch", "ensemble", "accelerate"} <= LIBRARIES


def test_scripts_run_from_anywhere(tmp_path: Path) -> None:
    """The commands of the README would work in one folder only."""
    line = [sys.executable, str(ROOT / "scripts" / "prepare_data.py"), "out=x", "panel.horizonweeks=3"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    sentence = "the command line: there is no setting 'panel.horizonweeks'; did you mean 'panel.horizon_weeks'?"
    assert done.stderr == f"error: {sentence}\n"
    assert not list(tmp_path.iterdir())
