"""The members of an ensemble, and their combiner.

    from ensemble import Predictor

    predictor = Predictor.fit("people.csv", target="income", out="runs/people")
    forecast = predictor.predict("new.csv")

    recipes/         one folder for each question: data, model, baselines, words of the report
    recipe.py        what a recipe may provide, and how one is found
    data/            readers of raw data that several recipes share, and prepared data
    neural/          the training loop around Accelerate, and predictions of networks
    trees/           XGBoost and LightGBM on CPU cores: train, predict, search, export
    predictions.py   the prediction file, in which every member writes its predictions
    combine/         weights of the members, and calibration
    metrics/         scores, with bootstrap intervals
    predictor/       fitting an ensemble, predicting with its members, new data, the service
    pipeline/        one command from raw data to the report
    commands/        the commands of scripts/ that need no checkout
    report/          prediction files -> one HTML page
    doctor/          checks of a machine and of a cluster

Importing `ensemble` imports nothing else, so each script loads only the libraries that it uses.
"""

import importlib


def __getattr__(name: str) -> object:
    if name != "Predictor":
        raise AttributeError(f"module 'ensemble' has no attribute '{name}'")
    return importlib.import_module("ensemble.predictor.loaded").Predictor
