"""Which members a fit trains, in which order, and how much of the time each may take.

A recipe may have a module `plan.py` with `plan(about, num_threads) -> list[Planned]`, and with `combining(about)`, which
names a combiner and a calibration of combine/ that are used without a comparison. Without one, its neural network, XGBoost
and LightGBM are trained with their default settings, and its baselines are compared.

The data of a recipe whose members rank items have no task. Such a recipe has `follow_up(about, data, rankings) -> FollowUp`,
and its plan has members that train on the data of the follow-up. They come after the others.
"""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any, Literal

from ensemble import recipe

OPTIONAL_LIBRARIES = {"catboost": "catboost"}
"""Libraries of tree members that may be absent, and the package that is imported."""


PREPARED = "prepared"
"""The folder of the prepared data of a fit."""


class Preempted(Exception):
    """A member was stopped by a signal, and has kept its work."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A member to be trained."""

    name: str
    kind: Literal["trees", "neural"]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of scripts/train_trees.py, or of scripts/train.py."""
    share: float = 1.0
    """Its part of the time that is left; the parts are those of the members that are still to be trained."""
    least_seconds: float = 2.0
    """It is not begun with less time than that."""
    data: str = PREPARED
    """The folder of the fit with the data that it trains on: prepared, or the name of the follow-up's recipe."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A recipe whose data are made from the predictions of a fit's members, so that further members train on them."""

    recipe: str
    """Its name, and that of the folder of its data. These data have a task."""
    settings: dict[str, Any]
    """Of its preparation, without `out`."""
    seconds: float
    """Time that predictions, preparation and comparison take at most."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[Planned]:
    """The members for prepared data with the manifest `about`, the most valuable first."""
    its = recipe.of(manifest)
    if of_recipe := its.get("plan", "plan"):
        found: list[Planned] = of_recipe(manifest, num_threads)
    else:
        trees = [
            Planned(name=library, kind="trees", settings={"library": library, "refit": True})
            for library in ("xgboost", "lightgbm")
            if manifest.get("features") and "task" in manifest
        ]
        network = its.get("training", "make") and Planned(name="network", kind="neural", share=4, least_seconds=20)
        found = [*trees, *([network] if network else [])]
    return [one for one in found if _is_installed(one.settings.get("library", ""))]


def follow_up(manifest: dict[str, Any], data: Path, rankings: Path) -> FollowUp | None:
    """The follow-up of data with the manifest `about` in the folder `data`, if the recipe has one.

    rankings : the folder of the predictions of members and baselines.
    """
    of_recipe = recipe.of(manifest).get("plan", "follow_up")
    planned: FollowUp | None = of_recipe(manifest, data, rankings) if of_recipe else None
    return planned


def _is_installed(library: str) -> bool:
    package = OPTIONAL_LIBRARIES.get(library)
    return package is None or importlib.util.find_spec(package) is not None
