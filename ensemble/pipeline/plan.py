"""Which members a fit trains, in which order, and how much of the time each may take.

A recipe may have a module `plan.py` with `plan(about, num_threads) -> list[Planned]`, and with `combining(about)`, which
names a combiner and a calibration of combine/ that are used without a comparison. Without one, its neural network, XGBoost
and LightGBM are trained with their default settings, and its baselines are compared.
"""

import dataclasses
import importlib.util
from typing import Any, Literal

from ensemble import recipe

OPTIONAL_LIBRARIES = {"catboost": "catboost"}
"""Libraries of tree members that may be absent, and the package that is imported."""


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


def plan(about: dict[str, Any], num_threads: int) -> list[Planned]:
    """The members for prepared data with the manifest `about`, the most valuable first."""
    its = recipe.of(about)
    if of_recipe := its.get("plan", "plan"):
        found: list[Planned] = of_recipe(about, num_threads)
    else:
        trees = [
            Planned(name=library, kind="trees", settings={"library": library, "refit": True})
            for library in ("xgboost", "lightgbm")
            if about.get("features") and "task" in about
        ]
        network = its.get("training", "make") and Planned(name="network", kind="neural", share=4, least_seconds=20)
        found = [*trees, *([network] if network else [])]
    return [one for one in found if _is_installed(one.settings.get("library", ""))]


def _is_installed(library: str) -> bool:
    package = OPTIONAL_LIBRARIES.get(library)
    return package is None or importlib.util.find_spec(package) is not None
