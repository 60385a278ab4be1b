"""The members that a fit trains, in order, and the share of the time limit for each.

A recipe may have a module `plan.py` with `plan(manifest, num_threads) -> list[PlannedMember]`. The module may also have
`combining(manifest)`, which returns a dict of `combiner` and `calibration`: each a name in combine/, or several with commas.
Without `plan`, the members are XGBoost and LightGBM with refit=true, if the data have flat features and a task, and the
recipe's network, if it has one, with default settings.

The prepared data of a recipe whose members rank items, such as next_item, have no task. The module of such a recipe has
`follow_up(manifest, data, rankings) -> FollowUp`, where `rankings` is the folder of the predictions of members and of
baselines. The last members of its plan are trained on the data of the follow-up.
"""

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import Any, Literal, get_args

from ensemble import configuration, recipe
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import BLEND
from ensemble.errors import UserError
from ensemble.neural.settings import config_class
from ensemble.task import task_of
from ensemble.trees.settings import TreesConfig

Kind = Literal["trees", "neural"]
PREPARED = "prepared"
"""The folder of the prepared data of a fit."""


class Preempted(Exception):
    """The training of a member was stopped by a signal and can be continued."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """A member to be trained."""

    name: str
    kind: Kind
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of scripts/train_trees.py for trees, or of scripts/train.py for a network."""
    share: float = 1.0
    """Weight of this member when the remaining time is divided among the members that are not trained yet."""
    least_seconds: float = 2.0
    """With fewer seconds, the member is skipped, unless no member is trained yet and no later one needs less time."""
    data: str = PREPARED
    """The folder of the training data within the folder of the fit: prepared, or the name of the follow-up's recipe."""
    cores_as_fast_as_gpu: float = math.inf
    """The least number of CPU ranks (at most 4, see network.py) that train a network as fast as a GPU; infinite to use a GPU
    whenever there is one. On a GPU, a step takes milliseconds even for a small network."""
    variant_of: str = ""
    """The name of the tree member of which this one is a variant; empty for none. A variant is trained only if that member
    was trained and the time left before the limit is expected to be enough. Without a time limit no variants are trained."""
    relative_seconds: float = 1.0
    """The expected duration of the training of a variant, relative to that of the member `variant_of`."""
    seed_offset: int = 0
    """Added to the seed of the fit."""

    def seed(self, config: Any) -> int:
        """The seed of the training. config : the settings of the fit."""
        return int(getattr(config, "seed", 0)) + self.seed_offset


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A second recipe, whose data are prepared from the predictions of the first members. The later members of the plan are
    trained on these data."""

    recipe: str
    """Name of the second recipe, and of the folder of its data, which have a task."""
    settings: dict[str, Any]
    """Settings of the second recipe's preparation, without `out`."""
    seconds: float
    """Upper bound of the seconds for the first members' predictions and the preparation, on a fast machine."""
    finish_seconds: float
    """Upper bound of the seconds to predict with all members, to combine and compare them, and to write the report, on a
    fast machine."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The members for prepared data with this manifest, the most valuable first, without those whose library is missing."""
    data_recipe = recipe.of(manifest)
    if recipe_plan := data_recipe.get("plan", "plan"):
        planned: list[PlannedMember] = recipe_plan(manifest, num_threads)
        _check(planned, manifest)
    else:
        planned = trees("xgboost", "lightgbm", refit=True) if manifest.get("features") and "task" in manifest else []
        if data_recipe.has("training") and data_recipe.get("settings", "RecipeConfig"):  # without importing PyTorch
            planned.append(PlannedMember(name="network", kind="neural", share=4, least_seconds=20))
    has_catboost = importlib.util.find_spec("catboost") is not None  # the only library that need not be installed
    return [member for member in planned if has_catboost or member.settings.get("library") != "catboost"]


