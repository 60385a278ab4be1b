"""The members of an emulator: trees, and networks that learn the Jacobian too where it is known."""

from typing import Any

from ensemble.pipeline.plan import Planned

TREES: dict[str, Any] = {"learning_rate": 0.1, "num_rounds": 400, "max_leaves": 63, "early_stopping_rounds": 30}
SEA_ICE: dict[str, Any] = {
    "batch_size": 512, "max_epochs": 14, "learning_rate": 5e-3, "recipe.widths": "[64,64,64]", "recipe.output": "sigmoid",
}  # fmt: skip
"""Three hidden layers of 64 with GELU, as in the source's successor, and an output between 0 and 1."""
SOURCE: dict[str, Any] = {
    "batch_size": 512, "max_epochs": 14, "learning_rate": 1e-2, "recipe.widths": "[16]", "recipe.activation": "relu",
    "recipe.output": "sigmoid",
}  # fmt: skip
"""The network of the source, with the activation that its README names."""
BILINEAR: dict[str, Any] = {
    "batch_size": 256, "max_epochs": 8, "learning_rate": 5e-3, "recipe.network": "bilinear", "recipe.widths": "[24,24]",
}  # fmt: skip
PERCEPTRON: dict[str, Any] = {
    "batch_size": 256, "max_epochs": 16, "learning_rate": 2e-3, "recipe.widths": "[256]", "recipe.residual": True,
}  # fmt: skip
SEA_ICE_JACOBIAN, LORENZ96_JACOBIAN = 0.1, 0.1
"""Weights of the Jacobian's error in the loss."""


def plan(about: dict[str, Any], num_threads: int) -> list[Planned]:
    """The trees first, since they take a small part of the time."""
    facts = about["emulator"]
    if facts["system"] == "sea_ice":
        weight = {"recipe.jacobian_weight": SEA_ICE_JACOBIAN} if facts["formula"] else {}
        tanh = {"seed": about["config"]["seed"] + 1, "recipe.activation": "tanh"}
        networks = {"mlp": {**SEA_ICE, **weight}, "mlp_tanh": {**SEA_ICE, **weight, **tanh}, "mlp_16": SOURCE}
    else:
        networks = {"bilinear": BILINEAR, "mlp": {**PERCEPTRON, "recipe.jacobian_weight": LORENZ96_JACOBIAN}}
    trees = [
        Planned(name=library, kind="trees", settings={"library": library, **TREES}) for library in ("xgboost", "lightgbm")
    ]
    return [
        *trees,
        *(
            Planned(name=name, kind="neural", settings=settings, share=4.0, least_seconds=20.0)
            for name, settings in networks.items()
        ),
    ]


def combining(about: dict[str, Any]) -> dict[str, str]:
    """Weights that are 0 or more with the sum 1, without a comparison of combiners."""
    return {"combiner": "simplex"}
