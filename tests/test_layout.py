"""Which module may import which, how long files may be, and what a script may contain. See also test_loaded_modules.py."""

import ast
import dataclasses
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_files import HEAVY, ROOT, SCRIPTS

from ensemble.recipe import BUILT_IN

MAX_SCRIPT_LINES = 120
MAX_LINES = 500
MAX_ROOT_MODULES = 12


@dataclasses.dataclass(frozen=True)
class Rule:
    """Modules under `who` and not `exempt` import nothing under `forbidden`, but for what is under `allowed`."""

    why: str
    who: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()


LEAVES = tuple(f"ensemble.{name}" for name in ("errors", "configuration", "cores", "signals", "commands.imports"))
FILES = (*LEAVES, *(f"ensemble.{name}" for name in ("folders", "arrow", "task", "data.inputs")))
"""What every part may use: errors, settings, and folders of Arrow files with a manifest."""
NEURAL, TREES = ("ensemble.neural",), ("ensemble.trees",)
JOINING = ("ensemble.combine", "ensemble.predictor", "ensemble.report")
RECIPES = ("ensemble.recipes",)
SHARED = tuple(
    f"ensemble.{path.stem}"
    for path in (ROOT / "ensemble").iterdir()
    if path.stem not in ("recipes", "recipe", "__pycache__")
)
MODELS = tuple(
    f"{recipe}.{file}"
    for recipe in BUILT_IN.values()
    for file in ("model", "hyper_connections", "layers", "losses", "networks")
)
TRAINING_HELPERS = tuple(
    f"ensemble.neural.{name}" for name in ("carry", "loader", "optim", "optimizers", "prepared", "settings")
)
RULES = (
    Rule("nothing imports a script", ("ensemble", "scripts"), ("scripts", *(script.stem for script in SCRIPTS))),
    Rule(
        "only scripts/benchmark.py imports benchmarks",
        ("ensemble", "scripts"),
        ("benchmarks",),
        (),
        ("scripts.benchmark", "scripts.benchmarks"),
    ),
    Rule("`import ensemble` loads nothing", ("ensemble.__init__",), ("",), ("importlib",)),
    Rule("these import nothing of ours", ("ensemble.errors", "ensemble.cores"), ("ensemble",)),
    Rule(
        "settings and signals know errors only",
        ("ensemble.configuration", "ensemble.signals"),
        ("ensemble",),
        ("ensemble.errors",),
    ),
    Rule("shared code imports no recipe", SHARED, RECIPES),
    Rule("recipes are found by name", ("ensemble.recipe",), RECIPES),
    *(
        Rule(
            "a recipe imports no other recipe",
            (package,),
            RECIPES,
            (package, *(BUILT_IN["next_item"],) * (name == "candidates")),
        )
        for name, package in BUILT_IN.items()
    ),
    Rule("readers of data know nothing of members", ("ensemble.data",), ("ensemble",), ("ensemble.data", *FILES)),
    Rule("neural and trees meet in predictions", NEURAL, (*TREES, *JOINING)),
    Rule("trees and neural meet in predictions", TREES, (*NEURAL, *JOINING)),
    Rule(
        "members are loaded in one place",
        JOINING,
        (*NEURAL, *TREES),
        (),
        ("ensemble.predictor.members",),
    ),
    Rule(
        "combiners know arrays and metrics",
        ("ensemble.combine",),
        ("ensemble",),
        ("ensemble.combine", "ensemble.metrics", "ensemble.predictions", *LEAVES),
    ),
    Rule(
        "the prediction file and the metrics know no member",
        ("ensemble.predictions", "ensemble.metrics"),
        ("ensemble",),
        ("ensemble.folders", "ensemble.verification", "ensemble.metrics", *LEAVES),
    ),
    Rule(
        "the doctor runs where the rest is broken",
        ("ensemble.doctor",),
        ("ensemble", *sorted(HEAVY)),
        ("ensemble.doctor", "ensemble.cores", "ensemble.errors", "torch"),
    ),
    Rule(
        "the page asks no running ensemble",
        ("ensemble.report",),
        ("ensemble.predictor.loaded", "ensemble.predictor.service"),
    ),
    Rule(
        "only commands start the loop",
        ("ensemble",),
        ("ensemble.neural.loop",),
        (),
        (*NEURAL, "ensemble.commands.train", "ensemble.commands.train_on_cpu"),
    ),
    Rule("models import models of their recipe only", MODELS, ("ensemble",), MODELS),
    Rule(
        "a training recipe imports small helpers, not the loop",
        tuple(f"{package}.training" for package in BUILT_IN.values()),
        (*NEURAL, *TREES, *JOINING),
        TRAINING_HELPERS,
    ),
)


