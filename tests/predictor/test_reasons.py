"""Reasons of the ensemble: contributions of its members, weighted by their influence; those of a row have one sign."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ensemble import combine
from ensemble.data.reasons import strongest_reasons
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import reasons


def ensemble(weights: dict[str, float], slopes: tuple[float, ...] = (1, 1), kind: str = "binary") -> combine.Ensemble:
    combination = {
        "scales": [{"slope": slope, "intercept": 0} for slope in slopes],
        "space": "logit",
        "weights": list(weights.values()),
        "intercept": 0.0,
        "calibration": {"slope": 1, "intercept": 0},
    }
    return combine.Ensemble.from_dict(
        {
            "kind": kind, "member_names": list(weights), "outputs": ["probability"] * len(weights),
            "method": "simplex", "calibrator": "platt",
            "combination": combination, "cross_fitted": {}, "cross_fitted_calibrators": {}, "num_folds": 2,
        }
    )  # fmt: skip


def file(member: str, of_rows: list[dict[str, float]], row_ids: list[int], of_class: int | None = None) -> Predictions:
    """A member's contributions by feature for some rows, to one class where there are several."""
    ids, more = np.array(row_ids), {} if of_class is None else {"class": of_class}
    result = [
        [{"feature": name, "value": 7.0, "contribution": contribution, **more} for name, contribution in row.items()]
        for row in of_rows
    ]
    base = {**dict.fromkeys(("row_id", "target", "prediction", "group", "cluster"), ids), "fingerprint": "f"}
    return Predictions(**base, recipe="r", split="forecast", member=member, reasons=result)


def test_contributions_are_summed_by_influence() -> None:
    """A member with little weight, or a scale with a small slope, would explain the ensemble as much as the others."""
    files = [file("a", [{"x": 1.0, "y": 0.5}], [1]), file("b", [{"y": 2.0, "z": 0.1}], [1])]
    result = reasons.of_ensemble(files, ensemble({"a": 0.75, "b": 0.25}, (1, 2)), np.array([0.5]))
    assert result is not None
    assert [reason["feature"] for reason in result[0]] == ["y", "x", "z"]
    assert [reason["contribution"] for reason in result[0]] == pytest.approx([0.75 * 0.5 + 0.25 * 2 * 2.0, 0.75, 0.05])


def test_scores_on_other_scales_count_by_their_weights() -> None:
    """The member with the largest scores would explain a ranking alone, whatever its weight."""
    generator, contributions = np.random.default_rng(0), np.random.default_rng(1).normal(size=(40, 2))
    files = []
    for number, (name, scale) in enumerate({"a": 30.0, "b": 0.01}.items()):
        rows = [{f"x{number}": scale * value} for value in contributions[:, number]]
        prediction = scale * (contributions[:, number] + np.repeat(generator.normal(size=2), 20))
        columns = {"group": np.repeat([0, 1], 20), "prediction": prediction}
        files.append(dataclasses.replace(file(name, rows, list(range(40))), **columns, output="score"))
    result = reasons.of_ensemble(files, ensemble({"a": 0.5, "b": 0.5}, kind="ranking"), np.zeros(40))
    assert result is not None
    expected = [f"x{number}" for number in np.abs(contributions).argmax(axis=1)]
    shown = [row[0]["feature"] for row in result]
    assert np.mean(np.array(shown) == expected) > 0.9


def test_a_score_counts_by_the_slope_of_its_curve() -> None:
    """In a binary task, scores from 0 to 1,000 would explain the ensemble alone, beside a member with log odds."""
    curve = {"at": [0.0, 1000.0], "value": [-2.0, 3.0]}
    combined = ensemble({"a": 0.5, "b": 0.5})
    content = combined.to_dict()
    content["combination"]["scales"] = [curve, {"slope": 1, "intercept": 0}]
    files = [file("a", [{"x": 100.0}], [1]), file("b", [{"y": 1.0}], [1])]
    result = reasons.of_ensemble(files, combine.Ensemble.from_dict(content), np.array([0.5]))
    assert result is not None
    assert [(reason["feature"], reason["contribution"]) for reason in result[0]] == [("y", 0.5), ("x", pytest.approx(0.25))]


def test_the_calibration_of_the_average_counts() -> None:
    """The contributions of all features would not sum to the change of the ensemble's log odds, which the page names."""
    content = ensemble({"a": 0.5, "b": 0.5}).to_dict()
    content["combination"]["calibration"] = {"slope": 3.0, "intercept": 1.0}
    files = [file("a", [{"x": 1.0}], [1]), file("b", [{"y": 0.5}], [1])]
    result = reasons.of_ensemble(files, combine.Ensemble.from_dict(content), np.array([0.5]))
    assert result is not None
    assert [(reason["feature"], reason["contribution"]) for reason in result[0]] == [("x", 1.5), ("y", 0.75)]


