"""The members of an ensemble, and their combiner.

    from ensemble import Predictor

    predictor = Predictor.fit("people.csv", target="income", out="runs/people")
    forecast = predictor.predict("new.csv")

README.md beside this file describes the folders. Importing `ensemble` imports nothing else, so each script loads only the
libraries that it uses.
"""

import importlib


def __getattr__(name: str) -> object:
    if name != "Predictor":
        raise AttributeError(f"module 'ensemble' has no attribute '{name}'")
    return importlib.import_module("ensemble.predictor.loaded").Predictor