def is_under(name: str, parents: tuple[str, ...]) -> bool:
    return any(parent in ("", name) or name.startswith(f"{parent}.") for parent in parents)


def imported(module: str, tree: ast.AST, types: bool = False) -> Iterator[str]:
    """What a module imports, also inside functions, and with `types` for the type checker: `from a import b` is a.b."""
    for node in ast.iter_child_nodes(tree):
        if not types and isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        yield from imported(module, node, types)


def broken_rules(module: str, source: str) -> set[str]:
    """Each broken rule with what breaks it; a package's own file is named by `__init__`."""
    return {
        f"{module} imports {name}: {rule.why}"
        for name in imported(module, ast.parse(source))
        for rule in RULES
        if is_under(module, rule.who)
        and not is_under(module, rule.exempt)
        and is_under(name, rule.forbidden)
        and not is_under(name, rule.allowed)
    }


def every_module() -> dict[str, str]:
    files = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "ensemble").rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text(encoding="utf-8") for file in files}


def test_import_rules() -> None:
    """A part would import a forbidden library, and a member would need the libraries of another."""
    modules = every_module()
    assert len(modules) > 30
    assert not {fault for module, source in modules.items() for fault in broken_rules(module, source)}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ensemble.predictor.fit", "from scripts import predict"),
        ("ensemble.predictor.fit", "import scripts.predict"),
        ("ensemble.predictor.fit", "from benchmarks import timing"),
        ("scripts.train", "from benchmarks.timing import timed"),
        ("scripts.train", "from predict import main"),
        ("scripts.train", "def main():\n    import prepare_data"),
        ("ensemble.__init__", "import numpy"),
        ("ensemble.__init__", "from ensemble.errors import UserError"),
        ("ensemble.errors", "from ensemble import configuration"),
        ("ensemble.cores", "from ensemble.errors import UserError"),
        ("ensemble.signals", "from ensemble import folders"),
        ("ensemble.configuration", "from ensemble import folders"),
        ("ensemble.recipe", "from ensemble.recipes import hot_sellers"),
        ("ensemble.recipe", "def load():\n    from ensemble.recipes.table import prepare"),
        ("ensemble.folders", "from ensemble.recipes.hot_sellers import weekly"),
        ("ensemble.predictor.members", "from ensemble.recipes.next_item import baselines"),
        ("ensemble.report.page", "from ensemble.recipes.hot_sellers import page"),
        ("ensemble.recipes.table.prepare", "from ensemble.recipes.hot_sellers import weekly"),
        ("ensemble.recipes.next_item.training", "from ensemble.recipes.table import columns"),
        ("ensemble.data.reviews", "from ensemble import predictions"),
        ("ensemble.data.reviews", "from ..neural import loader"),
        ("ensemble.arrow", "def f():\n    if True:\n        from ensemble.recipes import table"),
        ("ensemble.neural.loop", "from ensemble.trees.threads import configure"),
        ("ensemble.neural.predict", "from ensemble import combine"),
        ("ensemble.trees.xgb", "import ensemble.neural.loader as loader"),
        ("ensemble.trees.train", "from ensemble.predictor import fit"),
        ("ensemble.combine.fitting", "from ensemble.recipes.hot_sellers import model"),
        ("ensemble.combine.fitting", "from ensemble import folders"),
        ("ensemble.predictor.fit", "def fit():\n    from ensemble.trees import train"),
        ("ensemble.report.page", "from ensemble.trees.train import predict"),
        ("ensemble.predictor.hub", "from ensemble.trees import train"),
        ("ensemble.predictor.service", "from ensemble.trees import train"),
        ("ensemble.predictor.loaded", "def load():\n    from ensemble.neural import predict"),
        ("ensemble.predictor.fit", "from ensemble.neural import loop"),
        ("ensemble.doctor.machine", "from ensemble.neural import environment"),
        ("ensemble.doctor.network", "import numpy"),
        ("ensemble.predictions", "from ensemble import arrow"),
        ("ensemble.metrics", "from ensemble import predictions"),
        ("ensemble.recipes.hot_sellers.model", "from ensemble.errors import UserError"),
        ("ensemble.recipes.hot_sellers.model", "from . import training"),
        ("ensemble.recipes.hot_sellers.training", "from ensemble.neural import loop"),
        ("ensemble.recipes.next_item.training", "from ensemble.neural.loop import train"),
        ("ensemble.recipes.next_item.training", "from ensemble.predictor import bag"),
        ("ensemble.recipes.hot_sellers.page", "from ensemble.neural import loop"),
        ("ensemble.neural.loop", "from ensemble.recipes.hot_sellers import training"),
        ("ensemble.neural.loop", "from ..recipes import hot_sellers"),
        ("ensemble.neural.checkpoint", "try:\n    from ensemble.recipes.hot_sellers import model\nfinally:\n    pass"),
    ],
)
def test_a_planted_import_is_caught(module: str, source: str) -> None:
    """The test of the rules could not fail."""
    assert broken_rules(module, source)
    assert not broken_rules(module, '"""Nothing is imported."""')