def test_what_lowers_a_prediction_is_its_reason_too() -> None:
    """A row below the average would have no reason, or one against its prediction."""
    rows = [{"x": -1.0, "y": 0.2}, {"x": 1.0, "y": -0.2}]
    result = reasons.of_ensemble([file("a", rows, [5, 3])], ensemble({"a": 1.0}, (1,)), np.array([0.9, 0.1]))
    assert result is not None
    assert [[(reason["feature"], reason["contribution"]) for reason in row] for row in result] == [
        [("x", 1.0)],
        [("x", -1.0)],
    ]


def test_all_features_decide_whether_a_prediction_is_lowered() -> None:
    """A row with 20 features would be lowered by three large contributions, though 17 smaller ones raise it by more."""
    parts = np.append([-3.0, -2.5, -2.0], np.full(17, 0.5))[None, None]
    names = [f"x{number}" for number in range(20)]
    stored = strongest_reasons(names, np.ones((1, 20)), parts, None, np.array([0]), 1)
    assert sum(reason["contribution"] for reason in stored[0]) == parts.sum() == 1.0
    result = reasons.of_ensemble(
        [dataclasses.replace(file("a", [{}], [1]), reasons=stored)], ensemble({"a": 1.0}, (1,)), np.array([0.9])
    )
    assert result is not None
    assert [(reason["feature"], reason["contribution"]) for reason in result[0]] == [
        (f"x{number}", 0.5) for number in (3, 4, 5, 6)
    ]


def test_reasons_are_of_the_class_that_the_ensemble_predicts() -> None:
    """The reasons of a member that predicts another class would be given for the ensemble's."""
    files = [file("a", [{"x": 1.0}], [1], 0), file("b", [{"y": 1.0}], [1], 2)]
    result = reasons.of_ensemble(files, ensemble({"a": 0.5, "b": 0.5}, kind="multiclass"), np.array([[0.2, 0.3, 0.5]]))
    assert result is not None
    assert [reason["feature"] for reason in result[0]] == ["y"]


def test_a_member_without_weight_explains_nothing() -> None:
    """The first member by name would explain an ensemble that it has no part in."""
    files = [file("a", [{"x": 1.0}], [1]), file("b", [{"y": 1.0}], [1])]
    result = reasons.of_ensemble(files, ensemble({"a": 0.0, "b": 1.0}), np.array([0.5]))
    assert result is not None
    assert [reason["feature"] for reason in result[0]] == ["y"]
    assert reasons.of_ensemble(files[:1], ensemble({"a": 0.0, "b": 1.0}), np.array([0.5])) is None


def test_a_minor_member_does_not_explain_a_row_alone() -> None:
    """A member with 15 % of the weight that explains more rows than the others would give the reasons of these rows."""
    files = [file("a", [{"x": 1.0}, {}, {"x": 1.0}], [1, 2, 3]), file("b", [{"y": 1.0}, {"y": 1.0}, {}], [1, 2, 3])]
    result = reasons.of_ensemble(files, ensemble({"a": 0.85, "b": 0.15}), np.zeros(3))
    assert result is not None
    assert [[reason["feature"] for reason in row] for row in result] == [["x", "y"], [], ["x"]]


def test_reasons_from_another_program_may_lack_lists_and_values() -> None:
    """Programs write null for a row without reasons, and as the value of an empty cell. A fit would crash."""
    reason = {"feature": "x", "value": None, "contribution": 1.0}
    given = dataclasses.replace(file("a", [{}, {}], [2, 1]), reasons=[None, [reason]])
    result = reasons.of_ensemble([given], ensemble({"a": 1.0}, (1,)), np.zeros(2))
    assert result is not None
    assert (len(result[0]), result[1]) == (1, [])
    assert np.isnan(result[0][0]["value"])


@pytest.mark.parametrize(
    "reason",
    [
        "x = 7",
        {"name": "x", "shap": 1.0},
        {"feature": "x", "value": 7.0},
        {"feature": "x", "value": "red", "contribution": 1.0},
    ],
)
def test_reasons_that_cannot_be_read_are_named(reason: Any) -> None:
    """A fit would end with an error that does not name the member and the row."""
    given = dataclasses.replace(file("mine", [{}, {}], [3, 5]), reasons=[[], [reason]])
    with pytest.raises(UserError, match=r"member mine: the reason .* of row 5 "):
        reasons.of_ensemble([given], ensemble({"mine": 1.0}, (1,)), np.zeros(2))
