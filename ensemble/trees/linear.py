"""Linear models: ridge and logistic regression, trained on the same data as the tree models.

A linear model has few parameters and extrapolates. On tables with few rows it is often the best member, and elsewhere it can
improve the ensemble. Columns of the model, for each feature:

    a number      its standard score, limited to ±5 (with `wide` to a wider range, if scores of training rows exceed ±5);
                  the mean score if the number is missing
                  the normal score of its rank among the training rows (only in candidates with `ranks`)
    a category    one column for each frequent category
    any feature   an indicator of missing values, if some but not all training rows have them

In a regression, the candidates with `levels` also have a column for each value of a number whose values are repeated often,
such as a month or the date of many rows, which need not act linearly.

Instead of a number of trees, early stopping chooses one of `CANDIDATES`, for a regression one of `CANDIDATES_OF_REGRESSION`:
the one with the least loss, over all copies.
"""

import dataclasses
import functools
import importlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save
from scipy.special import expit, logit, ndtri, softmax
from threadpoolctl import threadpool_limits

from ensemble.errors import UserError
from ensemble.metrics import binary, multiclass
from ensemble.metrics.regression import root_mean_squared_error
from ensemble.trees.boosting import Scores, Training
from ensemble.trees.copies import LOSS_OF, check_learnable, train_separately
from ensemble.trees.objective import Dataset, Objective, dataset_of, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

