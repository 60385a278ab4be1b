"""Diversity of an ensemble: what each member adds, scores by part, and their drift over time."""

import json

import numpy as np
import pytest
from blends import NAMES, WEEKS, expit, loss, market

from ensemble.combine import diversity, fit


def test_diversity_names_the_member_to_drop() -> None:
    """A user would drop the member that the ensemble needs most, or keep one that adds nothing."""
    target, predictions, group = market(4000)
    echo = expit(np.log(predictions[:, 0] / (1 - predictions[:, 0])) + np.random.default_rng(1).normal(0, 0.05, 4000))
    names = [*NAMES, "echo"]
    members = np.column_stack([predictions, echo])
    ensemble = fit(target, members, group, names, combiner="greedy")
    cluster = np.arange(4000) % 97
    result = diversity.measure(ensemble, target, members, group, cluster, np.random.default_rng(0))
    assert json.loads(json.dumps(result)) == result
    correlation = result["error_correlation"]
    assert correlation["trees"]["echo"] > 0.99
    assert abs(correlation["trees"]["net"]) < 0.3
    assert all(correlation[name][name] == pytest.approx(1) for name in names)
    without = {name: of["log_loss"] for name, of in result["without"].items()}
    assert without["net"] > 0.01
    assert abs(without["echo"]) < 0.002
    for name, weight in zip(names, ensemble.weights, strict=True):
        drawn = result["weights"][name]
        assert 0 <= drawn["low"] <= drawn["high"] <= 1
        assert drawn["low"] - 0.1 <= weight <= drawn["high"] + 0.1
    assert result["weights_of"] == "greedy"
    again = diversity.measure(ensemble, target, members, group, cluster, np.random.default_rng(0))
    assert again == result


def test_one_of_three_equal_members_adds_nothing() -> None:
    """The report would show a change of 1.776e-15 for such a member, since a sum of other terms is rounded differently."""
    generator = np.random.default_rng(0)
    target = generator.normal(100, 20, 600)
    members = np.repeat(target[:, None] + generator.normal(0, 1, (600, 1)), 3, axis=1)
    group, cluster = np.repeat(np.arange(6), 100), np.arange(600)
    ensemble = fit(target, members, group, ["first", "second", "third"], combiner="equal", kind="regression")
    without = diversity.measure(ensemble, target, members, group, cluster, generator)["without"]
    assert len(without) == 3
    assert all(set(changes.values()) == {0.0} for changes in without.values())


def test_one_member_has_nothing_beside_it() -> None:
    """An ensemble of one member would end in an error when its only member is left out."""
    target, predictions, group = market()
    ensemble = fit(target, predictions[:, :1], group, ["trees"])
    result = diversity.measure(ensemble, target, predictions[:, :1], group, group, np.random.default_rng(0))
    assert result["without"] == {}
    assert result["weights"] == {"trees": {"mean": 1.0, "low": 1.0, "high": 1.0}}


def test_a_constant_member_has_no_error_correlation() -> None:
    """Two members that predict base rates would have a correlation of 1: that of the rounding errors of their means."""
    target, predictions, group = market(600)
    members = np.column_stack([predictions[:, 0], np.full(600, 0.1), np.full(600, 0.3)])
    ensemble = fit(target, members, group, NAMES, combiner="greedy")
    result = diversity.measure(ensemble, target, members, group, group, np.random.default_rng(0), num_draws=2)
    correlation = result["error_correlation"]
    assert correlation["trees"] == {"trees": pytest.approx(1), "net": None, "text": None}
    assert set(correlation["net"].values()) == {None}


def test_constant_errors_of_a_regression_have_no_correlation() -> None:
    """Members of a constant target would have a correlation of 1 or -1: that of the rounding errors of their means."""
    target, group, generator = np.full(60, 0.3), np.repeat(np.arange(6), 10), np.random.default_rng(0)
    members = np.column_stack([np.full(60, 0.1), np.full(60, 0.7), target + generator.normal(size=60)])
    ensemble = fit(target, members, group, NAMES, kind="regression")
    for weight in (None, np.ones(60)):
        correlation = diversity.measure(ensemble, target, members, group, group, generator, weight, num_draws=2)
        assert [list(by_name.values()) for by_name in correlation["error_correlation"].values()] == [
            [None, None, None],
            [None, None, None],
            [None, None, pytest.approx(1)],
        ]


def test_what_is_not_defined_is_left_out() -> None:
    """JSON has no NaN, and a blend whose positives are all in its first weeks has no average precision of later weeks."""
    target, predictions, group = market(600)
    target[group > 1] = 0
    ensemble = fit(target, predictions, group, NAMES)
    assert set(ensemble.cross_fitted["auto"]) == {"log_loss"}
    result = diversity.measure(ensemble, target, predictions, group, group, np.random.default_rng(0), num_draws=2)
    json.dumps([ensemble.to_dict(), result], allow_nan=False)


def test_scores_by_part_and_their_drift() -> None:
    """A week would get the score of another one, a part without positives would be NaN, or a drift would be missed."""
    target, predictions, group = market(12_000)
    fading = np.where(np.random.default_rng(0).random(12_000) < group / WEEKS, 0.2, predictions[:, 0])
    forecasts = {"steady": predictions[:, 0], "fading": fading}
    target[group == 5] = 0
    weeks = diversity.scores_by_part("binary", target, forecasts, group, group, [str(number) for number in range(WEEKS)])
    assert weeks["5"]["average_precision"] == {"steady": None, "fading": None}
    here = group == 3
    assert weeks["3"]["log_loss"]["steady"] == pytest.approx(loss(target[here], predictions[here, 0]))
    assert (weeks["3"]["rows"], weeks["3"]["positives"]) == (here.sum(), target[here].sum())
    slopes = diversity.drift(weeks, "average_precision")
    assert slopes["fading"]["slope"] < -2 * slopes["fading"]["standard_error"]
    assert abs(slopes["steady"]["slope"]) < 2 * slopes["steady"]["standard_error"]
    with_gap = {"0": 0.1, "1": 0.2, "4": 0.5}
    line = diversity.drift({week: {"log_loss": {"steady": value}} for week, value in with_gap.items()}, "log_loss")
    assert line["steady"]["slope"] == pytest.approx(0.1)
    two = dict(list(weeks.items())[:2])
    assert diversity.drift(two, "log_loss")["steady"] == {"slope": None, "standard_error": None}
