"""LightGBM: on the panel's Arrow table, the leanest of its inputs. Numbers only: version 4.7 aborts on string columns."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from ensemble.errors import UserError
from ensemble.trees.config import TreesConfig
from ensemble.trees.member import TreeData

FILE = "model.txt"


def train(config: TreesConfig, rows: TreeData, validation: TreeData) -> tuple[Any, list[dict[str, float]], int]:
    """The booster, the scores on validation after each round, and the number of the best round."""
    parameters = {
        "objective": "binary",
        "metric": ["average_precision", "binary_logloss"],
        "num_leaves": config.max_leaves,
        "learning_rate": config.learning_rate,
        "min_sum_hessian_in_leaf": config.min_leaf_weight,
        "bagging_fraction": config.row_fraction,
        "bagging_freq": 1,
        "feature_fraction": config.column_fraction,
        "lambda_l2": config.l2,
        "seed": config.seed,
        "num_threads": config.threads,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(_table(rows), label=rows.column("hot"), params=parameters)
    held_out = data.create_valid(_table(validation), label=validation.column("hot"))
    history: dict[str, Any] = {}
    with tqdm(total=config.num_rounds, desc="lightgbm", unit=" trees") as bar:

        def progress(environment: Any) -> None:
            bar.update()
            bar.set_postfix(average_precision=f"{environment.evaluation_result_list[0][2]:.4f}")

        booster = lightgbm.train(
            parameters,
            data,
            num_boost_round=config.num_rounds,
            valid_sets=[held_out],
            valid_names=["validation"],
            callbacks=[
                lightgbm.record_evaluation(history),
                progress,
                lightgbm.early_stopping(config.early_stopping_rounds, first_metric_only=True, verbose=False),
            ],
        )
    scores = history["validation"]
    rounds = [
        {"log_loss": loss, "average_precision": precision}
        for loss, precision in zip(scores["binary_logloss"], scores["average_precision"], strict=True)
    ]
    return booster, rounds, booster.best_iteration


def save(booster: Any, file: Path) -> None:
    booster.save_model(file, num_iteration=booster.best_iteration)


def load(file: Path) -> Any:
    try:
        return lightgbm.Booster(model_file=file)
    except lightgbm.basic.LightGBMError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None


def feature_names(booster: Any) -> list[str]:
    return booster.feature_name()


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, shape (n,), for features of shape (n, F)."""
    return np.asarray(booster.predict(features))


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """Each feature's part of the log odds, shape (n, F)."""
    return np.asarray(booster.predict(features, pred_contrib=True))[:, :-1]


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature, 0 for those never split on."""
    gain = booster.feature_importance(importance_type="gain")
    return dict(zip(feature_names(booster), map(float, gain), strict=True))


def _table(rows: TreeData) -> pa.Table:
    table = rows.feature_table()
    assert all(pa.types.is_floating(kind) for kind in table.schema.types), "LightGBM aborts the process on strings"
    return table
