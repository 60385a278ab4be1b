"""Whether the target of a table in time has a lasting trend, so that the time itself should be a feature.

The rows of a forecast are later than all training rows, so models extrapolate if the time is a feature. It becomes one only
if it helps in the training rows: a linear model with the time must predict later folds clearly better than one without it.
"""

import numpy as np

LEAST_GAIN, LEAST_SHARE = 0.05, 0.75
"""The time is a feature if it reduces the squared error of all predicted rows by at least `LEAST_GAIN`, and reduces the
squared error in at least `LEAST_SHARE` of the folds."""
PENALTY = 1e-3
"""λ of the ridge regression, whose columns have a variance of 1."""
MOST_VALUES = 31
"""Numbers with at most as many different values, such as a month or the code of a category, become one-hot columns if they
have two rows or more per value on average."""
MOST_COLUMNS, MOST_ROWS = 300, 50_000
"""With more inputs of the linear model, the time does not become a feature. With more rows, a random sample is used."""


def has_trend(
    features: np.ndarray,
    time: np.ndarray,
    target: np.ndarray,
    fold: np.ndarray,
    embargo: float,
    seed: int,
    weight: np.ndarray | None = None,
) -> bool:
    """Whether the time should be a feature.

    features : (num_rows, num_features) float32 of the train rows, NaN for missing values.
    time, target : (num_rows,) float64.
    fold : (num_rows,) the fold of each row, rising in time; negative for the first rows, which are not predicted.
    embargo : time until a target is known.
    weight : (num_rows,) above 0, how many times each row counts; None for 1 each.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(len(time))[:MOST_ROWS])
    columns, time, target, fold = _columns(features[rows]), time[rows], target[rows], fold[rows]
    weight = np.ones(len(rows)) if weight is None else weight[rows].astype(np.float64)
    if columns is None:
        return False
    errors = []
    for number in range(fold.max() + 1):
        held = fold == number
        fit = (fold < number) & (time + embargo < time[held].min(initial=np.inf))
        if fit.sum() > columns.shape[1] + 2 and held.any():
            with_time = np.column_stack([columns, time])
            errors.append([_squared_error(inputs, target, weight, fit, held) for inputs in (columns, with_time)])
    if not errors:
        return False
    without, with_time_too = np.array(errors).T
    is_better = np.mean(with_time_too < without) >= LEAST_SHARE
    return bool(is_better and with_time_too.sum() < (1 - LEAST_GAIN) * without.sum())


def _columns(features: np.ndarray) -> np.ndarray | None:
    """Inputs of the linear model, (num_rows, num_inputs) float64: one-hot or centred, 0 if missing; None if too many."""
    columns, num_columns = [np.zeros((len(features), 0))], 0
    for values in features.T:
        known = values[~np.isnan(values)]
        different = np.unique(known)
        is_one_hot = len(different) <= min(MOST_VALUES, len(known) / 2)
        num_columns += len(different) if is_one_hot else 1
        if num_columns > MOST_COLUMNS:
            return None
        number = values.astype(np.float64)
        columns.append(values[:, None] == different if is_one_hot else np.nan_to_num(number - np.nanmean(number))[:, None])
    return np.concatenate(columns, axis=1)


def _squared_error(columns: np.ndarray, target: np.ndarray, weight: np.ndarray, fit: np.ndarray, held: np.ndarray) -> float:
    """The weighted sum of squared errors on the rows `held` of a weighted ridge regression on the rows `fit`."""
    share = weight[fit] / weight[fit].sum()
    mean, mean_target = share @ columns[fit], share @ target[fit]
    scale = np.sqrt(share @ (columns[fit] - mean) ** 2)
    is_constant = columns[fit].min(axis=0) == columns[fit].max(axis=0)  # such a column is left out
    inputs = (columns - mean) / np.where(is_constant, np.inf, scale)
    weighted = share[:, None] * inputs[fit]
    products = inputs[fit].T @ weighted + PENALTY * np.eye(inputs.shape[1])
    coefficients = np.linalg.solve(products, weighted.T @ (target[fit] - mean_target))
    return float(weight[held] @ (target[held] - mean_target - inputs[held] @ coefficients) ** 2)
