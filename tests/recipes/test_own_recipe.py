"""The guide's worked example: a recipe in a package of a user's own, through all scripts, as the guide prints them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from guide import NAME, baseline, blocks, write_files
from launcher import ACCELERATE, MULTI_CPU, ROOT
from launcher import TRAIN as TRAIN_SCRIPT
from scripts_run import NETWORKS, forked

from ensemble import predictions
from ensemble.recipe import Recipe

MAX_LINES = 150
TRAIN = ("train", "data=prepared", "out=new")
PREPARE = ("prepare_data", "out=new")
CONFIG, ALIKE = '"config": {"num_customers": config.num_customers}', '"alike": {"features": list(FEATURES)}'
COUNT, OPTIMIZER = (
    'torch.tensor(float(len(batch["months"])), device=loss.device)',
    "adamw(model, learning_rate, weight_decay)",
)
OPENED, STEP = "table = open_table(folder)\n", "    def step("


def run(command: list[str] | str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder, as a user would type it after activating the environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = isinstance(command, str)
    words = ["bash", "-euo", "pipefail", "-c", command] if shell else command
    return subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path, "PROJECT": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=False, timeout=400, start_new_session=True,
    )  # fmt: skip


def script(name: str, *words: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *words]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's files, outside the project, after all of the guide's commands."""
    folder = tmp_path_factory.mktemp("desk")
    write_files(folder)
    done = run(blocks()[1], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_example_is_short() -> None:
    """A guide would teach more than is needed."""
    files, _ = blocks()
    assert set(files) == {f"my_company/churn/{name}.py" for name in ("__init__", "settings", "prepare", "training", "page")}
    assert sum(len(source.splitlines()) for source in files.values()) <= MAX_LINES


def test_members_learn_on_two_ranks_and_on_trees(desk: Path) -> None:
    """A recipe outside the project would lack something: the launcher, a metric of which less is better, or the ensemble."""
    network = json.loads((desk / "members/network/summary.json").read_text())
    assert (network["ranks"], network["recipe"], network["higher_is_better"]) == (2, NAME, False)
    lines = [json.loads(line) for line in (desk / "members/network/metrics.jsonl").read_text().splitlines()]
    errors = [line["root_mean_squared_error"] for line in lines if line["kind"] == "val"]
    assert network["validation_root_mean_squared_error"] == min(errors) < max(errors) / 3
    scores = json.loads((desk / "ensemble/scores.json").read_text())
    error = {name: values["root_mean_squared_error"]["value"] for name, values in scores["scores"].items()}
    assert error["ensemble"] < 1.6 < 3 < error["base rate"]  # the noise alone has a deviation of 1
    assert sorted(scores["weights"]) == ["lightgbm", "network"]


def test_the_page_has_the_sentence_and_the_picture(desk: Path) -> None:
    """Sentences and pictures of a recipe would not be on its page."""
    page = (desk / "report.html").read_text(encoding="utf-8")
    assert "After how many months each of 4,000 generated customers leaves." in page
    assert "Months by which the ensemble is off." in page
    assert "scripts/prepare_data.py --recipe my_company.churn num_customers=4000" in page
    assert "--recipe my_company.churn" in page


def test_a_sum_over_ranks_is_that_of_all_rows(desk: Path, tmp_path: Path) -> None:
    """Rows that fill up the last rank's share would count twice in a metric of sums."""
    data = tmp_path / "prepared"  # with 101 rows in validation, which two ranks cannot share evenly
    assert run(script("prepare_data", "--recipe", NAME, f"out={data}", "num_customers=1010"), desk).returncode == 0
    words = ("--recipe", NAME, f"data={data}", "max_epochs=0.5", "batch_size=256")
    done = forked("train", *words, f"out={tmp_path / 'one'}", folder=desk, libraries=NETWORKS)
    assert done.returncode == 0, done.stderr
    done = run([*ACCELERATE, *MULTI_CPU, TRAIN_SCRIPT, *words, f"out={tmp_path / 'two'}"], desk)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert (one["ranks"], two["ranks"]) == (1, 2)
    name = "validation_root_mean_squared_error"
    assert one[name] == pytest.approx(two[name], rel=1e-5)


def test_the_baseline_of_the_guide_is_compared(desk: Path, tmp_path: Path) -> None:
    """A baseline of a task that is not binary would be refused, or a recipe would have to repeat shared code."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/baselines.py").write_text(baseline())
    shutil.copytree(desk / "predictions", tmp_path / "predictions")
    data, files = f"data={desk / 'prepared'}", "predictions=predictions"
    for words in (
        script("predict", "--recipe", NAME, "member=baselines", data, "out=predictions"),
        script("ensemble_predictor", "fit", "--recipe", NAME, data, files, "out=ensemble", "num_draws=5"),
    ):
        done = run(words, tmp_path)
        assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "ensemble/scores.json").read_text())
    assert "bill" in scores["scores"].keys() - scores["weights"].keys()
    assert scores["scores"]["bill"]["root_mean_squared_error"]["value"] > 3


def changed(folder: Path, path: str, before: str, after: str) -> None:
    """Change a file of the example in a folder."""
    file = folder / f"my_company/churn/{path}.py"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def test_a_target_in_float64_is_the_same_in_all_members(tmp_path: Path) -> None:
    """The ensemble would refuse a network that computes in float32, as one with another target, after all trainings."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/baselines.py").write_text(baseline())
    changed(tmp_path, "prepare", "months.astype(np.float32)", "months")
    changed(tmp_path, "training", '["months"].take(rows)', '["months"].take(rows).astype(np.float32)')
    for words in (
        ("prepare_data", "out=prepared", "num_customers=200"),
        ("train", "data=prepared", "out=network", "max_epochs=0.5"),
        ("predict", "member=network", "data=prepared", "out=predictions"),
        ("predict", "member=bill", "data=prepared", "out=predictions"),
    ):
        done = forked(words[0], "--recipe", NAME, *words[1:], folder=tmp_path, libraries=NETWORKS)
        assert done.returncode == 0, done.stderr
    members = [predictions.read(tmp_path / f"predictions/{name}.blend.parquet") for name in ("network", "bill")]
    common, _ = predictions.align(members)
    assert (common.target != common.target.astype(np.float32)).any(), "this test could not fail"


