"""The scores equal those of scikit-learn, or those computed by hand; and their intervals are correct."""

import itertools
import math
import socket
from pathlib import Path

import numpy as np
import pytest
from intervals import bootstrap_scores

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS, METRICS, binary_scores, bootstrap_draws, score_intervals, why_undefined
from ensemble.metrics.binary import precision_recall, reliability
from ensemble.metrics.evaluating import binary_metric


def market(num_rows: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
    """A calibrated forecast of 5 % positives, with many ties."""
    generator = np.random.default_rng(seed)
    prediction = generator.beta(0.3, 5, num_rows).round(2)
    return {
        "target": (generator.random(num_rows) < prediction).astype(int),
        "prediction": prediction,
        "group": generator.integers(0, 12, num_rows),
        "cluster": generator.integers(0, 150, num_rows),
    }


def scores(data: dict[str, np.ndarray], weight: np.ndarray | None = None) -> dict[str, float]:
    return binary_scores(data["target"], data["prediction"], data["group"], weight)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_scikit_learn(weighted: bool) -> None:
    """A score would differ from what its name means elsewhere."""
    from sklearn import metrics

    data = market()
    weight = np.random.default_rng(1).random(len(data["target"])) * 3 if weighted else None
    arguments = {"y_true": data["target"], "sample_weight": weight}
    ours = scores(data, weight)
    assert list(ours) == list(METRICS["binary"])
    assert ours["average_precision"] == pytest.approx(
        metrics.average_precision_score(y_score=data["prediction"], **arguments)
    )
    assert ours["roc_auc"] == pytest.approx(metrics.roc_auc_score(y_score=data["prediction"], **arguments))
    assert ours["log_loss"] == pytest.approx(metrics.log_loss(y_proba=data["prediction"], **arguments))
    assert ours["brier"] == pytest.approx(metrics.brier_score_loss(y_proba=data["prediction"], **arguments))
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(y_pred=data["prediction"] >= 0.5, **arguments))
    always_no = metrics.accuracy_score(y_pred=np.zeros_like(data["target"]), **arguments)
    assert ours["accuracy_always_no"] == pytest.approx(always_no)


def test_a_weight_is_a_number_of_copies() -> None:
    """The bootstrap, which draws weights instead of rows, would estimate another spread than that of the scores."""
    data = market()
    weight = np.random.default_rng(1).integers(0, 4, len(data["target"]))
    copies = {name: np.repeat(column, weight) for name, column in data.items()}
    assert scores(data, weight) == pytest.approx(scores(copies))


def test_row_order_changes_nothing() -> None:
    """A score would depend on the order of tied rows."""
    data = market()
    shuffle = np.random.default_rng(1).permutation(len(data["target"]))
    assert scores(data) == pytest.approx(scores({name: column[shuffle] for name, column in data.items()}), rel=1e-12)


def test_precision_in_the_top_of_each_week_by_hand() -> None:
    """The top 5 % would be taken over all weeks at once, or not rounded down, or not at least one row."""
    # Week 0 has 59 rows, so its top 2 are taken: one hit. Week 1 has 3 rows, so its top 1: a hit, despite low predictions.
    prediction = np.r_[np.linspace(0.9, 0.3, 59), 0.2, 0.1, 0.0]
    target = np.r_[0, 1, 0, np.zeros(56), 1, 0, 0]
    group = np.r_[np.zeros(59), 1, 1, 1]
    result = binary_scores(target, prediction, group)
    assert result["precision_at_5pct"] == pytest.approx(2 / 3)
    assert result["lift_at_5pct"] == pytest.approx((2 / 3) / (2 / 62))