FILE = "model.safetensors"
PENALTIES = tuple(10.0 ** np.arange(0.5, -8, -1))
"""Values of λ. The objective is the mean log loss, or half the mean squared error, + λ / 2 × the sum of squared weights."""
ColumnSet = Literal["scores", "ranks", "wide", "levels"]
Candidate = tuple[int, ColumnSet, float]
"""The power (see `_ridge`), the columns of the model (see `Design.column_indices`), and λ."""
CANDIDATES: tuple[Candidate, ...] = tuple(itertools.product((0,), ("scores", "ranks"), PENALTIES))
CANDIDATES_OF_REGRESSION: tuple[Candidate, ...] = tuple(
    itertools.chain(
        itertools.product((0, 1, 2), ("scores", "ranks", "wide"), PENALTIES),
        itertools.product((0, 1, 2), ("levels",), PENALTIES),
    )
)
LEAST_CANDIDATES = 5
"""The number of candidates that are fitted even if no time is left: the first one's predictions are almost constant."""
NUM_QUANTILES = 100
MOST_DEVIATIONS = 5.0
"""Standard scores are limited to ± this number, except those of the columns `wide`."""
MOST_CATEGORIES, LEAST_ROWS = 100, 3
"""The categories of a feature that have a column: at most `MOST_CATEGORIES`, each with at least `LEAST_ROWS` rows."""
MANY_CATEGORIES, MOST_CELLS = 1000, 6e6
"""In a regression at most `MANY_CATEGORIES` categories of a feature have a column, and even those of a single row, if all
columns together have at most `MOST_CELLS` cells."""
MOST_LEVELS, ROWS_PER_LEVEL = 400, 10
"""A number has `levels` if it has at most this many different values, at least three, each in this many rows on average, and
if all columns have at most `MOST_CELLS` cells."""
CELLS_AT_ONCE = 1_000_000
"""The number of cells whose quantiles are computed at once, and of those of the columns in a prediction."""
NEWTON_WEIGHTS = 200
"""Newton's method is faster than L-BFGS up to this number of weights."""
MOST_STEPS = 200
PRIOR_ROWS = 0.5
"""For each class a row with mean features is added, so that a class without a row has a probability. Its weight is this
number times the mean weight of a row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """The columns of the model. S features are numbers, M have missing values, C is the number of category columns, W of
    the numbers are also used in a wider range, and L is the number of levels of numbers. Q is `NUM_QUANTILES`, and D the
    number of all columns."""

    number_S: np.ndarray
    """The indices of the numeric features."""
    center_S: np.ndarray
    scale_S: np.ndarray
    missing_M: np.ndarray
    category_C: np.ndarray
    """The index of the feature of each category column."""
    code_C: np.ndarray
    """The code of the category of each category column."""
    quantile_SQ: np.ndarray
    mean_D: np.ndarray
    """The mean of each column over the training rows. D = 2 S + M + C + W + L, in the order of `raw_columns`."""
    wide_W: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """The positions in `number_S` of numbers with standard scores beyond `MOST_DEVIATIONS`."""
    least_W: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    most_W: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    """The range of the scores of these numbers: that of the training rows, extended by its width on both sides."""
    level_L: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """The index of the feature of each level, and the number."""
    value_L: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    @property
    def feature_D(self) -> np.ndarray:
        """The index of the feature of each column."""
        wide = self.number_S[self.wide_W]
        return np.concatenate([self.number_S, self.missing_M, self.category_C, self.number_S, wide, self.level_L])

    def column_indices(self, column_set: ColumnSet) -> slice | np.ndarray:
        """The indices of the columns of a model: scores, missing values and categories; with `ranks` also the ranks of the
        numbers; with `levels` also these; with `wide` the scores of the numbers `wide_W` in the wider range instead."""
        num_scores = len(self.number_S) + len(self.missing_M) + len(self.category_C)
        all_columns, first_level = np.arange(len(self.mean_D)), len(self.mean_D) - len(self.level_L)
        if column_set == "wide":
            kept = np.delete(all_columns[:num_scores], self.wide_W)
            return np.concatenate([kept, all_columns[first_level - len(self.wide_W) : first_level]])
        if column_set == "levels":
            return np.concatenate([all_columns[:num_scores], all_columns[first_level:]])
        return slice(num_scores + (len(self.number_S) if column_set == "ranks" else 0))

    def effective(self, column_set: ColumnSet) -> ColumnSet:
        """The same set, or `scores` if it has the same columns: such candidates are fitted once."""
        others = {"ranks": self.number_S, "wide": self.wide_W, "levels": self.level_L}
        return column_set if len(others.get(column_set, "scores")) else "scores"

    def columns(self, features: np.ndarray) -> np.ndarray:
        """Columns (n, D) minus their means, for features (n, F); 0 for the scores and ranks of missing values."""
        return np.nan_to_num(self.raw_columns(features) - self.mean_D)

    def raw_columns(self, features: np.ndarray) -> np.ndarray:
        """Columns (n, D) before the means are subtracted, with NaN for missing values."""
        features = features.astype(np.float64)
        numbers = features[:, self.number_S]
        normal_scores = ndtri((np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES)
        ranks = [np.interp(*pair, normal_scores) for pair in zip(numbers.T, self.quantile_SQ, strict=True)]
        scores = (numbers - self.center_S) / self.scale_S
        parts = [
            np.clip(scores, -MOST_DEVIATIONS, MOST_DEVIATIONS),
            np.isnan(features[:, self.missing_M]),
            features[:, self.category_C] == self.code_C,
            np.array(ranks).reshape(numbers.T.shape).T,
            np.clip(scores[:, self.wide_W], self.least_W, self.most_W),
            features[:, self.level_L] == self.value_L,
        ]
        return np.concatenate(parts, axis=1)


def fit_design(rows: TreeData, features: np.ndarray, is_regression: bool) -> Design:
    """The columns for training rows with these features, (n, F). A constant number has neither a score nor a rank."""
    most, least_rows = MOST_CATEGORIES, LEAST_ROWS
    num_columns = sum(min(rows.categories.get(name, 2), MANY_CATEGORIES) for name in rows.features)
    if is_regression and num_columns * len(features) <= MOST_CELLS:
        most, least_rows = MANY_CATEGORIES, 1
    numbers, missing, categories, codes = [], [], [], []
    levels: dict[int, np.ndarray] = {}
    for index, name in enumerate(rows.features):
        known = features[:, index].astype(np.float64)
        known = known[~np.isnan(known)]
        if 0 < len(known) < len(features):
            missing.append(index)
        if name in rows.categories:
            values, counts = np.unique(known, return_counts=True)
            order = np.argsort(-counts, kind="stable")[:most]
            frequent = values[order][counts[order] >= least_rows]
            categories += [index] * len(frequent)
            codes += list(frequent)
        elif len(known) and known.min() < known.max():
            numbers.append(index)
            different = np.unique(known) if is_regression else known[:0]
            if 2 < len(different) <= min(MOST_LEVELS, len(known) / ROWS_PER_LEVEL):
                levels[index] = different
    num_columns += sum(map(len, levels.values()))
    if num_columns * len(features) > MOST_CELLS:
        levels = {}
    values = features[:, numbers].astype(np.float64)
    if np.isinf(values).any():
        raise UserError(
            "a feature has infinite values, with which a linear model cannot be trained: correct the prepared data"
        )
    largest_S = np.nanmax(np.abs(values), axis=0, initial=0.0)  # so that no square overflows
    scaled = values / largest_S
    center_S, scale_S = np.nanmean(scaled, axis=0), np.nanstd(scaled, axis=0)
    least_S, most_S = np.nanmin(scaled, axis=0), np.nanmax(scaled, axis=0)
    least_S, most_S = (least_S - center_S) / scale_S, (most_S - center_S) / scale_S
    is_wide = (np.maximum(-least_S, most_S) > MOST_DEVIATIONS) & is_regression
    design = Design(
        number_S=np.array(numbers, np.int64),
        center_S=center_S * largest_S,
        scale_S=scale_S * largest_S,
        missing_M=np.array(missing, np.int64),
        category_C=np.array(categories, np.int64),
        code_C=np.array(codes, np.float64),
        quantile_SQ=_quantiles(features, numbers),
        mean_D=np.empty(0),
        wide_W=np.flatnonzero(is_wide),
        least_W=(2 * least_S - most_S)[is_wide],
        most_W=(2 * most_S - least_S)[is_wide],
        level_L=np.repeat(np.array([*levels], np.int64), [len(values) for values in levels.values()]),
        value_L=np.concatenate([np.empty(0), *levels.values()]),
    )
    return dataclasses.replace(design, mean_D=np.nanmean(design.raw_columns(features), axis=0))


def _quantiles(features: np.ndarray, numbers: list[int]) -> np.ndarray:
    """The quantiles of the known values of some features, (len(numbers), NUM_QUANTILES)."""
    probabilities = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    quantile_SQ = np.empty((len(numbers), NUM_QUANTILES))
    at_once = max(1, CELLS_AT_ONCE // len(features))  # a call for each of thousands of columns would take longer
    for start in range(0, len(numbers), at_once):
        values = features[:, numbers[start : start + at_once]].astype(np.float64)
        quantile_SQ[start : start + at_once] = np.quantile(values, probabilities, axis=0).T
    for position in np.flatnonzero(np.isnan(quantile_SQ[:, 0])):  # features with missing values
        values = features[:, numbers[position]].astype(np.float64)
        quantile_SQ[position] = np.quantile(values[~np.isnan(values)], probabilities)
    return quantile_SQ


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """The fitted candidates of a copy, T in all; `first_rounds` chooses one."""

    kind: str
    """binary, multiclass or regression."""
    features: list[str]
    design: Design
    weights_TKD: np.ndarray
    """K = 1 except with several classes."""
    intercepts_TK: np.ndarray

    def values(self, columns: np.ndarray, number: int = 0) -> np.ndarray:
        """The linear function of a candidate, (n, K): log odds, logits of classes, or values."""
        return columns @ self.weights_TKD[number].T + self.intercepts_TK[number]


# The last bits of the results would depend on the number of BLAS threads
_on_one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@_on_one_thread
def train_copies(
    config: TreesConfig, parts: Sequence[tuple[TreeData, TreeData | None]], training: Training, run: Callable[..., Any]
) -> tuple[list[Linear], list[Scores], int]:
    """Fit the candidates on each of `parts`; `copies.train_separately` describes the arguments.

    Returns the models, the scores of the candidates over all rows for early stopping, and the number of the best candidate,
    from 1. Without rows for early stopping, only candidate `config.num_rounds` is fitted.
    """
    if objective_of(config, parts[0][0]).kind != "regression":
        importlib.import_module("sklearn.linear_model")  # which takes a second, before the time of the candidates begins
    results = train_separately(config, parts, training, from_bytes, train_copy, run)
    models = [model for model, _ in results]
    num_fitted = min(len(losses) for _, losses in results)
    if not num_fitted:
        return models, [], config.num_rounds
    stops = [stop for _, stop in parts if stop]
    weights = [
        float(stop.column(stop.task.weight).sum(dtype=np.float64)) if stop.task.weight else len(stop) for stop in stops
    ]
    mean_losses = np.average([losses[:num_fitted] for _, losses in results], axis=0, weights=weights)
    kind = models[0].kind
    scores = np.sqrt(mean_losses) if kind == "regression" else mean_losses
    best = int(np.argmin(scores)) + 1
    return models, [{LOSS_OF[kind]: float(score)} for score in scores], best


@_on_one_thread
def train_copy(
    config: TreesConfig, number: int, rows: TreeData, stop: TreeData | None, is_over: Callable[[], bool]
) -> tuple[Linear, np.ndarray]:
    """Fit the candidates of copy `number`, and compute their losses on the rows `stop`, (T,).

    The losses of a regression are in the target's squared unit. If `is_over` returns true, fitting ends early, with at least
    `LEAST_CANDIDATES` candidates. Without `stop` only candidate `config.num_rounds` is fitted, and there are no losses.
    """
    objective = objective_of(config, rows)
    check_learnable(config, objective)
    dataset = dataset_of(objective, rows)
    features = dataset.rows.matrix()
    is_regression = objective.kind == "regression"
    design = fit_design(dataset.rows, features, is_regression)
    columns = design.columns(features)
    fit_once = functools.cache(
        _ridge(columns, dataset, design) if is_regression else _logistic(columns, dataset, objective, design)
    )
    candidates = CANDIDATES_OF_REGRESSION if is_regression else CANDIDATES
    fitted: list[tuple[np.ndarray, np.ndarray]] = []
    for power, column_set, penalty in candidates if stop else candidates[config.num_rounds - 1 :][:1]:
        if len(fitted) >= LEAST_CANDIDATES and is_over():
            break
        column_set = design.effective(column_set)
        weight_KE, intercept_K = fit_once(power, column_set, penalty)
        weight_KD = np.zeros((len(weight_KE), columns.shape[1]))
        weight_KD[:, design.column_indices(column_set)] = weight_KE
        fitted.append((weight_KD, intercept_K))
    weights_TKD, intercepts_TK = (np.array(values) for values in zip(*fitted, strict=True))
    model = Linear(
        kind=objective.kind,
        features=list(rows.features),
        design=design,
        weights_TKD=weights_TKD,
        intercepts_TK=intercepts_TK,
    )
    if not stop:
        return model, np.empty(0)
    held_out = dataset_of(objective, stop)
    stop_columns = design.columns(held_out.rows.matrix())
    losses = [_loss(objective, held_out, model.values(stop_columns, number)) for number in range(len(fitted))]
    return model, np.array(losses)


Fit = Callable[[int, ColumnSet, float], tuple[np.ndarray, np.ndarray]]
"""A function from the three parts of a candidate to weights (K, E), for a set of E columns, and intercepts (K,)."""


def _ridge(columns: np.ndarray, dataset: Dataset, design: Design) -> Fit:
    """Ridge regression for any λ from one eigenvalue decomposition for each set of columns and power.

    Each column is multiplied by the absolute value of its correlation with the target, to the power 0, 1 or 2. With a power
    above 0 the penalty is larger for columns with a small correlation, which helps if only some of many columns matter.
    """
    assert dataset.target is not None
    target = dataset.target.astype(np.float64)
    weight = np.ones(len(target)) if dataset.weight is None else dataset.weight.astype(np.float64)
    root_weight = np.sqrt(weight / weight.sum())
    mean, center_D = np.average(target, weights=weight), np.average(columns, axis=0, weights=weight)

    centred, centred_target = root_weight[:, None] * (columns - center_D), root_weight * (target - mean)
    covariance_D = centred.T @ centred_target
    norm_D = np.sqrt((centred**2).sum(axis=0)) * np.linalg.norm(centred_target)
    correlation_D = np.abs(covariance_D) / np.where(norm_D > 0, norm_D, 1.0)

    @functools.cache
    def gram_matrix() -> np.ndarray:
        return centred.T @ centred

    @functools.lru_cache(maxsize=1)  # the candidates of one follow each other, and each may have as many cells as `columns`
    def decomposition(power: int, column_set: ColumnSet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """The scale of each column; eigenvalues and eigenvectors of the Gram matrix of the scaled columns, or of the rows if
        there are fewer rows than columns; and in this case the scaled columns."""
        chosen = design.column_indices(column_set)
        scale_E = correlation_D[chosen] ** power
        if len(scale_E) <= len(centred):
            return scale_E, *np.linalg.eigh(scale_E[:, None] * gram_matrix()[chosen][:, chosen] * scale_E), None
        scaled = centred[:, chosen] * scale_E
        return scale_E, *np.linalg.eigh(scaled @ scaled.T), scaled

    def fit(power: int, column_set: ColumnSet, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        chosen = design.column_indices(column_set)
        scale_E, eigenvalues, vectors, scaled = decomposition(power, column_set)
        right_side = scale_E * covariance_D[chosen] if scaled is None else centred_target
        solution = vectors @ ((vectors.T @ right_side) / (np.maximum(eigenvalues, 0.0) + penalty))
        weight_E = scale_E * (solution if scaled is None else scaled.T @ solution)
        return weight_E[None], np.array([mean - center_D[chosen] @ weight_E])

    return fit


def _logistic(columns: np.ndarray, dataset: Dataset, objective: Objective, design: Design) -> Fit:
    """Logistic regression; each fit starts from the weights of the previous fit with the same columns."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    assert dataset.target is not None
    num_classes = max(2, objective.num_classes)
    weight = np.ones(len(columns)) if dataset.weight is None else dataset.weight.astype(np.float64)
    sum_weights = weight.sum()
    columns = np.concatenate([columns, np.zeros((num_classes, columns.shape[1]))])
    target = np.concatenate([dataset.target.astype(np.int64), np.arange(num_classes)])
    weight = np.concatenate([weight, np.full(num_classes, PRIOR_ROWS * sum_weights / len(weight))])

    @functools.cache
    def model_of(column_set: ColumnSet) -> LogisticRegression:
        return LogisticRegression(warm_start=True, max_iter=MOST_STEPS)

    @functools.cache
    def axes(column_set: ColumnSet) -> np.ndarray:
        """A basis of the span of the rows, which contains the weights that minimise the objective."""
        return np.linalg.svd(columns[:, design.column_indices(column_set)], full_matrices=False)[2]

    def fit(power: int, column_set: ColumnSet, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        inputs = columns[:, design.column_indices(column_set)]
        if not inputs.shape[1]:  # scikit-learn refuses to fit intercepts alone
            shares = np.bincount(target, weights=weight) / weight.sum()
            logits = np.log(shares) if objective.num_classes > 1 else logit(shares[1:])
            return np.zeros((len(logits), 0)), logits
        is_wide = inputs.shape[1] > len(columns)
        if is_wide:
            inputs = inputs @ axes(column_set).T
        is_small = inputs.shape[1] * objective.num_classes <= NEWTON_WEIGHTS
        model = model_of(column_set)
        model.set_params(C=1 / (penalty * sum_weights), solver="newton-cholesky" if is_small else "lbfgs")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(inputs, target, sample_weight=weight)
        weight_KE, intercept_K = model.coef_ @ axes(column_set) if is_wide else model.coef_.copy(), model.intercept_.copy()
        if objective.num_classes == 2:  # scikit-learn has the log odds of the second class only
            return np.concatenate([-weight_KE, weight_KE]) / 2, np.concatenate([-intercept_K, intercept_K]) / 2
        return weight_KE, intercept_K

    return fit


def _loss(objective: Objective, dataset: Dataset, values: np.ndarray) -> float:
    """The mean squared error in the squared unit of the target, or the log loss, of linear values (n, K)."""
    assert dataset.target is not None
    weight = None if dataset.weight is None else dataset.weight.astype(np.float64)
    if objective.kind == "regression":
        return (objective.scaling.scale * root_mean_squared_error(dataset.target, values[:, 0], weight)) ** 2
    log_loss = multiclass.log_loss if objective.kind == "multiclass" else binary.log_loss
    return log_loss(dataset.target, _probabilities(values), weight)


def _probabilities(values: np.ndarray) -> np.ndarray:
    """Probabilities (n,) of log odds (n, 1), or (n, K) of logits (n, K)."""
    return softmax(values, axis=1) if values.shape[1] > 1 else expit(values[:, 0])


def first_rounds(model: Linear, num_rounds: int) -> Linear:
    """The model with candidate `num_rounds` only, or with the only candidate of a model that has one."""
    chosen = slice(min(num_rounds, len(model.weights_TKD)) - 1, None)
    return dataclasses.replace(
        model, weights_TKD=model.weights_TKD[chosen][:1], intercepts_TK=model.intercepts_TK[chosen][:1]
    )


def to_bytes(model: Linear) -> bytes:
    arrays = {**vars(model.design), "weights_TKD": model.weights_TKD, "intercepts_TK": model.intercepts_TK}
    description = json.dumps({"kind": model.kind, "features": model.features})  # one entry: several have no fixed order
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"description": description})


