"""The tables of the report."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from ensemble import metrics
from ensemble.predictions import Predictions
from ensemble.predictor import scoring
from ensemble.recipe import Words
from ensemble.report import tables
from ensemble.report.run import Member
from ensemble.task import Task

IDS = np.arange(40)
COLUMNS: dict[str, Any] = {
    **{"row_id": IDS, "group": IDS, "cluster": IDS},
    **{"recipe": "r", "fingerprint": "f", "split": "test", "member": "ensemble"},
}


def run_of(test: Predictions, candidates: dict[str, np.ndarray], metric: str, kind: str, num_draws: int = 20) -> Any:
    """What the tables need of a run, with the scores of `candidates`, of which "trees" is the only member."""
    task = Task(kind=kind, target="y", metric=metric, group="group", cluster="cluster", classes=("a", "b"))
    scores = scoring.score(task, test, candidates, ["trees"], num_draws, 0)
    return SimpleNamespace(
        test=test,
        scores=scores,
        task=task,
        combiner=SimpleNamespace(loss=task.loss),
        words=Words(),
        candidates=candidates,
        recipe=SimpleNamespace(get=lambda *_: None),
    )


def test_an_ensemble_equal_to_its_best_member_loses_nothing() -> None:
    """The page of a single member, scored by an error, would say that the ensemble loses 0.000 against it."""
    value = np.random.default_rng(0).normal(size=40)
    test = Predictions(target=value + 1, prediction=value, **COLUMNS)
    for worse, is_gain in ((0.0, True), (-0.1, True), (0.1, False)):
        run = run_of(test, {"ensemble": value - worse, "trees": value}, "root_mean_squared_error", "regression")
        assert tables.score_table(run)["main"]["is_gain"] is is_gain
    target, probability = (value > 0).astype(float), np.full(40, 0.3)
    for rounding in (1e-15, 1e-8):  # as after other steps than those of the member
        rounded = probability + rounding * (1 - 2 * target)
        test = Predictions(target=target, prediction=rounded, **COLUMNS)
        run = run_of(test, {"ensemble": rounded, "trees": probability}, "log_loss", "binary")
        assert run.scores["gain_over_best_member"]["log_loss"]["low"] > 0
        main = tables.score_table(run)["main"]
        assert (main["is_gain"], main["verdict"]) == (True, "not significant")


def test_metrics_of_every_kind_have_a_label() -> None:
    """The linear member of a ranking, which stops by a squared error, would be shown with root_mean_squared_error."""
    for kind in metrics.METRICS:
        labels = tables.metric_labels(SimpleNamespace(task=SimpleNamespace(kind=kind)))  # type: ignore[arg-type]
        assert labels["root_mean_squared_error"] == "root mean squared error"


@pytest.mark.parametrize(("kind", "metric"), [("regression", "root_mean_squared_error"), ("binary", "average_precision")])
def test_the_interval_is_that_of_the_gain_or_loss_in_the_sentence(kind: str, metric: str) -> None:
    """A loss of 0.5 would have an interval from -0.6 to -0.4."""
    generator = np.random.default_rng(0)
    target, *noises = generator.normal(size=(3, 40))
    near, far = (target + noise for noise in (0.1 * noises[0], 3 * noises[1]))
    if kind == "binary":
        target, near, far = (target > 0).astype(float), *(1 / (1 + np.exp(-logit)) for logit in (near, far))
    test = Predictions(target=target, prediction=near, **COLUMNS)
    for candidates in ({"ensemble": near, "trees": far}, {"ensemble": far, "trees": near}):
        main = tables.score_table(run_of(test, candidates, metric, kind))["main"]
        assert 0 < float(main["low"]) < float(main["size"]) < float(main["high"])


def test_small_scores_differ() -> None:
    """With one positive row in 10,000, all scores would be 0.000, and nearly every row would be marked as the best."""
    ids, generator = np.arange(100_000), np.random.default_rng(0)
    target = (ids % 10_000 == 0).astype(float)
    logit = generator.normal(size=len(ids)) + target
    candidates = {"ensemble": 1e-4 * np.exp(logit - 0.5), "trees": 1e-4 * np.exp(0.2 * logit)}
    candidates["base rate"] = np.full(len(ids), 1e-4)
    columns = COLUMNS | {"row_id": ids, "group": ids % 10, "cluster": ids}
    test = Predictions(target=target, prediction=candidates["ensemble"], **columns)
    table = tables.score_table(run_of(test, candidates, "average_precision", "binary", 3))
    names = [column["label"] for column in table["columns"]]
    for name in ("Average precision", "Brier score", "Log loss"):
        cells = [row["cells"][names.index(name)] for row in table["rows"]]
        values = [float(cell["value"].replace("−", "-")) for cell in cells]
        assert min(values) > 0
        assert not cells[0]["interval"].startswith("0.000 ")
        assert sum(cell["best"] for cell in cells) == values.count(
            max(values) if name == "Average precision" else min(values)
        )
    assert table["rows"][2]["cells"][0]["value"] == "0.000100"


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_differences_have_one_digit_more_than_scores(kind: str) -> None:
    """A difference of 0.00005 between errors of 1.210 and 1.210 would be shown as +5.123e-05, beside one of +0.002."""
    generator = np.random.default_rng(0)
    target = generator.normal(size=40)
    near = target + generator.normal(size=40)
    if kind == "binary":
        target, near = (target > 0).astype(float), 1 / (1 + np.exp(-near))
    test = Predictions(target=target, prediction=near, **COLUMNS)
    metric = "root_mean_squared_error" if kind == "regression" else "log_loss"
    table = tables.score_table(run_of(test, {"ensemble": near * (1 - 1e-4), "trees": near}, metric, kind))
    for column, score, cell in zip(table["columns"], table["rows"][0]["cells"], table["differences"], strict=True):
        if column["label"] != "Mean error":
            num_digits = 1 + len(score["value"].partition(".")[2])
            for text in (cell["value"], *cell["interval"].split(" to ")):
                assert len(text.partition(".")[2]) == num_digits, (column["label"], text)


@pytest.mark.parametrize("is_gain", [True, False])
def test_differences_in_a_small_unit_are_not_0(is_gain: bool) -> None:
    """A significant loss of 3e-8 metres would be a gain of 0.00000000 that is not significant."""
    generator = np.random.default_rng(0)
    target = 1e-7 * generator.normal(size=40)
    near, far = (target + scale * generator.normal(size=40) for scale in (1e-8, 4e-8))
    test = Predictions(target=target, prediction=near, **COLUMNS)
    candidates = {"ensemble": near, "trees": far} if is_gain else {"ensemble": far, "trees": near}
    table = tables.score_table(run_of(test, candidates, "root_mean_squared_error", "regression"))
    main, difference = table["main"], table["differences"][0]
    assert (main["is_gain"], main["verdict"]) == (is_gain, "better" if is_gain else "worse")
    low, size, high = (float(main[part].replace("−", "-")) for part in ("low", "size", "high"))
    assert 0 < low < size < high
    assert size == pytest.approx(3e-8, rel=0.3)
    assert difference["value"] == ("−" if is_gain else "+") + main["size"]
    equal = tables.score_table(run_of(test, {"ensemble": far, "trees": far}, "root_mean_squared_error", "regression"))
    assert (equal["main"]["size"], equal["main"]["is_gain"], equal["differences"][0]["value"]) == ("0", True, "0")


@pytest.mark.parametrize(("kind", "label"), [("regression", "the mean of the target"), ("binary", "the base rate")])
def test_the_constant_prediction_is_named_by_the_task(kind: str, label: str) -> None:
    """The page of a regression would compare with a base rate, which a number does not have."""
    target = (IDS % 3 == 0).astype(float)
    test = Predictions(target=target, prediction=0.1 + 0.8 * target, **COLUMNS)
    constant = np.full(40, target.mean())
    candidates = {"ensemble": test.prediction, "trees": test.prediction, "base rate": constant, "age": constant}
    metric = "root_mean_squared_error" if kind == "regression" else "log_loss"
    run = run_of(test, candidates, metric, kind)
    run.candidates = {name: candidates[name] for name in ("ensemble", "trees")}
    table = tables.score_table(run)
    assert [other["name"] for other in table["main"]["others"]] == [label, "the baseline age"]
    assert table["rows"][2]["kind"] == ("baseline" if kind == "binary" else f"baseline: {label}")
    if kind == "regression":
        cells = dict(zip([column["label"] for column in table["columns"]], table["rows"][2]["cells"], strict=True))
        assert cells["Mean error"]["value"] == "0.000"  # without rounding errors such as −1.1e−17


def test_the_confusion_of_classes_counts_weights() -> None:
    """The shares would not be the recalls whose mean is the balanced accuracy on the same page."""
    weight, target, predicted = np.where(IDS % 2, 9.0, 1.0), IDS % 4 // 2, IDS % 3 // 2
    probabilities = np.stack([1 - predicted, predicted], axis=1).astype(float)
    test = Predictions(target=target.astype(float), prediction=probabilities, weight=weight, **COLUMNS)
    candidates = {"ensemble": probabilities, "trees": probabilities}
    run = run_of(test, candidates, "multiclass_log_loss", "multiclass")
    table = tables.confusion(run)
    shares = [[cell["share"] for cell in row["cells"]] for row in table["rows"]]
    np.testing.assert_allclose(shares, confusion_matrix(target, predicted, sample_weight=weight, normalize="true"))
    recalls = run.scores["scores"]["ensemble"]["balanced_accuracy"]["value"]
    assert np.mean(np.diag(shares)) == pytest.approx(recalls)
    assert [row["rows"] for row in table["rows"]] == [20, 20]


def test_members_of_weight_0_are_left_out_of_the_importance() -> None:
    """Ten bars of members that change no prediction would hide those of the two that do."""
    permutation = {"metric": "log_loss", "rows": 300, "worse": {"x": 0.1}}
    members = [
        Member(name=name, weight=weight, permutation=permutation, importance={"x": 1.0})
        for name, weight in (("small", -0.2), ("none", 0.0), ("large", 1.2))
    ]
    run: Any = SimpleNamespace(members=members, feature_labels={"x": "x"})
    permuted = tables.permutation(run)
    assert permuted is not None
    assert permuted["members"] == tables.importance(run)["members"] == ["large", "small"]


@pytest.mark.parametrize(("rows", "expected"), [((422, 1998), "422 to 1,998"), ((1998, 1998), "1,998")])
def test_permuted_rows_are_those_of_every_member(rows: tuple[int, int], expected: str) -> None:
    """The number of rows of the first member would be given for all of them."""
    members = [
        Member(
            name=f"m{number}", weight=0.5, summary={}, permutation={"metric": "log_loss", "rows": rows, "worse": {"x": 0.1}}
        )
        for number, rows in enumerate(rows)
    ]
    run: Any = SimpleNamespace(members=members, feature_labels={"x": "x"})
    result = tables.permutation(run)
    assert result is not None
    assert result["num_rows"] == expected


def test_a_member_is_shown_with_the_metric_that_stopped_it() -> None:
    """A member that stopped by ROC-AUC would be shown with its log loss, and with another number of trees."""
    summary = {"metric": "roc_auc", "validation_log_loss": 0.4, "validation_roc_auc": 0.8}
    assert Member(name="lightgbm", weight=1.0, summary=summary).metric == "roc_auc"
    del summary["validation_roc_auc"]  # as of CatBoost, which stops by the loss
    assert Member(name="catboost", weight=1.0, summary=summary).metric == "log_loss"