@pytest.mark.parametrize("num_rows", range(20, 2000, 20))
def test_five_percent_is_exact(num_rows: int) -> None:
    """5 % of 60 rows would be 2, because 0.05 is not quite a twentieth."""
    target = np.arange(num_rows) < num_rows // 20
    result = binary_scores(target, np.linspace(1, 0, num_rows), np.zeros(num_rows))
    assert result["precision_at_5pct"] == 1
    target[num_rows // 20 - 1] = False
    result = binary_scores(target | (np.arange(num_rows) == num_rows // 20), np.linspace(1, 0, num_rows), np.zeros(num_rows))
    assert result["precision_at_5pct"] == pytest.approx(1 - 20 / num_rows)


def test_ties_at_the_border_count_in_part() -> None:
    """The score of a member that predicts few different values would depend on the order of the rows."""
    # Of 40 rows two are taken: the first, and one of the four tied at 0.5
    prediction = np.r_[0.9, [0.5] * 4, [0.1] * 35]
    target = np.r_[0, 1, 1, 1, 0, np.zeros(35)]
    every_way = [np.mean(target[[0, second]]) for second in range(1, 5)]
    assert binary_scores(target, prediction, np.zeros(40))["precision_at_5pct"] == pytest.approx(np.mean(every_way))


def test_calibration_error_by_hand() -> None:
    """The bins would be of equal width, where nearly all rows of a rare event share the first one."""
    num_rows = 4000
    prediction = np.linspace(0.001, 0.04, num_rows)
    target = (np.arange(num_rows) % 25 == 0).astype(int)  # 4 % everywhere
    bins = np.arange(num_rows).reshape(20, -1)
    expected = np.mean([abs(target[rows].mean() - prediction[rows].mean()) for rows in bins])
    assert binary_scores(target, prediction, np.zeros(num_rows))["calibration_error"] == pytest.approx(expected)
    base_rate = np.full(num_rows, target.mean())
    assert binary_scores(target, base_rate, np.zeros(num_rows))["calibration_error"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("positive", "undefined"), [(0, {"average_precision", "roc_auc", "lift_at_5pct"}), (1, {"roc_auc"})]
)
def test_one_class_only(positive: int, undefined: set[str]) -> None:
    """A split without positives would stop the report, warn, or score 0 as if the forecast were bad."""
    data = {**market(), "target": np.full(2000, positive)}
    result = scores(data)
    assert {name for name, value in result.items() if math.isnan(value)} == undefined
    assert why_undefined(data["target"]).startswith(f"There is no {'negative' if positive else 'positive'}")
    intervals = bootstrap_scores(**data, num_draws=3, generator=np.random.default_rng(0))
    assert {name for name, interval in intervals.items() if math.isnan(interval.low)} == undefined
    assert why_undefined(np.array([0, 1])) is None


def test_certain_and_wrong_costs_much_but_not_everything() -> None:
    """One prediction of exactly 0 for a positive row would make the log loss infinite."""
    result = binary_scores(np.array([1, 0]), np.array([0.0, 1.0]), np.zeros(2))
    assert result["log_loss"] == pytest.approx(-math.log(np.finfo(float).eps))


@pytest.mark.parametrize(
    ("target", "prediction", "sentence"),
    [
        ([0, np.nan], [0.1, 0.2], "target must be 0 or 1 to be scored, but that of row 1 is nan"),
        ([0, 1], [0.1, 1.5], "prediction of row 1 is 1.5, not a probability"),
        ([0, 1], [np.nan, 0.5], "prediction of row 0 is nan, not a probability"),
        ([], [], "no rows to score"),
    ],
)
def test_what_cannot_be_scored_is_refused(target: list[float], prediction: list[float], sentence: str) -> None:
    """A forecast without known targets, or raw logits, would be scored."""
    with pytest.raises(UserError, match=sentence):
        binary_scores(np.array(target), np.array(prediction), np.zeros(len(target)))


def test_a_probability_may_be_rounded_to_just_above_1() -> None:
    """An average of members that are all certain can be the float after 1. It would be refused, or scored as if above 1."""
    target, group = np.array([1.0, 0, 1, 0]), np.zeros(4)
    rounded = binary_scores(target, np.array([np.nextafter(1, 2), -1e-17, 0.7, 0.2]), group)
    assert rounded == binary_scores(target, np.array([1, 0, 0.7, 0.2]), group)


def test_bootstrap_covers_the_truth() -> None:
    """The interval would be too narrow, as if the rows of a product, which are alike, were independent."""
    covered = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        product_rate = generator.beta(0.5, 4.5, 80)  # the truth over all products: 10 % positives
        cluster = np.repeat(np.arange(80), 25)
        target = generator.random(2000) < product_rate[cluster]
        interval = bootstrap_scores(target, np.full(2000, 0.1), np.zeros(2000), cluster, num_draws=100, generator=generator)[
            "accuracy_always_no"
        ]
        covered += interval.low <= 0.9 <= interval.high
    assert covered >= 50  # drawing single rows covers 30 of 60


def test_bootstrap_is_what_drawing_copies_gives() -> None:
    """The bootstrap by weights would give other intervals than one that draws rows."""
    data = market(400)
    fast = bootstrap_scores(**data, num_draws=40, generator=np.random.default_rng(5))
    clusters = np.unique(data["cluster"])
    rows_of = [np.flatnonzero(data["cluster"] == cluster) for cluster in clusters]
    generator = np.random.default_rng(5)
    draws = []
    for _ in range(40):
        rows = np.concatenate([rows_of[drawn] for drawn in generator.integers(len(clusters), size=len(clusters))])
        draws.append(scores({name: column[rows] for name, column in data.items()}))
    for name, interval in fast.items():
        assert interval.value == scores(data)[name]
        expected = np.quantile([draw[name] for draw in draws], [0.025, 0.975])
        if name == "calibration_error":  # the interval is shifted, since the error is larger in drawn rows
            expected += interval.value - np.median([draw[name] for draw in draws])
            expected[0] = max(expected[0], 0)
        np.testing.assert_allclose([interval.low, interval.high], expected, rtol=1e-9, atol=1e-12)


def test_difference_is_paired() -> None:
    """A small but certain gain would be hidden by the variation that both forecasts share."""
    data = market()
    prediction = data.pop("prediction")
    first, second = prediction, np.clip(prediction * 1.3, 0, 1)
    draws, others, again = (
        bootstrap_draws(**data, prediction=each, generator=np.random.default_rng(0)) for each in (first, second, first)
    )
    gain = score_intervals("binary", draws.minus(others), is_difference=True)
    alone = score_intervals("binary", draws)
    assert gain["log_loss"].value == pytest.approx(
        scores({**data, "prediction": first})["log_loss"] - scores({**data, "prediction": second})["log_loss"]
    )
    assert gain["log_loss"].high - gain["log_loss"].low < (alone["log_loss"].high - alone["log_loss"].low) / 3
    same = score_intervals("binary", draws.minus(again), is_difference=True)
    assert set(itertools.chain(*same.values())) == {0.0}


def test_one_cluster_has_no_interval() -> None:
    """A single product would be reported with an interval of width zero, as if everything were known."""
    data = {**market(), "cluster": np.zeros(2000)}
    interval = bootstrap_scores(**data, generator=np.random.default_rng(0))["log_loss"]
    assert interval.value == scores(data)["log_loss"]
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_one_cluster_with_all_positives_has_no_interval() -> None:
    """Every draw with a score has this cluster, so an interval would be far too narrow: with one positive row, 13 % of the
    intervals of 95 % contained the true ROC-AUC."""
    generator = np.random.default_rng(0)
    target = np.append(np.ones(2), np.zeros(98))
    for cluster, is_known in ((np.arange(100), True), (np.arange(100) // 2, False)):
        draws = bootstrap_draws(target, generator.random(100), np.zeros(100), cluster, generator=generator)
        for intervals in (score_intervals("binary", draws), score_intervals("binary", draws.minus(draws), True)):
            for name in ("average_precision", "roc_auc", "lift_at_5pct"):
                assert np.isfinite(intervals[name]).tolist() == [True, is_known, is_known]
            assert np.isfinite(intervals["log_loss"]).all()


def test_reliability_keeps_every_row() -> None:
    """The curve would lose rows, or show a forecast that is calibrated as one that is not."""
    data = market(40_000)
    curve = reliability(data["target"], data["prediction"], num_bins=10)
    assert curve.num_rows.sum() == 40_000
    assert (np.diff(curve.prediction) > 0).all()
    assert curve.observed @ curve.num_rows == pytest.approx(data["target"].sum())
    np.testing.assert_allclose(curve.observed, curve.prediction, atol=0.02)
    constant = reliability(data["target"], np.full(40_000, 0.05))
    assert (len(constant.prediction), constant.observed[0]) == (1, data["target"].mean())


def test_precision_recall_lies_on_the_curve() -> None:
    """The curve of fewer points would differ from the true one, or stop before its ends."""
    from sklearn.metrics import precision_recall_curve

    data = market(20_000)
    data["prediction"] = np.random.default_rng(0).beta(0.3, 5, 20_000)
    curve = precision_recall(data["target"], data["prediction"])
    precision, recall, threshold = precision_recall_curve(data["target"], data["prediction"])
    at = np.searchsorted(threshold, curve.threshold)
    np.testing.assert_allclose(threshold[at], curve.threshold)
    np.testing.assert_allclose(curve.precision, precision[at])
    np.testing.assert_allclose(curve.recall, recall[at])
    assert 150 < len(curve.recall) <= 200
    assert curve.recall[-1] == 1
    assert curve.threshold[-1] == data["prediction"].min()
    assert np.diff(curve.recall).max() < 0.02
    assert precision_recall(np.zeros(3), np.zeros(3)).recall.size == 0


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A training would end with a traceback, after some steps, for a user without a home folder."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cache of Hugging Face cannot be written .*: set HF_HOME, or TMPDIR if"):
        binary_metric(cache_dir=str(tmp_path / "file/cache"))


def test_metric_of_evaluate_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compute node without a network could not score; or batches would be averaged instead of gathered."""

    def no_network(*arguments: object) -> None:
        raise AssertionError(f"the metric asked for the network: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    data = market(300)
    metric = binary_metric(cache_dir=str(tmp_path))
    for rows in np.array_split(np.arange(300), 4):
        metric.add_batch(predictions=data["prediction"][rows], references=data["target"][rows], group=data["group"][rows])
    assert metric.compute() == scores(data)


def test_average_precision_alone_is_that_of_all_scores() -> None:
    """XGBoost would stop early by another number than the one that is reported."""
    rng = np.random.default_rng(3)
    target, prediction = (rng.random(500) < 0.1).astype(float), rng.integers(0, 40, 500) / 40
    alone = metrics.average_precision(target, prediction)
    assert alone == pytest.approx(metrics.binary_scores(target, prediction, np.zeros(500))["average_precision"], rel=1e-12)


@pytest.mark.parametrize("name", ["average_precision", "roc_auc"])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.float32])
def test_scores_of_any_type_are_ordered_by_their_values(name: str, dtype: type) -> None:
    """The negative of an unsigned integer would be another order: points from 0 to 100 would be scored as if 0 were best."""
    rng = np.random.default_rng(3)
    target, points = (rng.random(500) < 0.3).astype(float), rng.integers(0, 2 if dtype is bool else 101, 500).astype(dtype)
    function, group = METRIC_FUNCTIONS[name].function, np.zeros(500)
    assert function(target, points, group) == function(target, points.astype(float), group)


def test_accuracy_is_that_of_the_table_of_scores() -> None:
    """The leaderboard would have another accuracy than the report, or count 0.5 as another outcome."""
    target, prediction, weight = np.array([1.0, 1, 0, 0]), np.array([0.5, 0.4, 0.6, 0.1]), np.array([2.0, 1, 1, 4])
    of_leaderboard = METRIC_FUNCTIONS["accuracy"].function(target, prediction, np.zeros(4), weight)
    assert of_leaderboard == binary_scores(target, prediction, np.zeros(4), weight)["accuracy"] == 6 / 8
    assert METRIC_FUNCTIONS["accuracy"].function(target, prediction, np.zeros(4)) == 0.5


@pytest.mark.parametrize("size", [10, 39])
def test_a_group_that_is_drawn_twice_is_two_groups(size: int) -> None:
    """Of two draws of a small group only one would count, so the interval of precision in the top would be too narrow."""
    generator = np.random.default_rng(0)
    group, target = np.repeat(np.arange(20), size), generator.random(20 * size) < 0.3
    prediction = 0.9 * generator.random(20 * size) + 0.1 * target
    drawn = bootstrap_draws(target, prediction, group, group, num_draws=50, generator=np.random.default_rng(1)).drawn
    again, expected = np.random.default_rng(1), []
    for _ in range(50):
        parts = again.integers(20, size=20)
        rows = np.concatenate([np.flatnonzero(group == part) for part in parts])
        scores = binary_scores(target[rows], prediction[rows], np.repeat(np.arange(20), size))
        expected.append([scores["precision_at_5pct"], scores["lift_at_5pct"]])
    places = [list(METRICS["binary"]).index(name) for name in ("precision_at_5pct", "lift_at_5pct")]
    np.testing.assert_allclose(drawn[:, places], expected)