def from_bytes(content: bytes) -> Linear:
    size = int.from_bytes(content[:8], "little")
    description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["description"])
    arrays = load_arrays(content)
    weights_TKD, intercepts_TK = arrays.pop("weights_TKD"), arrays.pop("intercepts_TK")
    return Linear(**description, design=Design(**arrays), weights_TKD=weights_TKD, intercepts_TK=intercepts_TK)


def load(file: Path) -> Linear:
    try:
        return from_bytes(file.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        raise UserError(f"{file} is missing or damaged: train the member again") from None


def feature_names(model: Linear) -> list[str]:
    return model.features


def predict(model: Linear, features: np.ndarray) -> np.ndarray:
    """Probabilities or values (n,), or probabilities of classes (n, K), for features (n, F)."""
    # Each row is summed by itself: in a matrix product, the last bits of a row depend on the other rows
    blocks, weights = _blocks(model, features), model.weights_TKD[0]
    values = np.concatenate([np.stack([(block * weight_D).sum(axis=1) for weight_D in weights], axis=1) for block in blocks])
    values += model.intercepts_TK[0]
    return values[:, 0] if model.kind == "regression" else _probabilities(values)


def contributions(model: Linear, features: np.ndarray) -> np.ndarray:
    """The contribution of each feature to the log odds, logits or value, and last the base value, that of a row whose
    columns have their means: (n, F + 1), or (n, K, F + 1) with several classes."""
    blocks = []
    for columns in _blocks(model, features):
        blocks.append(np.zeros((len(columns), len(model.weights_TKD[0]), len(model.features) + 1)))
        for column, feature in enumerate(model.design.feature_D):
            blocks[-1][:, :, feature] += columns[:, column, None] * model.weights_TKD[0, :, column]
    parts = np.concatenate(blocks)
    parts[:, :, -1] = model.intercepts_TK[0]
    return parts if model.kind == "multiclass" else parts[:, 0]


def _blocks(model: Linear, features: np.ndarray) -> Iterator[np.ndarray]:
    """The columns (n, D) of blocks of rows: D may be thousands, and n the permuted rows of all features."""
    num_rows = max(1, CELLS_AT_ONCE // max(1, len(model.design.mean_D)))
    for start in range(0, max(len(features), 1), num_rows):
        yield np.ascontiguousarray(model.design.columns(features[start : start + num_rows]))


def importance(model: Linear) -> dict[str, float]:
    """For each feature, the root of the sum, over its columns and the classes, of (weight × the column's deviation)².

    The deviation is the standard deviation, taken as 1 for scores and ranks.
    """
    design, first = model.design, len(model.design.number_S)
    variance_D = np.ones(len(design.mean_D))  # scores and ranks have a variance of about 1
    is_indicator = np.zeros(len(design.mean_D), bool)
    is_indicator[first : first + len(design.missing_M) + len(design.category_C)] = True
    is_indicator[len(design.mean_D) - len(design.level_L) :] = True
    variance_D[is_indicator] = design.mean_D[is_indicator] * (1 - design.mean_D[is_indicator])
    squares = (model.weights_TKD[0] ** 2).sum(axis=0) * variance_D
    totals = np.bincount(design.feature_D, weights=squares, minlength=len(model.features))
    return dict(zip(model.features, map(float, np.sqrt(totals)), strict=True))
