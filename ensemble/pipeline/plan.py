"""The members that a fit trains, in order, and the share of the time for each.

A recipe may have a module `plan.py` with `plan(manifest, num_threads) -> list[PlannedMember]`. It may also have
`combining(manifest)`, which returns the names of a combiner and a calibration of combine/ that are used without a
comparison. For a recipe without plan.py, the neural network, XGBoost and LightGBM are trained with their default settings.

The data of a recipe whose members rank items have no task. Such a recipe has `follow_up(manifest, data, rankings) ->
FollowUp`, and the last members of its plan are trained on the data of the follow-up.
"""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any, Literal

from ensemble import configuration, recipe

OPTIONAL_LIBRARIES = {"catboost": "catboost"}
"""Libraries of tree members that need not be installed: name of the library -> name of the package."""
PREPARED = "prepared"
"""The folder of the prepared data of a fit."""


class Preempted(Exception):
    """The training of a member was stopped by a signal and can be continued."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """A member to be trained."""

    name: str
    kind: Literal["trees", "neural"]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of scripts/train_trees.py, or of scripts/train.py."""
    share: float = 1.0
    """Weight of this member when the remaining time is divided among the members that are not trained yet."""
    least_seconds: float = 2.0
    """The training is not started with less time."""
    data: str = PREPARED
    """The folder of the training data within the fit's: prepared, or the name of the follow-up's recipe."""
    variant_of: str = ""
    """The name of a tree member that this one resembles. Variants use the time that a limit leaves after the other members:
    one is trained if the time is enough for the training of that member. Without a limit there are no variants."""
    relative_seconds: float = 1.0
    """The expected duration of the training of a variant, relative to that of the member that it resembles."""
    seed_offset: int = 0
    """Added to the seed of the fit."""

    def seed(self, config: Any) -> int:
        """The seed of the training. config : the settings of the fit."""
        return int(getattr(config, "seed", 0)) + self.seed_offset


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A second recipe, whose data are prepared from the predictions of the members. Further members are trained on them."""

    recipe: str
    """Name of the second recipe, and of the folder of its data, which have a task."""
    settings: dict[str, Any]
    """Of its preparation, without `out`."""
    seconds: float
    """Most seconds that predictions, preparation and comparison take."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The members for prepared data with this manifest, the most valuable first, without those of missing libraries."""
    data_recipe = recipe.of(manifest)
    if recipe_plan := data_recipe.get("plan", "plan"):
        planned: list[PlannedMember] = recipe_plan(manifest, num_threads)
    else:
        planned = trees("xgboost", "lightgbm", refit=True) if manifest.get("features") and "task" in manifest else []
        if data_recipe.get("training", "make"):
            planned.append(PlannedMember(name="network", kind="neural", share=4, least_seconds=20))
    absent = [library for library, package in OPTIONAL_LIBRARIES.items() if importlib.util.find_spec(package) is None]
    return [member for member in planned if member.settings.get("library") not in absent]


def trees(*libraries: str, data: str = PREPARED, **settings: Any) -> list[PlannedMember]:
    """A tree member for each library, with the same settings of scripts/train_trees.py. data : as in `PlannedMember`."""
    return [
        PlannedMember(name=library, kind="trees", settings={"library": library, **settings}, data=data)
        for library in libraries
    ]


def preset(recipe_folder: Path, name: str) -> dict[str, Any]:
    """The settings of `presets/NAME.yaml` in the folder of a recipe, with their names on the command line of a training."""
    content = configuration.read_yaml(recipe_folder / "presets" / f"{name}.yaml")
    settings = {f"recipe.{setting}": value for setting, value in content.pop("recipe").items()}
    # A list is one word of the command line, without blanks
    words = {key: f"[{','.join(map(str, value))}]" for key, value in settings.items() if isinstance(value, list)}
    return {**content, **settings, **words}


def follow_up(manifest: dict[str, Any], data: Path, rankings: Path) -> FollowUp | None:
    """The follow-up for prepared `data` with this manifest; None if the recipe has none.

    rankings : the folder of the predictions of members and baselines.
    """
    function = recipe.of(manifest).get("plan", "follow_up")
    return function(manifest, data, rankings) if function else None
