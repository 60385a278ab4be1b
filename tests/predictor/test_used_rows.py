"""The sentences on how rows were used."""

from typing import Any

import pytest

from ensemble.data.cross_validation import CrossValidation
from ensemble.predictor import used_rows

SCORES = {"kind": "regression", "split": "oof", "fitted_on": "oof", "rows": 700, "out_of_fold_rows": 750}


def manifest(cv: CrossValidation | None, **config: Any) -> dict[str, Any]:
    entry = {} if cv is None else {"cross_validation": cv.to_dict()}
    return {"splits": {"train": {"rows": 1000, "from": "2024-01-01"}}, "config": config, **entry}


def test_data_with_a_validation_split_have_none() -> None:
    """The page of hot sellers would have another part."""
    assert used_rows.sentences(manifest(None), SCORES) == {}


@pytest.mark.parametrize(
    ("cv", "config", "parts"),
    [
        (
            CrossValidation(scheme="random", num_folds=8),
            {},
            ["8 random folds, stratified", "fitted on 6 folds", "on other"],
        ),
        (
            CrossValidation(scheme="random", num_folds=5, stop_share=0.2),
            {},
            ["fitted on 3 folds and 80 % of one more, whose other rows decide when", "predicts the last one"],
        ),
        (CrossValidation(scheme="groups", num_folds=3), {"group": "shop"}, ["all rows of one shop in one fold", "1 fold,"]),
        (
            CrossValidation(scheme="forward", num_folds=4, embargo=7, begins=(0.0,)),
            {"time": "day"},
            [
                "4 blocks forward in time, by day",
                "embargo of 7 days",
                "The other 250 rows, before the first",
                "on earlier rows",
                "since the first weights are fitted on them or their weight is 0",
            ],
        ),
        (
            CrossValidation(scheme="forward", num_folds=1, begins=(0.0,)),
            {"time": "year"},
            [
                "1 block forward in time, by year. Each member has 1 copy.",
                "fitted on rows that are not later.",
                "since the first weights are fitted on them or their weight is 0",
            ],
        ),
        (
            CrossValidation(scheme="holdout", num_folds=1),
            {},
            ["one copy of each member", "The other 250 rows have none", "Predicted by the copy of each member, or, if"],
        ),
    ],
)
def test_each_scheme_is_described(cv: CrossValidation, config: dict[str, Any], parts: list[str]) -> None:
    """The page would state another division than that of the data, or leave out rows that are not predicted or scored."""
    words = " ".join(used_rows.sentences(manifest(cv, **config), SCORES).values())
    for part in [
        *parts,
        "1,000 rows",
        "trained again, also on the rows by which it was stopped",
        "750 rows",
        "700 rows",
        "50 rows are not scored",
    ]:
        assert part in words, part
    assert "blend" not in words
    assert "validation" not in words


def test_a_test_split_is_scored_where_there_is_one() -> None:
    """The score would be called out-of-fold though it is of rows that were set aside."""
    scores = {**SCORES, "split": "test", "rows": 200}
    result = used_rows.sentences(manifest(CrossValidation(scheme="random", num_folds=8)), scores)
    assert "200 rows of the test split, set aside at random" in result["scores"]
    assert used_rows.place(scores) == "the test split"
    assert used_rows.place(SCORES) == "out-of-fold predictions"


def test_an_embargo_of_a_number_has_no_unit() -> None:
    """The page would call the distance of numbers, such as years, days."""
    years = manifest(CrossValidation(scheme="forward", num_folds=4, embargo=5, begins=(0.0,)), time="year")
    years["splits"]["train"]["from"] = "1990"
    assert "embargo of 5." in " ".join(used_rows.sentences(years, SCORES).values())


@pytest.mark.parametrize(
    ("kind", "groups", "expected"),
    [("regression", 12, "slices of time"), ("regression", 700, "groups"), ("ranking", 12, "groups")],
)
def test_slices_of_time_are_not_called_groups(kind: str, groups: int, expected: str) -> None:
    """If each scored row is of another group, slices of time are drawn, and the page would call them groups. In a ranking
    groups are drawn, and the page would call them slices of time."""
    cv = CrossValidation(scheme="forward", num_folds=4, begins=(0.0,))
    of_table = {**manifest(cv, time="day", group="shop"), "recipe": "table"}
    assert used_rows.drawn(of_table, {**SCORES, "kind": kind, "clusters": 12, "groups": groups}) == expected
