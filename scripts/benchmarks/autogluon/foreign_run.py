"""One process of `benchmark.py autogluon`: another library fits a table, or predicts its new rows.

    .venv-autogluon/bin/python -P scripts/benchmarks/autogluon/foreign_run.py fit good_quality FOLDER 60
    .venv-autogluon/bin/python -P scripts/benchmarks/autogluon/foreign_run.py predict good_quality FOLDER

FOLDER contains train.parquet (the features, week and hot) and test.parquet (row_id, the features and week). `fit` writes the
model into FOLDER/METHOD and facts about it into METHOD.fit.json; `predict` writes METHOD.parquet, and its seconds into
METHOD.predict.json. AutoGluon's virtual environment lacks this package, so nothing of it is imported here, and -P keeps the
modules of this folder, some of which have common names, off the path.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pandas

TARGET, WEEK, ROW_ID = "hot", "week", "row_id"
BY_WEEK = "_by_week"
STACKING = "stacking"


def main() -> None:
    work, method, folder, *limit = sys.argv[1:]
    split = {"fit": "train", "predict": "test"}[work]
    rows = pandas.read_parquet(Path(folder) / f"{split}.parquet")
    if not method.endswith(BY_WEEK):
        rows = rows.drop(columns=WEEK)
    if work == "fit":
        rows[TARGET] = rows[TARGET].astype("int8")
        facts = fit_stacking(rows, folder) if method == STACKING else fit_autogluon(rows, method, folder, float(limit[0]))
    else:
        row_id = rows.pop(ROW_ID)
        began = time.perf_counter()
        prediction = predict_stacking(rows, folder) if method == STACKING else predict_autogluon(rows, method, folder)
        facts = {"warm_s": round(time.perf_counter() - began, 3)}
        pandas.DataFrame({ROW_ID: row_id, "prediction": prediction}).to_parquet(Path(folder) / f"{method}.parquet")
    (Path(folder) / f"{method}.{work}.json").write_text(json.dumps(facts, indent=1))


def fit_autogluon(rows: pandas.DataFrame, method: str, folder: str, time_limit_s: float) -> dict[str, Any]:
    """All rows are `train_data`: it makes its own folds, or blocks of weeks, and so is trained on the latest rows too."""
    import autogluon.tabular
    from autogluon.tabular import TabularPredictor

    by_week = {"validation_structure": {"time_on": WEEK}} if method.endswith(BY_WEEK) else {}
    predictor = TabularPredictor(label=TARGET, path=str(Path(folder) / method), eval_metric="average_precision", verbosity=2)
    predictor.fit(rows, presets=method.removesuffix(BY_WEEK), time_limit=time_limit_s, **by_week)
    board = predictor.leaderboard().dropna(subset="score_val")  # models refitted on all rows have no score
    return {
        "version": autogluon.tabular.__version__,
        "best": predictor.model_best,
        "validation": {
            model: round(float(score), 4) for model, score in zip(board["model"], board["score_val"], strict=True)
        },
    }


def predict_autogluon(rows: pandas.DataFrame, method: str, folder: str) -> Any:
    from autogluon.tabular import TabularPredictor

    return TabularPredictor.load(str(Path(folder) / method)).predict_proba(rows, as_multiclass=False).to_numpy()


def fit_stacking(rows: pandas.DataFrame, folder: str) -> dict[str, Any]:
    """scikit-learn's StackingClassifier: a logistic regression on out-of-fold probabilities of three models."""
    import joblib
    import sklearn
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=1000))
    models = [
        ("boosting", HistGradientBoostingClassifier(random_state=0)),
        ("forest", RandomForestClassifier(min_samples_leaf=20, n_jobs=-1, random_state=0)),
        ("linear", linear),
    ]
    target = rows.pop(TARGET)
    # A fold whose rows all lack a feature ends its boosting with "window shape cannot be larger than input array shape"
    rows = rows.dropna(axis="columns", thresh=len(rows) // 4)
    model = StackingClassifier(models, cv=5).fit(rows, target)
    (Path(folder) / STACKING).mkdir(exist_ok=True)
    joblib.dump(model, Path(folder) / STACKING / "model.joblib")
    return {"version": sklearn.__version__}


def predict_stacking(rows: pandas.DataFrame, folder: str) -> Any:
    import joblib

    model = joblib.load(Path(folder) / STACKING / "model.joblib")
    return model.predict_proba(rows[model.feature_names_in_])[:, 1]


if __name__ == "__main__":
    main()
