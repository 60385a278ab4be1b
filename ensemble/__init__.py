"""The members of an ensemble, and their combiner.

    recipes/         one folder for each question: data, model, baselines, words of the report
    recipe.py        what a recipe may provide, and how one is found
    data/            readers of raw data that several recipes share
    neural/          the training loop around Accelerate, and predictions of networks
    trees/           XGBoost and LightGBM on CPU cores: train, predict, search, export
    predictions.py   the file in which every member hands over its predictions: the one place where all of them meet
    combine/         weights of the members, and calibration
    metrics/         scores, with bootstrap intervals
    predictor/       fitting an ensemble, asking its members, new data, the service
    report/          prediction files -> one HTML page
    doctor/          checks of a machine and of a cluster

Importing `ensemble` loads nothing: each script pays only for the libraries it uses.
"""
