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
from typing import Any, Literal

from ensemble import configuration, recipe
from ensemble.errors import UserError
from ensemble.trees.settings import TreesConfig

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
        known = set(configuration.field_names(TreesConfig))
        for member in planned:
            if "/" in member.name:
                raise UserError(f"the member {member.name} in plan.py cannot be a file name: leave the '/' out")
            if member.kind == "trees" and (unknown := sorted(member.settings.keys() - known)):
                raise UserError(
                    f"plan(…) of the recipe {data_recipe.name} gives the tree member {member.name} the setting {unknown[0]}"
                    ", which scripts/train_trees.py does not have: see its --help"
                )
    else:
        planned = trees("xgboost", "lightgbm", refit=True) if manifest.get("features") and "task" in manifest else []
        if data_recipe.get("training", "make"):
            planned.append(PlannedMember(name="network", kind="neural", share=4, least_seconds=20))
    has_catboost = importlib.util.find_spec("catboost") is not None  # the only library that need not be installed
    return [member for member in planned if has_catboost or member.settings.get("library") != "catboost"]


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
    # On the command line a list is one argument without blanks, such as [a,b]
    return {key: f"[{','.join(map(str, value))}]" if isinstance(value, list) else value for key, value in content.items()}
