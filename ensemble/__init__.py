"""Ensembles of neural networks, tree models and linear models, fitted to tables or to the raw data of a recipe.

    from ensemble import Predictor

    predictor = Predictor.fit("people.csv", target="income", out="runs/people")
    forecast = predictor.predict("new.csv")

README.md beside this file describes the folders. Importing `ensemble` imports nothing else.
"""

import importlib

TYPE_CHECKING = False  # type checkers and the completion of editors take it for True
if TYPE_CHECKING:
    from ensemble.predictor.loaded import Predictor as Predictor


def __getattr__(name: str) -> object:
    if name != "Predictor":
        raise AttributeError(f"module 'ensemble' has no attribute '{name}'")
    return importlib.import_module("ensemble.predictor.loaded").Predictor