def _check(planned: list[PlannedMember], manifest: dict[str, Any]) -> None:
    """Raise `UserError` for a member that could not be trained or combined: so a mistake in plan.py is found before the
    first training."""
    from ensemble.predictor import members
    from ensemble.predictor.forecast import check_name

    known, names = set(configuration.field_names(TreesConfig)), [*members.baselines(manifest)]
    for member in planned:
        name, settings, gives = member.name, member.settings, f"plan(…) of the recipe {manifest['recipe']} gives"
        if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
            fix = "leave the '/' out" if "/" in str(name) else "give a name"
            raise UserError(f"the member {name if name else repr(name)} in plan.py cannot be a file name: {fix}")
        check_name(name, manifest)
        if name in names:
            raise UserError(f"{gives} two members, or a member and a baseline, the name {name}: give each its own")
        names.append(name)
        if member.kind not in get_args(Kind):
            raise UserError(
                f"{gives} the member {name} kind={member.kind!r}: choose {' or '.join(map(repr, get_args(Kind)))}"
            )
        if member.kind == "trees":
            if unknown := sorted(settings.keys() - known):
                raise UserError(
                    f"{gives} the tree member {name} the setting {unknown[0]}, which scripts/train_trees.py does not have: "
                    "see its --help"
                )
            paths = {"data": PREPARED, "out": name}
            configuration.from_dict(TreesConfig, {**settings, **paths}, f"{gives} the tree member {name} a wrong setting")
        elif member.data == PREPARED:
            try:
                configuration.load(
                    config_class(manifest["recipe"]), None, words_of({**settings, "data": PREPARED, "out": name})
                )
            except UserError as error:
                problem = str(error).removeprefix("the command line: ")
                raise UserError(f"{gives} the network {name} a wrong setting: {problem}") from None


def combining(manifest: dict[str, Any]) -> dict[str, str]:
    """The settings by which the members are combined, from the recipe of the data; `UserError` for impossible ones, and for
    data on which no ensemble can be fitted."""
    from ensemble.combine import fitting

    data_recipe, name = recipe.of(manifest), manifest["recipe"]
    if not data_recipe.get("plan", "follow_up"):
        task_of(manifest)
        if BLEND not in manifest["splits"] and not CrossValidation.from_manifest(manifest):
            raise UserError(f"the recipe {name} prepares no split {BLEND}, on which an ensemble is fitted: prepare it too")
    function = data_recipe.get("plan", "combining")
    methods: dict[str, str] = function(manifest) if function else {}
    checks = {"combiner": fitting.combiner_names, "calibration": fitting.calibrator_names}
    for setting, value in methods.items():
        if setting not in checks or not isinstance(value, str):
            raise UserError(
                f"combining(…) of the recipe {name} returns {setting}: {value!r}: return {' and '.join(checks)}, each as a "
                "text, such as 'simplex' or 'simplex,ridge'"
            )
        try:
            checks[setting](task_of(manifest).kind, value)
        except UserError as error:
            raise UserError(f"combining(…) of the recipe {name}: {error}") from None
    return methods


def words_of(settings: dict[str, Any]) -> list[str]:
    """The arguments of scripts/train.py for settings of a network."""
    words = (f"{name}={'null' if value is None else _in_brackets(value)}" for name, value in settings.items())
    return list(configuration.literal(list(words)))


def _in_brackets(value: Any) -> Any:
    """A list as one argument without blanks, such as [a,b]; other values unchanged."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else value


def trees(*libraries: str, data: str = PREPARED, **settings: Any) -> list[PlannedMember]:
    """A tree member for each library, with the same settings of scripts/train_trees.py. data : as in `PlannedMember`."""
    return [
        PlannedMember(name=library, kind="trees", settings={"library": library, **settings}, data=data)
        for library in libraries
    ]


def preset(recipe_folder: Path, name: str) -> dict[str, Any]:
    """The settings in `presets/NAME.yaml` of a recipe's folder, with the names that they have on the command line of a
    training, such as recipe.width."""
    content = configuration.read_yaml(recipe_folder / "presets" / f"{name}.yaml")
    content |= {f"recipe.{setting}": value for setting, value in (content.pop("recipe", None) or {}).items()}
    return {key: _in_brackets(value) for key, value in content.items()}