def test_types_may_be_imported_for_the_type_checker() -> None:
    """A recipe could not name the protocol that it fulfils."""
    name_types = "if TYPE_CHECKING:\n    from ensemble.neural.loop import train"
    assert not broken_rules("ensemble.recipes.hot_sellers.training", name_types)


# ------------------------------------------------------------------------------------------------ circles, sizes, names


def graph(modules: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports anywhere, also inside functions and for the type checker."""
    packages = {name.removesuffix(".__init__"): source for name, source in modules.items() if name.startswith("ensemble")}

    def target(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    return {
        module: {target(name) for name in imported(module, ast.parse(source), types=True)} & packages.keys() - {module}
        for module, source in packages.items()
    }


def circle(modules: dict[str, str]) -> list[str]:
    """The modules of one circle of imports, in order; [] if there is none."""
    imports, done = graph(modules), set()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for name in sorted(imports[module]):
            if found := search(name, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in imports if (found := search(module, []))), [])


def test_no_imports_go_in_a_circle() -> None:
    """Two files could only be read, tested and moved together."""
    assert circle(every_module()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from ensemble.report import page",
        "if TYPE_CHECKING:\n    from ensemble.report.page import Any",
        "def f():\n    from ensemble.report import commands",
    ],
)
def test_a_planted_circle_is_caught(source: str) -> None:
    """The test above could not fail."""
    modules = every_module()
    modules["ensemble.report.run"] += f"\n{source}\n"
    assert "ensemble.report.run" in circle(modules)


def test_the_root_holds_few_modules() -> None:
    """A reader would not see what the parts are."""
    assert len(list((ROOT / "ensemble").glob("*.py"))) <= MAX_ROOT_MODULES


def too_long(files: dict[str, str]) -> list[str]:
    return [file for file, source in files.items() if len(source.splitlines()) > MAX_LINES]


def test_files_are_short() -> None:
    """A reader could not find the one idea of a file, nor run the tests of one idea alone."""
    files = [file for folder in ("ensemble", "scripts", "tests") for file in (ROOT / folder).rglob("*.py")]
    assert not too_long({str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files})
    assert too_long({"a.py": "\n" * MAX_LINES, "b.py": "\n" * (MAX_LINES + 1)}) == ["b.py"], "this test could not fail"


def test_tests_say_what_would_break() -> None:
    """Whoever sees a test fail would have to read its code to find out what a user would notice."""
    files = [*(ROOT / "tests").rglob("test_*.py")]
    nodes = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert len(tests) > 1000
    assert not [test.name for test in tests if not ast.get_docstring(test)]


PRIVATE = re.compile("_[a-zA-Z]")
FOREIGN = {"_exit", "_models", "_fields", "_replace"}
"""Private names of os, of an Accelerator, and of named tuples."""


def private_names(source: str) -> set[str]:
    """The functions, classes, variables and attributes of a module that begin with one underscore."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            names.add(node.attr)
    return {name for name in names if PRIVATE.match(name)} - FOREIGN


def used_by_tests(private: set[str], source: str) -> set[str]:
    """The names of `private` that a test imports, reads from something else than `self`, or has in a string."""
    used, tree = set(), ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            used.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # for monkeypatch, or the code of a process
            used |= {*re.findall(r"[.'\"](_\w+)", node.value), *([] if id(node) in parts else [node.value])}
    return used & private


def test_tests_use_no_private_names() -> None:
    """A name could not be changed inside of a module without a change of its tests."""
    private = set().union(*map(private_names, every_module().values()))
    assert len(private) > 100
    files = {file: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    del files[Path(__file__)]
    assert not {name: used for name, source in files.items() if (used := used_by_tests(private, source))}


@pytest.mark.parametrize(
    "source",
    [
        "from ensemble.arrow import _view",
        "arrow._view(3)",
        "arrow.column()._view",
        'monkeypatch.setattr(arrow, "_view", None)',
        "CODE = 'from ensemble import arrow; arrow._view = None'",
    ],
)
def test_a_planted_private_name_is_caught(source: str) -> None:
    """The test above could not fail."""
    private = private_names("def _view():\n    os._exit(0)\nclass A:\n    def f(self):\n        self._own = __name__")
    assert private == {"_view", "_own"}
    assert used_by_tests(private, source) == {"_view"}
    assert not used_by_tests(private, "os._exit(0)\nself._view = view\nf('a_view of {_view}')\nf'{a}_view'")


NAMES = re.compile("hot_?sellers?|next_?item|sudoku|emulator", re.IGNORECASE)
"""Names of recipes that are no ordinary words."""
WORDS = {"table", "candidates"}
"""Names of recipes that are ordinary words: only comparisons with them count."""


def names_of_recipes(source: str) -> list[str]:
    """Identifiers, strings but for docstrings, and comparisons by which Python code knows a recipe."""
    tree = ast.parse(source)
    described = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docstrings = {id(node.body[0].value) for node in described if node.body and isinstance(node.body[0], ast.Expr)}
    docstrings |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # under a field or a constant
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names += [node.value] if NAMES.search(node.value) else []
        for field in ("id", "attr", "arg", "name", "module"):
            value = getattr(node, field, None)
            names += [value] if isinstance(value, str) and NAMES.search(value) else []
        if isinstance(node, ast.Compare):
            names += [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in WORDS]
    return names


def shared_modules() -> dict[str, str]:
    return {
        name: source
        for name, source in every_module().items()
        if name.startswith("ensemble.") and not is_under(name, ("ensemble.recipes", "ensemble.recipe"))
    }


def test_shared_code_names_no_recipe() -> None:
    """Each new recipe would need a change in shared code."""
    found = {module: names for module, source in shared_modules().items() if (names := names_of_recipes(source))}
    assert not found
    jobs = [path for path in (ROOT / "slurm").iterdir() if path.suffix in (".sh", ".slurm")]
    assert len(jobs) > 10
    for path in [*jobs, *(ROOT / "ensemble/report").glob("*.j2")]:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if path.suffix == ".j2" or not line.lstrip().startswith("#")]
        assert not [line for line in lines if NAMES.search(line)], path


@pytest.mark.parametrize(
    "source",
    [
        'if about["recipe"] == "table":\n    pass',
        'RECIPE = "hot_sellers"',
        "is_hot_sellers = True",
        "def f(run):\n    return run.hot_sellers",
        "class NextItem:\n    pass",
        "from ensemble.recipes.next_item import model",
        'def f(name):\n    return name in ("candidates", "mine")',
    ],
)
def test_a_planted_name_is_caught(source: str) -> None:
    """The test above could not fail."""
    assert names_of_recipes(source)
    assert not names_of_recipes('"""Of hot_sellers."""\ntable = candidates = 1')


SCRIPT_OF_ONE_RECIPE = {"assimilate": "emulator", "compare_rankings": "next_item"}


def test_a_script_of_one_recipe_imports_only_that() -> None:
    """A script that serves all recipes would know one of them."""
    for script in SCRIPTS:
        source = script.read_text(encoding="utf-8")
        recipes = {name for name in imported(script.stem, ast.parse(source)) if is_under(name, RECIPES)}
        own = BUILT_IN.get(SCRIPT_OF_ONE_RECIPE.get(script.stem, ""), "-")
        assert all(is_under(name, (own,)) for name in recipes), script


# ------------------------------------------------------------------------------------------------ the reading path


MAX_READING_LINES = 2200
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
"""A relative link, or a picture, of Markdown."""


def reading_path(guide: str) -> list[str]:
    """The files that the table of ensemble/README.md lists under its heading."""
    section = guide.partition("\n## To read in an evening\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\S+)` \|", section, flags=re.MULTILINE)


def test_the_reading_path_can_be_read_in_an_evening() -> None:
    """A newcomer would look for files that have moved, or begin with more than an evening's reading."""
    files = reading_path((ROOT / "ensemble/README.md").read_text(encoding="utf-8"))
    assert len(files) > 10
    num_lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert 1000 < num_lines <= MAX_READING_LINES


def test_links_of_the_pages_lead_somewhere() -> None:
    """A reader would be sent to a file that has moved."""
    folders = ("ensemble", "slurm", "accelerate_configs")
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 20
    assert not [(page, link) for page, link in links if not (page.parent / link).exists()]


# ------------------------------------------------------------------------------------------------ scripts


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
