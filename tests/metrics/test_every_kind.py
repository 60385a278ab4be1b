"""The scores of every kind of task: equal to those of scikit-learn, for rows in any order, and with correct intervals."""

import itertools
import math

import numpy as np
import pytest
from blends import KINDS, blend_of
from intervals import bootstrap_scores

from ensemble import metrics
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS, METRICS, task_scores
from ensemble.metrics.ranking import Ndcg, RankingScorer

NUM_ROWS = 1000
every_kind = pytest.mark.parametrize("kind", KINDS)
whole_weights = np.random.default_rng(1).integers(0, 4, NUM_ROWS)


def rows_of(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Targets, one member's forecast with many ties, groups and clusters."""
    target, predictions, group = blend_of(kind, NUM_ROWS, seed)
    prediction = predictions[:, 0]
    if kind == "multiclass":
        prediction = np.ceil(prediction * 20)
        prediction /= prediction.sum(1, keepdims=True)
    else:
        prediction = prediction.round(2 if kind == "binary" else 0)
    cluster = group if kind == "ranking" else np.arange(NUM_ROWS) % 97
    return {"target": target, "prediction": prediction, "group": group, "cluster": cluster}


def scores(kind: str, rows: dict[str, np.ndarray], weight: np.ndarray | None = None) -> dict[str, float]:
    return task_scores(kind, rows["target"], rows["prediction"], rows["group"], weight)


@pytest.mark.parametrize("weight", [None, whole_weights / 3], ids=["plain", "weighted"])
def test_scores_of_classes_are_those_of_scikit_learn(weight: np.ndarray | None) -> None:
    """A score would differ from what its name means elsewhere."""
    from sklearn import metrics as known

    target, predictions, group = blend_of("multiclass", NUM_ROWS)
    target[target == 3] = 1  # so that no row has class 3
    prediction = predictions[:, 0]
    ours, chosen = task_scores("multiclass", target, prediction, group, weight), prediction.argmax(1)
    rows = {"y_true": target, "sample_weight": weight}
    assert ours["multiclass_log_loss"] == pytest.approx(known.log_loss(y_proba=prediction, labels=range(4), **rows))
    assert ours["accuracy"] == pytest.approx(known.accuracy_score(y_pred=chosen, **rows))
    assert ours["macro_f1"] == pytest.approx(known.f1_score(y_pred=chosen, average="macro", zero_division=0, **rows))
    recalls = known.recall_score(y_pred=chosen, average=None, labels=range(3), **rows)
    assert ours["balanced_accuracy"] == pytest.approx(recalls.mean())
    one_hot = np.eye(4)[target.astype(int)]
    brier = ((prediction - one_hot) ** 2).sum(1)
    assert ours["brier"] == pytest.approx(np.average(brier, weights=weight))


@pytest.mark.parametrize("weight", [None, whole_weights / 3], ids=["plain", "weighted"])
def test_scores_of_numbers_are_those_of_scikit_learn(weight: np.ndarray | None) -> None:
    """An error would be in another unit, or R² would be inaccurate for targets far from 0."""
    from sklearn import metrics as known

    target, predictions, group = blend_of("regression", NUM_ROWS)
    far, prediction = target + 1e6, predictions[:, 1] + 1e6
    ours = task_scores("regression", far, prediction, group, weight)
    arguments = (far, prediction)
    assert ours["root_mean_squared_error"] == pytest.approx(known.root_mean_squared_error(*arguments, sample_weight=weight))
    assert ours["mean_absolute_error"] == pytest.approx(known.mean_absolute_error(*arguments, sample_weight=weight))
    assert ours["r_squared"] == pytest.approx(known.r2_score(*arguments, sample_weight=weight))
    assert ours["mean_error"] == pytest.approx(np.average(prediction - far, weights=weight))


@pytest.mark.parametrize("sizes", [(20,), (1, 2, 3, 9, 10, 11, 40)], ids=["alike", "unlike"])
def test_ndcg_is_that_of_scikit_learn(sizes: tuple[int, ...]) -> None:
    """Ties would be broken by the order of the rows, or the last rows of some groups would be left out."""
    from sklearn.metrics import ndcg_score

    generator = np.random.default_rng(0)
    group = np.repeat(np.arange(len(sizes) * 8), sizes * 8)
    target = generator.integers(0, 4, len(group)) * (generator.random(len(group)) < 0.4)
    prediction = generator.integers(0, 6, len(group)) / 6
    shuffle = generator.permutation(len(group))
    for values in (prediction, generator.normal(size=len(group))):
        ours = task_scores("ranking", target[shuffle], values[shuffle], group[shuffle])
        for places in (5, 10):
            known = [
                ndcg_score([2.0 ** target[here] - 1], [values[here]], k=places) if here.sum() > 1 else 1.0
                for here in (group == number for number in np.unique(group))
                if target[here].any()
            ]
            assert ours[f"ndcg_at_{places}"] == pytest.approx(np.mean(known), rel=1e-12)
        fast = METRIC_FUNCTIONS["ndcg_at_10"].function(target[shuffle], values[shuffle], group[shuffle])
        assert fast == pytest.approx(ours["ndcg_at_10"], rel=1e-12)
        assert Ndcg(target, group)(values) == pytest.approx(fast, rel=1e-12)


def test_ranks_of_relevant_rows_by_hand() -> None:
    """The place of the first relevant row, or the recall, would be that of another order, or wrong with ties."""
    # Group 0 has relevant rows at places 2 and 12. In group 1 four rows tie, of which one is relevant. Group 2 has no
    # relevant row, and is left out.
    target = np.r_[0, 1, np.zeros(9), 2, 0, 1, 0, 0, np.zeros(3)]
    prediction = np.r_[np.linspace(12, 1, 12), 5, 5, 5, 5, 3, 2, 1]
    group = np.r_[np.zeros(12), np.ones(4), np.full(3, 2)]
    result = task_scores("ranking", target, prediction, group)
    assert result["mean_reciprocal_rank"] == pytest.approx((1 / 2 + 1 / 2.5) / 2)
    assert result["recall_at_10"] == pytest.approx((1 / 2 + 1) / 2)
    # 12 rows tie, and 3 are relevant: the first relevant one is at place 13 / 4 on average, and 10 of 12 rows are counted
    tied = task_scores("ranking", np.r_[np.ones(3), np.zeros(9)], np.zeros(12), np.zeros(12))
    places = [min(chosen) + 1 for chosen in itertools.combinations(range(12), 3)]
    assert tied["mean_reciprocal_rank"] == pytest.approx(1 / np.mean(places))
    assert tied["recall_at_10"] == pytest.approx(10 / 12)


@every_kind
def test_a_weight_is_a_number_of_copies(kind: str) -> None:
    """The bootstrap, which draws weights instead of rows, would estimate another spread than that of the scores."""
    rows = rows_of(kind)
    weight = whole_weights
    if kind == "ranking":
        weight = np.where(rows["group"] % 2, 1 + np.arange(NUM_ROWS) % 3, weight)  # never one weight in a whole group
    copies = {name: np.repeat(column, weight, axis=0) for name, column in rows.items()}
    assert scores(kind, rows, weight) == pytest.approx(scores(kind, copies))


def test_a_group_drawn_twice_is_two_groups() -> None:
    """A user who is drawn twice would become one user with all items twice, and the first 10 places would hold 5 items."""
    rows = rows_of("ranking")
    times = np.random.default_rng(2).integers(0, 4, rows["group"].max() + 1)
    weight = times[rows["group"]]
    # Each copy of a group has another number
    apart = [{**rows, "group": rows["group"] + time * 1000} for time in range(3)]
    kept = [{name: column[weight > time] for name, column in copy.items()} for time, copy in enumerate(apart)]
    copies = {name: np.concatenate([copy[name] for copy in kept]) for name in rows}
    assert scores("ranking", rows, weight.astype(float)) == pytest.approx(scores("ranking", copies))


@every_kind
def test_row_order_changes_nothing(kind: str) -> None:
    """A score would depend on the order of tied rows."""
    rows = rows_of(kind)
    order = np.random.default_rng(1).permutation(NUM_ROWS)
    shuffled = {name: column[order] for name, column in rows.items()}
    assert scores(kind, rows) == pytest.approx(scores(kind, shuffled), rel=1e-12)
    for metric in METRIC_FUNCTIONS.values():
        if kind in metric.kinds:
            pair = [metric.function(some["target"], some["prediction"], some["group"]) for some in (rows, shuffled)]
            assert pair[0] == pytest.approx(pair[1], rel=1e-12)


@every_kind
def test_one_number_is_that_of_all_scores(kind: str) -> None:
    """Members would stop early by another number than the one that is reported."""
    rows = rows_of(kind)
    result = scores(kind, rows)
    assert list(result) == list(METRICS[kind])
    mine = [name for name, metric in METRIC_FUNCTIONS.items() if kind in metric.kinds]
    assert mine
    for name in mine:
        assert METRIC_FUNCTIONS[name].higher_is_better == METRICS[kind][name].higher_is_better
        value = METRIC_FUNCTIONS[name].function(rows["target"], rows["prediction"], rows["group"])
        assert value == pytest.approx(result[name], rel=1e-12)


@every_kind
def test_bootstrap_is_what_drawing_copies_gives(kind: str) -> None:
    """The bootstrap by weights would give other intervals than one that draws rows."""
    rows = rows_of(kind)
    drawn_scores, again = (
        metrics.bootstrap_draws(**rows, kind=kind, num_draws=10, generator=np.random.default_rng(5)) for _ in range(2)
    )
    fast = metrics.score_intervals(kind, drawn_scores)
    clusters = np.unique(rows["cluster"])
    generator, draws = np.random.default_rng(5), []
    for _ in range(10):
        drawn = [
            np.flatnonzero(rows["cluster"] == clusters[one]) for one in generator.integers(len(clusters), size=len(clusters))
        ]
        copies = {name: column[np.concatenate(drawn)] for name, column in rows.items()}
        if kind == "ranking":  # each copy is another group
            copies["group"] = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        draws.append(scores(kind, copies))
    for name, interval in fast.items():
        assert interval.value == scores(kind, rows)[name]
        expected = np.quantile([draw[name] for draw in draws], [0.025, 0.975])
        if name == "calibration_error":  # the interval is shifted, since the error is larger in drawn rows
            expected += interval.value - np.median([draw[name] for draw in draws])
            expected[0] = max(expected[0], 0)
        np.testing.assert_allclose([interval.low, interval.high], expected, rtol=1e-9, atol=1e-12)
    same = metrics.score_intervals(kind, drawn_scores.minus(again), is_difference=True)
    assert set(itertools.chain(*same.values())) == {0.0}


def test_r_squared_of_draws_with_equal_targets_is_left_out() -> None:
    """The rounding error of their variance would be the divisor, and the interval would end at -1e14."""
    target = np.repeat([0.1, 0.7, 1.3], 5)
    drawn = {"group": np.zeros(15), "cluster": np.repeat([0, 1, 2], 5), "generator": np.random.default_rng(0)}
    interval = bootstrap_scores(target, target + 0.1, **drawn, kind="regression")["r_squared"]
    assert interval.low == pytest.approx(1 - 0.1**2 / 0.08)  # one cluster twice, and its neighbour once
    assert interval.low < interval.value < interval.high


def test_the_interval_of_the_base_rate_contains_its_r_squared() -> None:
    """The page would have 0.000 with an interval from −0.025 to −0.000008, since the mean is the best constant."""
    target = np.random.default_rng(0).normal(size=50)
    drawn = {"group": np.zeros(50), "cluster": np.arange(50), "generator": np.random.default_rng(0)}
    interval = bootstrap_scores(target, np.full(50, target.mean()), **drawn, kind="regression")["r_squared"]
    assert interval.low < interval.value == interval.high == pytest.approx(0)


@pytest.mark.parametrize("is_whole", [True, False])
def test_groups_are_drawn_as_their_rows_are(is_whole: bool) -> None:
    """Groups inside one cluster have one weight each. Groups in several clusters would have only one, too."""
    rows = rows_of("ranking")
    shuffle = np.random.default_rng(1).permutation(NUM_ROWS)
    target, prediction, group = (rows[name][shuffle] for name in ("target", "prediction", "group"))
    cluster = group // 3 if is_whole else np.arange(NUM_ROWS) % 7
    result = bootstrap_scores(
        target, prediction, group, cluster, kind="ranking", num_draws=20, generator=np.random.default_rng(5)
    )
    of_rows = RankingScorer(target, prediction, group).scores
    draws = metrics.draws_of(of_rows, cluster, 20, np.random.default_rng(5))
    assert result == metrics.intervals(METRICS["ranking"], draws)


@pytest.mark.parametrize(
    ("kind", "target", "undefined", "sentence"),
    [
        ("regression", np.full(NUM_ROWS, 1e6 / 3), {"r_squared"}, "All these rows have the same target, so R²"),
        ("ranking", np.zeros(NUM_ROWS), set(METRICS["ranking"]), "There is no relevant row in any group"),
    ],
)
def test_undefined_scores_are_explained(kind: str, target: np.ndarray, undefined: set[str], sentence: str) -> None:
    """A split without information would be scored 0, or stop the report."""
    rows = rows_of(kind) | {"target": target}
    assert {name for name, value in scores(kind, rows).items() if math.isnan(value)} == undefined
    assert str(metrics.why_undefined(target, kind)).startswith(sentence)
    assert metrics.why_undefined(rows_of(kind)["target"], kind) is None
    intervals = bootstrap_scores(**rows, kind=kind, num_draws=3, generator=np.random.default_rng(0))
    assert {name for name, interval in intervals.items() if math.isnan(interval.low)} == undefined
    if kind == "ranking":
        assert math.isnan(METRIC_FUNCTIONS["ndcg_at_10"].function(target, rows["prediction"], rows["group"]))


@pytest.mark.parametrize(
    ("kind", "name", "value", "sentence"),
    [
        ("multiclass", "target", 4.0, "a target must be a class from 0 to 3 to be scored, but that of row 7 is 4"),
        ("multiclass", "prediction", 0.5, "the predictions of row 7 are not probabilities that sum to 1"),
        ("regression", "target", np.nan, "the target of row 7 is nan, not a number"),
        ("regression", "prediction", np.inf, "the prediction of row 7 is inf, not a number"),
        ("ranking", "target", -1.0, "a relevance must be 0 or more to be scored, but that of row 7 is -1"),
        ("ranking", "target", 1024.0, "a relevance must be at most 1000 to be scored, but that of row 7 is 1024"),
        ("ranking", "prediction", np.nan, "the prediction of row 7 is nan, not a finite number"),
    ],
)
def test_what_cannot_be_scored_is_refused(kind: str, name: str, value: float, sentence: str) -> None:
    """A forecast without known targets, raw logits, or a relevance with an infinite gain would be scored."""
    rows = rows_of(kind)
    rows[name][7] = value
    with pytest.raises(UserError, match=sentence):
        scores(kind, rows)
    with pytest.raises(UserError, match="no rows to score"):
        scores(kind, {name: column[:0] for name, column in rows.items()})


def test_classes_that_tie_count_in_part() -> None:
    """The accuracy of equal probabilities would depend on the order of the classes."""
    target, prediction = np.arange(4.0), np.full((4, 4), 0.25)
    result = task_scores("multiclass", target, prediction, np.zeros(4))
    assert result["accuracy"] == result["balanced_accuracy"] == pytest.approx(1 / 4)
    assert METRIC_FUNCTIONS["accuracy"].function(target, prediction, np.zeros(4)) == pytest.approx(1 / 4)
