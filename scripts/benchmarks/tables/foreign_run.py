"""A process of `benchmark.py tables` or `benchmark.py autogluon`: another library fits a table, or predicts new rows.

    .venv-autogluon/bin/python -P scripts/benchmarks/tables/foreign_run.py fit good_quality TABLE OUT SEED TIME_LIMIT
    .venv-autogluon/bin/python -P scripts/benchmarks/tables/foreign_run.py predict good_quality TABLE OUT SEED TIME_LIMIT

TABLE contains the training rows and the new rows as CSV or Parquet, and table.json (target, task, time column and its
format; optionally the metric, the names of both files, and whether the time is a feature). `fit` writes the model into
OUT/model and facts about it into OUT/fit.json; `predict` writes OUT/predictions.parquet: row_id (the number of the row,
unless the rows have a row_id) and `prediction`, or one column for each class. AutoGluon's virtual environment lacks this
package, so nothing of it is imported here, and -P keeps the modules of this folder, some of which have common names, off
the path.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas

LIGHTGBM, STACKING = "lightgbm", "stacking"
BY_TIME = "_by_time"
"""Suffix of a preset: the folds of AutoGluon are contiguous blocks of time, and a single holdout is the last block."""
DATE_PARTS = "_date_parts"
"""Suffix of a preset: AutoGluon gets the parts of a date that plain LightGBM gets. AutoGluon's own parts lack the hour."""
NUM_TREES, LEARNING_RATE = 300, 0.05
ROW_ID = "row_id"


def main() -> None:
    work, method, table, out, seed, time_limit = sys.argv[1:]
    description = json.loads((Path(table) / "table.json").read_text())
    file = Path(table) / description.get(work, {"fit": "train.csv", "predict": "new.csv"}[work])
    rows = pandas.read_parquet(file) if file.suffix == ".parquet" else pandas.read_csv(file)
    moment, is_feature = description["time"], description.get("time_is_feature", True)
    if description["time_format"]:
        rows[moment] = pandas.to_datetime(rows[moment], format=description["time_format"])
        if method == LIGHTGBM or DATE_PARTS in method:
            rows, is_feature = with_date_parts(rows, moment), False
    if not is_feature and not method.endswith(BY_TIME):
        rows = rows.drop(columns=moment)
    model = Path(out) / "model"
    if work == "fit":
        if method in (LIGHTGBM, STACKING):
            facts = fit_sklearn(rows, description, model, method, int(seed))
        else:
            facts = fit_autogluon(rows, description, model, method, int(seed), float(time_limit))
        (Path(out) / "fit.json").write_text(json.dumps(facts, indent=1))
    else:
        row_id = rows.pop(ROW_ID) if ROW_ID in rows else range(len(rows))
        predictions = (predict_sklearn if method in (LIGHTGBM, STACKING) else predict_autogluon)(rows, description, model)
        predictions.insert(0, ROW_ID, row_id)
        predictions.to_parquet(Path(out) / "predictions.parquet")


def fit_autogluon(
    rows: pandas.DataFrame, description: dict[str, Any], model: Path, method: str, seed: int, time_limit: float
) -> dict[str, Any]:
    """Fit AutoGluon with all rows as `train_data`. The seed is that of its folds and models; by default both are 0."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default 15: any other load would slow AutoGluon more than others
    import autogluon.tabular
    from autogluon.tabular import TabularPredictor

    by_time = {"validation_structure": {"time_on": description["time"]}} if method.endswith(BY_TIME) else {}
    predictor = TabularPredictor(
        label=description["target"],
        path=str(model),
        problem_type=description["task"],
        eval_metric=description.get("metric")
        or ("root_mean_squared_error" if description["task"] == "regression" else "log_loss"),
        verbosity=2,
        learner_kwargs={"random_state": seed},
    )
    predictor.fit(
        rows,
        presets=method.removesuffix(BY_TIME).removesuffix(DATE_PARTS),
        time_limit=time_limit,
        ag_args_ensemble={"model_random_seed": seed},
        **by_time,
    )
    board = predictor.leaderboard(silent=True).dropna(subset="score_val")  # models refitted on all rows have no score
    return {
        "version": autogluon.tabular.__version__,
        "best": predictor.model_best,
        "validation": {name: round(float(score), 5) for name, score in zip(board["model"], board["score_val"], strict=True)},
    }


def predict_autogluon(rows: pandas.DataFrame, description: dict[str, Any], model: Path) -> pandas.DataFrame:
    from autogluon.tabular import TabularPredictor

    predictor = TabularPredictor.load(str(model))
    if description["task"] == "regression":
        return pandas.DataFrame({"prediction": predictor.predict(rows).to_numpy()})
    return predictor.predict_proba(rows, as_multiclass=True).reset_index(drop=True).rename(columns=str)


def fit_sklearn(rows: pandas.DataFrame, description: dict[str, Any], model: Path, method: str, seed: int) -> dict[str, Any]:
    """Fit plain LightGBM, or `stacking_model`, on all rows, with texts as pandas categories.

    LightGBM has the usual `NUM_TREES` and `LEARNING_RATE`, otherwise its defaults, and does not stop early.
    """
    import joblib
    import lightgbm
    import sklearn

    target = rows.pop(description["target"])
    texts = [name for name in rows.columns if not pandas.api.types.is_numeric_dtype(rows[name])]
    rows = rows.astype(dict.fromkeys(texts, "category"))
    if method == STACKING:
        # A fold in which all rows lack a feature fails with "window shape cannot be larger than input array shape"
        rows = rows.dropna(axis="columns", thresh=len(rows) // 4)
        estimator = stacking_model()
    else:
        kind = lightgbm.LGBMRegressor if description["task"] == "regression" else lightgbm.LGBMClassifier
        estimator = kind(n_estimators=NUM_TREES, learning_rate=LEARNING_RATE, random_state=seed, verbose=-1)
    estimator.fit(rows, target)
    model.mkdir(parents=True)
    joblib.dump((estimator, texts, list(rows.columns)), model / "model.joblib")
    return {"version": (sklearn if method == STACKING else lightgbm).__version__}


def stacking_model() -> Any:
    """scikit-learn's StackingClassifier: a logistic regression on out-of-fold probabilities of three models."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=1000))
    forest = RandomForestClassifier(min_samples_leaf=20, n_jobs=-1, random_state=0)
    boosting = HistGradientBoostingClassifier(random_state=0)
    return StackingClassifier([("boosting", boosting), ("forest", forest), ("linear", linear)], cv=5)


def predict_sklearn(rows: pandas.DataFrame, description: dict[str, Any], model: Path) -> pandas.DataFrame:
    import joblib

    estimator, texts, names = joblib.load(model / "model.joblib")
    rows = rows.astype(dict.fromkeys(texts, "category"))[names]  # also a text column that is empty in all new rows
    if description["task"] == "regression":
        return pandas.DataFrame({"prediction": estimator.predict(rows)})
    return pandas.DataFrame(estimator.predict_proba(rows), columns=[str(name) for name in estimator.classes_])


def with_date_parts(rows: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """Add the parts of a date, as users of such libraries do."""
    moment = rows[name]
    parts = ("year", "month", "day", "day_of_week", "day_of_year", "hour")
    return rows.assign(**{f"{name}_{part}": getattr(moment.dt, part) for part in parts})


if __name__ == "__main__":
    main()
