"""The members of an emulator: trees, and networks that learn the Jacobian too where it is known."""

from pathlib import Path
from typing import Any

import yaml

from ensemble.pipeline.plan import PlannedMember

TREES: dict[str, Any] = {"learning_rate": 0.1, "num_rounds": 400, "max_leaves": 63, "early_stopping_rounds": 30}
JACOBIAN = "recipe.jacobian_weight"


def _preset(name: str) -> dict[str, Any]:
    """The settings of a preset, with their names on the command line."""
    content = yaml.safe_load((Path(__file__).parent / "presets" / f"{name}.yaml").read_text(encoding="utf-8"))
    settings = {**content, **{f"recipe.{key}": value for key, value in content.pop("recipe").items()}}
    # A list is one word of the command line, without blanks
    words = {key: f"[{','.join(map(str, value))}]" for key, value in settings.items() if isinstance(value, list)}
    return {key: value for key, value in (settings | words).items() if key != "recipe"}


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The trees first, since they take a small part of the time."""
    facts = about["emulator"]
    if facts["system"] == "sea_ice":
        mlp = _preset("sea_ice") if facts["formula"] else {**_preset("sea_ice"), JACOBIAN: 0.0}
        tanh = {**mlp, "seed": about["config"]["seed"] + 1, "recipe.activation": "tanh"}
        networks = {"mlp": mlp, "mlp_tanh": tanh, "mlp_16": _preset("sea_ice_source")}
    else:
        networks = {"bilinear": _preset("lorenz96_bilinear"), "mlp": _preset("lorenz96_mlp")}
    return [
        *(
            PlannedMember(name=library, kind="trees", settings={"library": library, **TREES})
            for library in ("xgboost", "lightgbm")
        ),
        *(
            PlannedMember(name=name, kind="neural", settings=settings, share=4.0, least_seconds=20.0)
            for name, settings in networks.items()
        ),
    ]


def combining(about: dict[str, Any]) -> dict[str, str]:
    """Weights that are 0 or more with the sum 1, without a comparison of combiners."""
    return {"combiner": "simplex"}
