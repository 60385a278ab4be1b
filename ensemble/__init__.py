"""The members of an ensemble, and their combiner.

    data/      raw files -> prepared data (Arrow and a manifest)
    neural/    members trained with Accelerate: one loop, one file per model, one per recipe
    trees/     members trained on CPU cores: XGBoost and LightGBM
    predictions.py   the file in which every member hands over its forecasts: the one place where all of them meet
    combine/         the members' weights and their calibration
    metrics.py       how good a forecast is
    report.py        prediction files -> one HTML page

Importing `ensemble` loads nothing: each script pays only for the libraries it uses.
"""