@pytest.mark.parametrize(
    ("path", "before", "after", "sentence"),
    [
        ("training", "features = np.stack", "rows = rows[::-1]; features = np.stack", "rows in the given order"),
        ("training", '"group": columns["group"].all(), ', "", f"describe(…) of the recipe {NAME} returns no group: return"),
        ("training", '["group"].all()', '["group"].all() / 2', "returns group of the type float64: return a NumPy array of"),
        ("baselines", ', "cluster": "row_id"', "", f"baselines.py of the recipe {NAME} returns no cluster: return"),
        ("baselines", ".to_numpy() for", " for", "returns row_id as ChunkedArray: return a NumPy array of whole numbers"),
        ("baselines", '24 - rows["bill"].to_numpy()', "24", "returns prediction as int: return a NumPy array of numbers"),
    ],
)
def test_columns_that_do_not_fit_the_rows_are_refused(
    desk: Path, tmp_path: Path, path: str, before: str, after: str, sentence: str
) -> None:
    """Each row would get the prediction of another, or the author would have to understand a traceback of other code."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/baselines.py").write_text(baseline())
    changed(tmp_path, path, before, after)
    member = "bill" if path == "baselines" else desk / "members/network"
    words = (f"member={member}", f"data={desk / 'prepared'}", "out=new")
    done = forked("predict", "--recipe", NAME, *words, folder=tmp_path, libraries=NETWORKS)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "member=members/lightgbm", "data=prepared", "out=new"),
        ("ensemble_predictor", "fit", "predictions=predictions", "data=prepared", "out=new"),
        ("report", "ensemble=ensemble", "data=prepared", "predictions=predictions", "out=new.html"),
    ],
    ids=lambda words: words[0],
)
def test_a_manifest_chooses_no_import(desk: Path, words: tuple[str, ...]) -> None:
    """A folder from somebody else would run code on this machine by the name of its recipe."""
    planted = "import pathlib; pathlib.Path('imported').touch()\n"
    package = desk / "my_company/churn/__init__.py"
    before = package.read_text()
    package.write_text(planted + before)
    try:
        done = run(script(*words), desk, PYTHONPATH=os.pathsep.join([str(desk), os.environ.get("PYTHONPATH", "")]))
        assert done.returncode == 2, done.stderr
        assert f"if you trust that package, add --recipe {NAME}" in done.stderr
        assert not (desk / "imported").exists()
        assert run(script("prepare_data", "--recipe", NAME, "out=again", "num_customers=100"), desk).returncode == 0
        assert (desk / "imported").exists(), "this test could not fail"
    finally:
        package.write_text(before)
        (desk / "imported").unlink(missing_ok=True)
        if (desk / "again").exists():
            for file in sorted((desk / "again").rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            (desk / "again").rmdir()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("prepare_data", "--recipe", "my_company.chrun", "out=new"), "there is no recipe 'my_company.chrun': known are"),
        (("prepare_data", "--recipe", "json", "out=new"), "there is no recipe 'json'"),
        (("prepare_data", "--recipe", "bisect", "out=new"), "there is no recipe 'bisect'"),  # a module, but no package
        (("prepare_data", "--recipe", "../prepared", "out=new"), "there is no recipe '../prepared'"),
        (("train", "--recipe", "candidates", "data=prepared", "out=new"), "candidates has no neural network to train"),
        (("predict", "--recipe", "table", "member=x", "data=prepared", "out=new"), "add --recipe my_company.churn"),
        (("predict", "--recipe", NAME, "member=members/network", "data=prepared", "out=new", "starts=3"), "starts=3: mem"),
        (("predict", "--recipe", NAME, "member=members/lightgbm", "data=prepared", "out=new", "votes=3"), "votes are set"),
        (("predict", "--recipe", NAME, "member=members/network", "data=prepared", "out=new", "threads=-1"), "threads=-1 is"),
        (("predict", "--recipe", NAME, "member=momentum", "data=prepared", "out=new"), "momentum/summary.json does not"),
    ],
)  # fmt: skip
def test_a_wrong_recipe_gets_one_sentence(desk: Path, words: tuple[str, ...], sentence: str) -> None:
    """A slip in a name would end in a traceback, or in data of another kind."""
    done = forked(*words, folder=desk, libraries=NETWORKS)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert not (desk / "new").exists()


@pytest.mark.parametrize(
    ("path", "before", "after", "words", "sentence"),
    [
        ("prepare", '"splits": splits', '"parts": splits', ("prepare_data", "out=new"), "lacks splits: see ensemble/"),
        ("prepare", f'"{NAME}"', '"shop.churn"', ("prepare_data", "out=new"), "wrote recipe=shop.churn into its manifest"),
        ("prepare", "dataclasses.asdict(TASK)", "TASK", ("prepare_data", "out=new"), "cannot have a Task, as Task("),
        ("prepare", "asdict(TASK)", 'asdict(TASK) | {"loss": 1}', ("prepare_data", "out=new"), "is not a Task"),
        ("prepare", '"unit": ""', '"unit": "category"', ("prepare_data", "out=new"), "but no categories: give their number"),
        ("prepare", '"age": age', '"age": row_id', ("prepare_data", "out=new"), "rows/train is int64: it must be float32"),
        ("prepare", '"age": age', '"years": age', ("prepare_data", "out=new"), "rows/train has no column age"),
        ("training", "higher_is_better", "better", TRAIN, "lacks higher_is_better: see NeuralRecipe"),
        ("training", f'name = "{NAME}"', 'name = "churn"', TRAIN, f"has name=churn: change it to {NAME}"),
        ("training", 'output = "value"', 'output = "months"', TRAIN, "has output=months: choose one of probability"),
        ("training", 'output = "value"', 'output = "ranking"', TRAIN, "has output=ranking, but no function write"),
        ("training", "meaning(self.manifest)", "meaning(self.manifest) | {1: np.ones(1)}", TRAIN, "be stored as JSON (Ob"),
        ("training", "meaning(self.manifest)", '{"width": 3}', TRAIN, "is not that of the data: set it to ensemble.data"),
        ("training", 'self.manifest["fingerprint"]', '"mine"', TRAIN, 'is not that of the data: set it to manifest["finger'),
        ("training", 'output = "value"', 'output = "score"', TRAIN, "but the task of its data, regression, needs value: ch"),
        ("training", '"root_mean_squared_error": ', '"rmse": ', TRAIN, "metrics rmse lack monitor=root_mean_squared_error"),
        ("training", "[adamw(model, learning_rate, weight_decay)]", "adamw(model, 0.1, 0)", TRAIN, "AdamW: return a list"),
        ("training", "device=loss.device), state", "device=loss.device)", TRAIN, "returns 2 values: return the sum of the"),
        ("training", "torch.from_numpy(features)", "features", TRAIN, "returns 'features' as ndarray: return tensors"),
        ("training", "device=loss.device), state", "device=loss.device), loss.detach()", TRAIN, "of the type Tensor"),
        ("training", '"rows" / split', '"rows" / split.replace("val", "in")', TRAIN, "does not exist: the prepared data"),
        ("training", "adamw(model, learning", "adamw(torch.nn.Linear(1, 1), learning", TRAIN, "the model that it is given"),
        ("settings", "width: int = 32", "width: int", TRAIN, f"width of RecipeConfig of the recipe {NAME} has no default"),
        ("settings", "class RecipeConfig", "class Other:\n    pass\n\n\nclass RecipeConfig", TRAIN, "is no dataclass"),
        ("settings", '"max_epochs"', '"epochs"', TRAIN, "TRAINING of the"),
        ("settings", '"max_epochs": 40.0', '"max_epochs": "forty"', TRAIN, "the setting max_epochs is impossible: Value"),
        ("settings", "width: int = 32", "width: int = 3.5", TRAIN, "the setting recipe.width is impossible: Value"),
        ("settings", 'out: str = "???"', 'folder: str = "???"', ("prepare_data",), "lacks the folder to write"),
        ("prepare", '"prepared data",\n', '"data",\n', PREPARE, "the manifest is 'data': write 'prepared data'"),
        ("prepare", "table.slice(begin, num_rows)", "columns", PREPARE, "for train gets a dict, not a pyarrow.Table"),
        ("prepare", CONFIG, '"config": None', PREPARE, "the entry config of the manifest is None: write a dict"),
        ("prepare", ALIKE, '"alike": list(FEATURES)', PREPARE, "the entry alike of the manifest is ['age', "),
        ("prepare", ALIKE, f'{ALIKE}, "sources": ["a.csv"]', PREPARE, "is ['a.csv']: write ensemble.folders.sources(paths)"),
        ("prepare", '"unit": ""', '"unit": None', PREPARE, "of the features has a unit that is not a string: write a unit"),
        ("prepare", '"unit": ""', '"unit": "", "values": "abc"', PREPARE, "has values that are not a list: write a"),
        ("prepare", '="row_id")', '="row_id", classes=(0, 1))', PREPARE, "classes of the task is [0, 1]: write a list of"),
        ("prepare", '="row_id")', '="row_id", classes=("a", "a"))', PREPARE, "is ['a', 'a']: write a list of different"),
        ("training", OPENED, f"{OPENED}        self.f = lambda x: x\n", (*TRAIN, "num_workers=1"), "sent to DataLoader wor"),
    ],
)  # fmt: skip
def test_a_slip_in_a_recipe_gets_one_sentence(
    desk: Path, tmp_path: Path, path: str, before: str, after: str, words: tuple[str, ...], sentence: str
) -> None:
    """The author of a recipe would have to find a forgotten entry from a traceback of other code."""
    write_files(tmp_path)
    changed(tmp_path, path, before, after)
    name, *rest = words
    given = (word.replace("data=", f"data={desk}/") for word in rest)
    done = forked(name, "--recipe", NAME, *given, folder=tmp_path, libraries=NETWORKS)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert name != "prepare_data" or not (tmp_path / "new").exists(), "data that members cannot use stay"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("import not_installed", "No module named 'not_installed'"),
        ("from .settings import Missing", "cannot import name 'Missing' from 'my_company.churn.settings'"),
        ("from my_company.churn import Missing", "cannot import name 'Missing' from partially initialized module"),
        ("from ....above import Missing", "attempted relative import beyond top-level package"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(line: str, sentence: str, tmp_path: Path) -> None:
    """The author would look for a misspelt name of the recipe, which is right."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/__init__.py").write_text(f"{line}\n")
    done = forked("prepare_data", "--recipe", NAME, "out=new", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"the package of the recipe {NAME} cannot be imported: {sentence}" in done.stderr.splitlines()[-1]


def test_an_error_in_a_package_is_shown(tmp_path: Path) -> None:
    """The author would read that there is no such recipe, instead of the line that fails."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/__init__.py").write_text("WIDTH = int('wide')\n")
    done = forked("prepare_data", "--recipe", NAME, "out=new", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: invalid literal for int() with base 10: 'wide'"


def test_a_package_needs_no_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template of such a recipe would not be found, and its sentences would not be on the page."""
    (tmp_path / "bare_recipe").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert Recipe("bare_recipe", "bare_recipe").folder == tmp_path / "bare_recipe"


def test_prepare_needs_no_result(tmp_path: Path) -> None:
    """A forgotten `return` would end in a traceback after the data were written."""
    write_files(tmp_path)
    file = tmp_path / "my_company/churn/prepare.py"
    file.write_text(file.read_text().replace("return folders.write_manifest(", "folders.write_manifest("))
    done = run(script("prepare_data", "--recipe", NAME, "out=new", "num_customers=100"), tmp_path)
    assert (done.returncode, "fingerprint" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            '"blend": 0.1',
            '"later": 0.1',
            f"the recipe {NAME} prepares no split blend, on which an ensemble is fitted: prepare",
        ),
        ('"task": dataclasses.asdict(TASK),', "", f"the manifest of these data of the recipe {NAME} has no task: prepare"),
    ],
)
def test_data_without_an_ensemble_are_refused_before_the_training(
    before: str, after: str, sentence: str, tmp_path: Path
) -> None:
    """A fit would end with an error after it has trained all members."""
    write_files(tmp_path)
    changed(tmp_path, "prepare", before, after)
    done = forked("fit", "--recipe", NAME, "out=new", "num_customers=200", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_a_plan_with_an_unknown_setting_is_refused_before_a_training(tmp_path: Path) -> None:
    """The author would read that saved settings are of another version, after the members before it were trained."""
    write_files(tmp_path)
    source = "from ensemble.pipeline.plan import trees\n\n\ndef plan(manifest, num_threads):\n    "
    (tmp_path / "my_company/churn/plan.py").write_text(source + "return trees('xgboost') + trees('lightgbm', rounds=5)\n")
    done = forked("fit", "--recipe", NAME, "out=new", "num_customers=100", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    sentence = (
        f"plan(…) of the recipe {NAME} gives the tree member lightgbm the setting rounds, which scripts/train_trees.py"
    )
    assert sentence in done.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_a_fit_without_the_network_does_not_import_it(tmp_path: Path) -> None:
    """PyTorch would be in the process that trains the trees: with its memory, and an OpenMP runtime of its own."""
    write_files(tmp_path)
    file = tmp_path / "my_company/churn/training.py"
    file.write_text("open('imported', 'w').close()\n" + file.read_text())
    words = ("out=new", "num_customers=200", "members=[lightgbm]", "time_limit=0", "threads=1", "num_draws=5")
    done = forked("fit", "--recipe", NAME, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()
