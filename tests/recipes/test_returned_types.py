"""What the functions of a user's recipe return."""

import re
from pathlib import Path
from typing import Any

import pytest
from guide import NAME, write_files
from scripts_run import forked

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.neural.settings import config_class
from ensemble.pipeline import plan
from ensemble.predictor import members
from ensemble.recipe import Recipe, named


def package_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> str:
    """The name of a package with these modules, which can be imported; each test has a package of its own."""
    name = f"recipe_of_{folder.name}"
    (folder / name).mkdir()
    for module, source in modules.items():
        (folder / name / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return name


def returning(module: str, name: str, result: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function `name` of a package whose module returns an expression, as shared code gets it."""
    package = package_of(folder, monkeypatch, **{module: f"def {name}(*arguments):\n    return {result}\n"})
    return Recipe("shop", package).get(module, name)


@pytest.mark.parametrize(
    ("module", "name", "result", "sentence"),
    [
        ("page", "parts", "None", r"^parts\(…\) in page.py of the recipe shop returns None: return a dict$"),
        ("page", "pictures", "None", "returns None: return a list of tuple"),
        ("page", "pictures", "[None]", "returns None in its list: return a list of tuple"),
        ("page", "feature_label", "3", r"feature_label\(…\) .* returns 3 of the type int: return a str"),
        ("page", "prepare_words", "'out=x'", "returns 'out=x' of the type str: return a list of str"),
        ("card", "parts", "{'purpose': 'x'}", "returns {'purpose': 'x'} of the type dict: return a Parts"),
        ("plan", "plan", "[{'name': 'a'}]", "returns {'name': 'a'} of the type dict in its list: return a list of Planned"),
        ("plan", "combining", "'mean'", "returns 'mean' of the type str: return a dict"),
        ("plan", "follow_up", "None", "returns None: return a FollowUp"),
        ("baselines", "kinds", "['bill']", r"returns \['bill'\] of the type list: return a dict"),
        ("comparison", "compare", "None", "returns None: return a dict"),
        ("outputs", "scores_by_part", "None", "returns None: return a dict"),
        ("outputs", "forecast_table", "{}", "returns {} of the type dict: return a pyarrow.Table"),
    ],
)
def test_a_result_of_another_type_is_refused(
    module: str, name: str, result: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a forgotten `return`, the author would see a traceback of other code, mostly after all trainings."""
    function = returning(module, name, result, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=sentence):
        function()


@pytest.mark.parametrize(
    ("module", "name", "result"),
    [
        ("page", "parts", "{}"),
        ("page", "pictures", "[('a', 'b', 'c', print)]"),
        ("plan", "plan", "__import__('ensemble.pipeline.plan').pipeline.plan.trees('xgboost')"),
        ("outputs", "forecast_table", "__import__('pyarrow').table({})"),
        ("outputs", "write", "None"),
    ],
)
def test_the_right_type_is_accepted(
    module: str, name: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check by the name of a type could refuse each recipe."""
    returning(module, name, result, tmp_path, monkeypatch)()


def test_a_default_of_a_training_may_be_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataclass refuses it, in a traceback that names no recipe."""
    source = "import dataclasses\n\n\n@dataclasses.dataclass\nclass RecipeConfig:\n    width: int = 3\n"
    package = package_of(tmp_path, monkeypatch, settings=f'{source}\n\nTRAINING = {{"trackers": ["wandb"]}}\n')
    named(package)
    assert config_class(package)(data="prepared", out="new").trackers == ("wandb",)


@pytest.mark.parametrize(
    ("module", "source", "sentence"),
    [
        ("baselines", "def kinds(manifest):\n    return {'a/b': 'baseline'}\n", "the baseline a/b cannot be a file name"),
        (
            "plan",
            "from ensemble.pipeline.plan import PlannedMember\n\n\ndef plan(manifest, num_threads):\n"
            "    return [PlannedMember(name='a/b', kind='trees')]\n",
            "the member a/b in plan.py cannot be a file name",
        ),
    ],
)
def test_a_name_with_a_slash_is_refused(
    module: str, source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files would be in another folder, where the ensemble does not look for them."""
    package = package_of(tmp_path, monkeypatch, **{"settings": "", module: source})
    manifest = {"recipe": named(package).name}
    with pytest.raises(UserError, match=sentence):
        members.baselines(manifest) if module == "baselines" else plan.plan(manifest, 1)


CONFIG = """
import dataclasses


@dataclasses.dataclass
class RecipeConfig:
    width: int | None = 3
    names: tuple[str, ...] = ()
"""


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ("[PlannedMember(name='net', kind='network')]", "gives the member net kind='network': choose 'trees' or 'neural'"),
        (
            "trees('lightgbm') + trees('lightgbm', num_rounds=5)",
            "two members, or a member and a baseline, the name lightgbm",
        ),
        ("[PlannedMember(name='bill', kind='trees')]", "two members, or a member and a baseline, the name bill: give each"),
        ("[PlannedMember(name='ensemble', kind='trees')]", "name=ensemble is a name that the ensemble uses itself"),
        ("[PlannedMember(name='', kind='trees')]", "the member '' in plan.py cannot be a file name: give a name"),
        ("[PlannedMember(name='..', kind='trees')]", r"the member \.\. in plan.py cannot be a file name: give a name"),
        ("[PlannedMember(name=3, kind='trees')]", "the member 3 in plan.py cannot be a file name: give a name"),
        ("trees('lightgbm', num_rounds='many')", "the tree member lightgbm a wrong setting: Value 'many' of type 'str'"),
        ("trees('lightgmb')", "the tree member lightgmb a wrong setting: Invalid value 'lightgmb', expected one of"),
        ("[net(epochs=3)]", "the network net a wrong setting: there is no setting 'epochs'; did you mean 'max_epochs'"),
        ("[net(max_epochs='many')]", "the network net a wrong setting: max_epochs=many does not fit: write a number"),
        ("[net(recipe={'widht': 3})]", "the network net a wrong setting: there is no setting 'recipe.widht'; did you mean"),
    ],
)
def test_a_planned_member_that_cannot_be_trained_is_refused_before_the_first_training(
    result: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network could be replaced by trees, or be missing in the ensemble, and other mistakes would end a fit at its end."""
    source = (
        "from ensemble.pipeline.plan import PlannedMember, trees\n\n\ndef net(**settings):\n"
        "    return PlannedMember(name='net', kind='neural', settings=settings)\n\n\n"
        f"def plan(manifest, num_threads):\n    return {result}\n"
    )
    kinds = "def kinds(manifest):\n    return {'bill': 'baseline'}\n"
    package = package_of(tmp_path, monkeypatch, settings=CONFIG, plan=source, baselines=kinds)
    with pytest.raises(UserError, match=sentence):
        plan.plan({"recipe": named(package).name}, 1)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ("{'combine': 'simplex'}", "returns combine: 'simplex': return combiner and calibration, each as a text, such as"),
        ("{'combiner': ['simplex', 'ridge']}", r"returns combiner: \['simplex', 'ridge'\]: return combiner and calibration"),
        ("{'combiner': 'simplex,rigde'}", "there is no combiner 'rigde' for regression targets: choose one of auto, equal"),
        ("{'calibration': 'platt'}", "calibration=platt is for probabilities, and these members give values: set"),
    ],
)
def test_members_that_could_not_be_combined_are_not_trained(result: str, sentence: str, tmp_path: Path) -> None:
    """A fit would end with a traceback or an error after all of its trainings."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/plan.py").write_text(f"def combining(manifest):\n    return {result}\n")
    done = forked("fit", "--recipe", NAME, "out=new", "num_customers=100", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(sentence, done.stderr.splitlines()[-1])
    assert not (tmp_path / "new").exists()


def test_settings_of_a_planned_network_may_be_lists_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training would get the texts None and ('a', 'b')."""
    package = package_of(tmp_path, monkeypatch, settings=CONFIG)
    settings = {"data": "prepared", "out": "new", "recipe.width": None, "recipe.names": ("a", "b"), "trackers": []}
    config = configuration.load(config_class(named(package).name), None, plan.words_of(settings))
    assert (config.recipe.width, config.recipe.names, config.trackers) == (None, ("a", "b"), ())


def test_a_plan_without_a_result_ends_a_fit(tmp_path: Path) -> None:
    """Shared code could get the function in another way than by `Recipe.get`."""
    write_files(tmp_path)
    (tmp_path / "my_company/churn/plan.py").write_text("def plan(manifest, num_threads):\n    []\n")
    done = forked("fit", "--recipe", NAME, "out=new", "num_customers=100", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f"in plan.py of the recipe {NAME} returns None: return a list of PlannedMember"
    )
    assert not (tmp_path / "new").exists()
