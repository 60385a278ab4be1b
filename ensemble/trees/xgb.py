"""XGBoost: histogram trees on a QuantileDMatrix that is filled batch by batch, so the features are never in memory whole."""

from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from tqdm import tqdm

from ensemble.errors import UserError
from ensemble.metrics import average_precision
from ensemble.trees.config import TreesConfig
from ensemble.trees.member import TreeData

FILE = "model.ubj"


class _Batches(xgboost.DataIter):
    def __init__(self, rows: TreeData):
        super().__init__()
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        self._batches = self.rows.batches()

    def next(self, input_data: Any) -> bool:
        for features, target in self._batches:
            input_data(data=features, label=target, feature_names=self.rows.features)
            return True
        return False


class _Progress(xgboost.callback.TrainingCallback):
    def __init__(self, num_rounds: int):
        self.bar = tqdm(total=num_rounds, desc="xgboost", unit=" trees")

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.bar.update()
        self.bar.set_postfix(average_precision=f"{evals_log['validation']['average_precision'][-1]:.4f}")
        return False

    def after_training(self, model: Any) -> Any:
        self.bar.close()
        return model


def train(config: TreesConfig, rows: TreeData, validation: TreeData) -> tuple[Any, list[dict[str, float]], int]:
    """The booster cut to its best round, the scores on validation after each round, and the number of that round."""
    data = xgboost.QuantileDMatrix(_Batches(rows), max_bin=256)
    held_out = xgboost.QuantileDMatrix(_Batches(validation), max_bin=256, ref=data)
    history: dict[str, Any] = {}
    # XGBoost's own aucpr interpolates: it is not the average precision that everything else here reports
    stop = xgboost.callback.EarlyStopping(
        rounds=config.early_stopping_rounds,
        metric_name="average_precision",
        data_name="validation",
        maximize=True,
        save_best=True,
    )
    booster = xgboost.train(
        {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": config.max_leaves,
            "learning_rate": config.learning_rate,
            "min_child_weight": config.min_leaf_weight,
            "subsample": config.row_fraction,
            "colsample_bytree": config.column_fraction,
            "reg_lambda": config.l2,
            "eval_metric": "logloss",
            "seed": config.seed,
            "nthread": config.threads,
        },
        data,
        num_boost_round=config.num_rounds,
        evals=[(held_out, "validation")],
        evals_result=history,
        custom_metric=lambda margin, rows: ("average_precision", average_precision(rows.get_label(), margin)),
        verbose_eval=False,
        callbacks=[stop, _Progress(config.num_rounds)],
    )
    scores = history["validation"]
    rounds = [
        {"log_loss": loss, "average_precision": precision}
        for loss, precision in zip(scores["logloss"], scores["average_precision"], strict=True)
    ]
    return booster, rounds, booster.num_boosted_rounds()


def save(booster: Any, file: Path) -> None:
    booster.save_model(file)


def load(file: Path) -> Any:
    booster = xgboost.Booster()
    try:
        booster.load_model(file)
    except xgboost.core.XGBoostError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    return booster


def feature_names(booster: Any) -> list[str]:
    return list(booster.feature_names or [])


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, shape (n,), for features of shape (n, F)."""
    return booster.inplace_predict(features, validate_features=False)


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """Each feature's part of the log odds, shape (n, F)."""
    data = xgboost.DMatrix(features, feature_names=feature_names(booster))
    return booster.predict(data, pred_contribs=True)[:, :-1]


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature, 0 for those never split on."""
    gain = booster.get_score(importance_type="total_gain")
    return {name: float(gain.get(name, 0.0)) for name in feature_names(booster)}
