"""The folds of cross-validation: which rows fit a copy of a member, stop it, and are predicted by it."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ensemble.data.cross_validation import CrossValidation, Fold


def parts(cv: CrossValidation, fold: np.ndarray, time: np.ndarray | None, cluster: np.ndarray) -> list[Fold]:
    return [cv.fold(number, fold, time, cluster) for number in range(cv.num_folds)]


def is_rising(rows: np.ndarray) -> bool:
    return bool((np.diff(rows) > 0).all())


@given(st.integers(3, 8), st.lists(st.integers(0, 7), min_size=1, max_size=60))
def test_random_folds_part_the_rows(num_folds: int, folds: list[int]) -> None:
    """A row would be predicted by a copy that learned it, or stop the copy that is scored on it."""
    fold = np.array(folds) % num_folds
    cv = CrossValidation(scheme="random", num_folds=num_folds)
    folds = parts(cv, fold, None, np.arange(len(fold)))
    for fold_rows in folds:
        assert np.array_equal(np.sort(np.concatenate([fold_rows.fit, fold_rows.stop, fold_rows.held])), np.arange(len(fold)))
        assert all(map(is_rising, (fold_rows.fit, fold_rows.stop, fold_rows.held)))
    for name in ("held", "stop"):  # each row is predicted once, and stops one copy
        assert np.array_equal(
            np.sort(np.concatenate([getattr(fold_rows, name) for fold_rows in folds])), np.arange(len(fold))
        )


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), min_size=1, max_size=60),
    st.floats(0, 40),
)
def test_forward_folds_never_learn_from_the_future(num_folds: int, rows: list[tuple[float, int]], embargo: float) -> None:
    """A copy would know a target that nobody knew yet, or a group that it is scored on."""
    time, cluster = np.array([moment for moment, _ in rows]), np.array([each for _, each in rows])
    begins = tuple(np.linspace(40, 100, num_folds + 2)[:-1])
    fold = np.searchsorted(begins, time, side="right") - 2
    cv = CrossValidation(scheme="forward", num_folds=num_folds, embargo=embargo, begins=begins)
    for number, fold_rows in enumerate(parts(cv, fold, time, cluster)):
        assert np.array_equal(fold_rows.held, np.flatnonzero(fold == number))
        stop_begins, held_begins = begins[number : number + 2]
        assert (time[fold_rows.stop] >= stop_begins).all()
        assert (time[fold_rows.stop] + embargo < held_begins).all()
        assert (time[fold_rows.fit] + embargo < stop_begins).all()
        for first, second in (
            (fold_rows.fit, fold_rows.stop),
            (fold_rows.fit, fold_rows.held),
            (fold_rows.stop, fold_rows.held),
        ):
            assert not set(cluster[first]) & set(cluster[second])
        left_out = np.setdiff1d(np.flatnonzero(fold < number), np.concatenate([fold_rows.fit, fold_rows.stop]))
        of_others = {*cluster[fold_rows.stop], *cluster[fold_rows.held]}
        for row in left_out:  # nothing is left out without need
            begins_after = held_begins if fold[row] == number - 1 else stop_begins
            assert cluster[row] in of_others or time[row] + embargo >= begins_after


def test_a_row_at_the_embargo_is_left_out() -> None:
    """A target that is known at the moment when the next part begins would be learned."""
    time = np.array([0.0, 5.0, 5.5, 10.0, 15.0, 15.5, 20.0])
    fold = np.array([-2, -2, -2, -1, -1, -1, 0])
    cv = CrossValidation(scheme="forward", num_folds=1, embargo=5.0, begins=(10.0, 20.0))
    fold_rows = cv.fold(0, fold, time, np.arange(7))
    assert (fold_rows.fit.tolist(), fold_rows.stop.tolist(), fold_rows.held.tolist()) == ([0], [3], [6])


def test_a_holdout_has_one_copy() -> None:
    """The rows that stop the one copy would be learned too, or be scored."""
    fold = np.array([-1, 0, 1, -1, 1, 0])
    fold_rows = CrossValidation(scheme="holdout", num_folds=1).fold(0, fold, None, np.arange(6))
    assert (fold_rows.fit.tolist(), fold_rows.stop.tolist(), fold_rows.held.tolist()) == ([0, 3], [2, 4], [1, 5])


def test_the_manifest_keeps_the_scheme() -> None:
    """A member that is trained tomorrow would have other folds than one that was trained today."""
    cv = CrossValidation(scheme="forward", num_folds=3, embargo=1.5, begins=(0.1, 1 / 3, 1e300, 2e300))
    assert CrossValidation.from_manifest({"cross_validation": json.loads(json.dumps(cv.to_dict()))}) == cv
    assert CrossValidation.from_manifest({"splits": {}}) is None
