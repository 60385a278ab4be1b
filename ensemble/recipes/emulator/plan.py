"""The members that scripts/fit.py trains: trees, and networks. Some networks also learn the Jacobian, if it is known."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from ensemble.pipeline.plan import PlannedMember, preset, trees

TREES: dict[str, Any] = {"learning_rate": 0.1, "num_rounds": 400, "max_leaves": 63, "early_stopping_rounds": 30}
JACOBIAN = "recipe.jacobian_weight"
CORES_LIKE_A_GPU = 1.0
"""The number of CPU cores that train a network of sea ice as fast as a GPU: a step of 1,000 rows takes 5 ms on one core, and
6 ms on an H200 (`make bench-gpu`)."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The tree members, then the networks: trees come first, since they take a small part of the time."""
    facts, presets = manifest["emulator"], partial(preset, Path(__file__).parent)
    if facts["system"] == "sea_ice":
        mlp = presets("sea_ice") if facts["formula"] else {**presets("sea_ice"), JACOBIAN: 0.0}
        networks = {"mlp": mlp, "mlp_tanh": {**mlp, "recipe.activation": "tanh"}, "mlp_16": presets("sea_ice_source")}
    else:
        networks = {"bilinear": presets("lorenz96_bilinear"), "mlp": presets("lorenz96_mlp")}
    return [
        *trees("xgboost", "lightgbm", **TREES),
        *(
            PlannedMember(
                name=name,
                kind="neural",
                settings=settings,
                share=4.0,
                least_seconds=20.0,
                cores_as_fast_as_gpu=CORES_LIKE_A_GPU if facts["system"] == "sea_ice" else math.inf,
                seed_offset=int(name == "mlp_tanh"),
            )
            for name, settings in networks.items()
        ),
    ]


def combining(manifest: dict[str, Any]) -> dict[str, str]:
    """The combiner, which is not chosen by comparison: its weights are 0 or more and have the sum 1."""
    return {"combiner": "simplex"}
