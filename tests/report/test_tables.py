"""The tables of the report."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.predictions import Predictions
from ensemble.predictor import scoring
from ensemble.recipe import Words
from ensemble.report import tables
from ensemble.report.run import Member
from ensemble.task import Task


def test_an_ensemble_equal_to_its_best_member_loses_nothing() -> None:
    """The page of a single member, scored by an error, would say that the ensemble loses 0.000 against it."""
    ids = np.arange(40)
    value = np.random.default_rng(0).normal(size=40)
    columns = {"row_id": ids, "group": ids, "cluster": ids, "recipe": "r", "fingerprint": "f", "split": "test"}
    test = Predictions(target=value + 1, prediction=value, member="ensemble", **columns)
    task = Task(kind="regression", target="y", metric="root_mean_squared_error", group="group", cluster="cluster")
    for worse, is_gain in ((0.0, True), (-0.1, True), (0.1, False)):
        candidates = {"ensemble": value - worse, "trees": value}
        scores = scoring.score(task, test, candidates, ["trees"], 20, 0)
        run: Any = SimpleNamespace(
            scores=scores, task=task, words=Words(), candidates=candidates, recipe=SimpleNamespace(get=lambda *_: None)
        )
        assert tables.score_table(run)["main"]["is_gain"] is is_gain


def test_metrics_of_every_kind_have_a_label() -> None:
    """The linear member of a ranking, which stops by a squared error, would be shown with root_mean_squared_error."""
    for kind in metrics.METRICS:
        labels = tables.metric_labels(SimpleNamespace(task=SimpleNamespace(kind=kind)))  # type: ignore[arg-type]
        assert labels["root_mean_squared_error"] == "root mean squared error"


def test_a_member_is_shown_with_the_metric_that_stopped_it() -> None:
    """A member that stopped by ROC-AUC would be shown with its log loss, and with another number of trees."""
    summary = {"metric": "roc_auc", "validation_log_loss": 0.4, "validation_roc_auc": 0.8}
    assert Member(name="lightgbm", weight=1.0, summary=summary).metric == "roc_auc"
    del summary["validation_roc_auc"]  # as of CatBoost, which stops by the loss
    assert Member(name="catboost", weight=1.0, summary=summary).metric == "log_loss"
