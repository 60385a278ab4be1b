"""One process of `benchmark.py tables`: another library fits a table, or predicts its new rows.

    .venv-autogluon/bin/python -P scripts/benchmarks/tables/foreign_run.py fit good_quality TABLE OUT SEED TIME_LIMIT
    .venv-autogluon/bin/python -P scripts/benchmarks/tables/foreign_run.py predict good_quality TABLE OUT SEED TIME_LIMIT

TABLE contains train.csv, new.csv and table.json (target, task, time column and its format). `fit` writes the model into
OUT/model and facts about it into OUT/fit.json; `predict` writes OUT/predictions.parquet: row_id (the number of the row in
new.csv) and `prediction`, or one column for each class. AutoGluon's virtual environment lacks this package, so nothing of
it is imported here, and -P keeps the modules of this folder, some of which have common names, off the path.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas

LIGHTGBM = "lightgbm"
BY_TIME = "_by_time"
DATE_PARTS = "_date_parts"
"""Suffix of a preset with which AutoGluon gets the parts of a date as plain LightGBM does. Its own lack the hour."""
NUM_TREES, LEARNING_RATE = 300, 0.05


def main() -> None:
    work, method, table, out, seed, time_limit = sys.argv[1:]
    about = json.loads((Path(table) / "table.json").read_text())
    rows = pandas.read_csv(Path(table) / {"fit": "train.csv", "predict": "new.csv"}[work])
    if about["time_format"]:
        rows[about["time"]] = pandas.to_datetime(rows[about["time"]], format=about["time_format"])
    if about["time_format"] and (method == LIGHTGBM or method.endswith(DATE_PARTS)):
        rows = with_date_parts(rows, about["time"])
    model = Path(out) / "model"
    if work == "fit":
        if method == LIGHTGBM:
            facts = fit_lightgbm(rows, about, model, int(seed))
        else:
            facts = fit_autogluon(rows, about, model, method, int(seed), float(time_limit))
        (Path(out) / "fit.json").write_text(json.dumps(facts, indent=1))
    else:
        predictions = predict_lightgbm(rows, about, model) if method == LIGHTGBM else predict_autogluon(rows, about, model)
        predictions.insert(0, "row_id", range(len(rows)))
        predictions.to_parquet(Path(out) / "predictions.parquet")


def fit_autogluon(
    rows: pandas.DataFrame, about: dict[str, Any], model: Path, method: str, seed: int, time_limit: float
) -> dict[str, Any]:
    """All rows are `train_data`. The seed changes the folds and the models; AutoGluon's default of both is 0."""
    import autogluon.tabular
    from autogluon.tabular import TabularPredictor

    by_time = {"validation_structure": {"time_on": about["time"]}} if method.endswith(BY_TIME) else {}
    predictor = TabularPredictor(
        label=about["target"],
        path=str(model),
        problem_type=about["task"],
        eval_metric="root_mean_squared_error" if about["task"] == "regression" else "log_loss",
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


def predict_autogluon(rows: pandas.DataFrame, about: dict[str, Any], model: Path) -> pandas.DataFrame:
    from autogluon.tabular import TabularPredictor

    predictor = TabularPredictor.load(str(model))
    if about["task"] == "regression":
        return pandas.DataFrame({"prediction": predictor.predict(rows).to_numpy()})
    return predictor.predict_proba(rows, as_multiclass=True).reset_index(drop=True).rename(columns=str)


def fit_lightgbm(rows: pandas.DataFrame, about: dict[str, Any], model: Path, seed: int) -> dict[str, Any]:
    """The library's defaults on all rows, with texts as pandas categories: no validation, no early stopping."""
    import joblib
    import lightgbm

    kind = lightgbm.LGBMRegressor if about["task"] == "regression" else lightgbm.LGBMClassifier
    estimator = kind(n_estimators=NUM_TREES, learning_rate=LEARNING_RATE, random_state=seed, verbose=-1)
    target = rows.pop(about["target"])
    texts = [name for name in rows.columns if not pandas.api.types.is_numeric_dtype(rows[name])]
    estimator.fit(rows.astype(dict.fromkeys(texts, "category")), target)
    model.mkdir(parents=True)
    joblib.dump((estimator, texts), model / "model.joblib")
    return {"version": lightgbm.__version__}


def predict_lightgbm(rows: pandas.DataFrame, about: dict[str, Any], model: Path) -> pandas.DataFrame:
    import joblib

    estimator, texts = joblib.load(model / "model.joblib")
    rows = rows.astype(dict.fromkeys(texts, "category"))  # also a column that is empty in all new rows
    if about["task"] == "regression":
        return pandas.DataFrame({"prediction": estimator.predict(rows)})
    return pandas.DataFrame(estimator.predict_proba(rows), columns=[str(name) for name in estimator.classes_])


def with_date_parts(rows: pandas.DataFrame, name: str) -> pandas.DataFrame:
    """Replace a date by its parts, which is the usual way."""
    moment = rows.pop(name)
    parts = ("year", "month", "day", "day_of_week", "day_of_year", "hour")
    return rows.assign(**{f"{name}_{part}": getattr(moment.dt, part) for part in parts})


if __name__ == "__main__":
    main()
