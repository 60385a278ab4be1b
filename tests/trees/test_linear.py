"""The linear member: its fits compared with those of scikit-learn, its columns, contributions and files."""

import functools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from copied_members import config_of, frame_of, prepared_of
from scipy.special import expit, logit, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from tree_members import rows_of

from ensemble.errors import UserError
from ensemble.trees import linear
from ensemble.trees.boosting import Training
from ensemble.trees.objective import dataset_of, objective_of

KINDS = ("binary", "multiclass", "regression")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a kind to the model of all candidates, its features (n, F), targets and weights."""

    @functools.cache
    def make(kind: str) -> Any:
        frame = frame_of(kind).with_columns(weight=1.0 + pl.int_range(pl.len()) % 3)
        frame = frame.with_columns(other=pl.when(pl.int_range(pl.len()) % 7 > 0).then("other"))
        data = prepared_of(tmp_path_factory.mktemp(kind), frame, drop=("day",), weight="weight")
        config, rows = config_of("linear", data), rows_of(data)
        dataset = dataset_of(objective_of(config, rows), rows)
        model, _ = linear.train_copy(config, 0, rows, rows, lambda: False)
        return model, dataset.rows.matrix(), dataset.target, dataset.weight

    return make


def number_of(kind: str, power: int, column_set: str) -> tuple[int, float]:
    """The number of a candidate with these columns and a small penalty, and the penalty."""
    candidates = linear.CANDIDATES_OF_REGRESSION if kind == "regression" else linear.CANDIDATES
    return next((n, c[2]) for n, c in enumerate(candidates) if c[:2] == (power, column_set) and c[2] < 0.05)


@pytest.mark.parametrize("column_set", ["scores", "ranks"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_each_candidate_is_the_minimum_of_its_objective(kind: str, column_set: Any, fitted: Any) -> None:
    """A wrong scale of the penalty or of the weights would give another model than the one that is described."""
    model, features, target, weight = fitted(kind)
    number, penalty = number_of(kind, 0, column_set)
    columns = model.design.columns(features)
    used = len(columns[0, model.design.column_indices(column_set)])
    assert not model.weights_TKD[number][:, used:].any()
    num_classes = 3 if kind == "multiclass" else 2
    columns = np.concatenate([columns[:, :used], np.zeros((num_classes, used))])
    target = np.concatenate([target, np.arange(num_classes)])
    weights = np.concatenate([weight, np.full(num_classes, linear.PRIOR_ROWS * weight.mean())])
    expected = LogisticRegression(C=1 / (penalty * weight.sum()), tol=1e-8, max_iter=1000).fit(columns, target, weights)
    assert model.weights_TKD[number][:, :used] == pytest.approx(expected.coef_, abs=1e-3)


@pytest.mark.parametrize("power", [0, 2])
@pytest.mark.parametrize("column_set", ["scores", "ranks", "wide", "levels"])
@pytest.mark.parametrize("num_rows", [200, 20])
def test_each_candidate_of_a_regression_is_the_minimum(num_rows: int, column_set: Any, power: int, tmp_path: Path) -> None:
    """A wrong scale of the penalty or of the weights would give another model, also with fewer rows than columns."""
    generator = np.random.default_rng(0)
    frame = pl.DataFrame(
        {f"x{n}": generator.normal(size=num_rows) for n in range(12)}
        | {"late": np.arange(num_rows) % 19 == 3}
        | {"month": np.arange(num_rows) // 2 % 10}
    )
    frame = frame.with_columns(x0=pl.when(pl.int_range(num_rows) == 5).then(900.0).otherwise("x0"))
    frame = frame.with_columns(y=pl.col("x0") + pl.col("x1"), w=1.0 + pl.int_range(num_rows) % 3)
    data = prepared_of(tmp_path, frame, weight="w")
    config, rows = config_of("linear", data), rows_of(data)
    model, _ = linear.train_copy(config, 0, rows, rows, lambda: False)
    dataset = dataset_of(objective_of(config, rows), rows)
    number, penalty = number_of("regression", power, column_set)
    chosen, columns = model.design.column_indices(column_set), model.design.columns(dataset.rows.matrix())
    weight, target = dataset.weight, dataset.target
    centred = columns - np.average(columns, axis=0, weights=weight)
    residual = target - np.average(target, weights=weight)
    norms = np.sqrt(weight @ centred**2) * np.sqrt(weight @ residual**2)
    scale = (np.abs((weight * residual) @ centred) / norms)[chosen] ** power
    expected = Ridge(penalty * weight.sum(), tol=1e-12).fit(columns[:, chosen] * scale, target, weight)
    assert model.weights_TKD[number][0, chosen] == pytest.approx(expected.coef_ * scale, abs=1e-6)
    assert model.intercepts_TK[number][0] == pytest.approx(expected.intercept_, abs=1e-6)
    assert np.count_nonzero(model.weights_TKD[number]) == len(expected.coef_)
    assert (np.ptp(columns[:, chosen], axis=0).max() > 10) == (column_set == "wide" and num_rows == 200)


def test_a_regression_learns_from_each_of_many_categories(tmp_path: Path) -> None:
    """Of 300 shops the linear model would know 100, and none with one row."""
    shop = np.arange(900) // 3
    frame = pl.DataFrame({"shop": [f"s{n}" for n in shop], "x": np.arange(900) % 7, "y": shop * 7.0 % 31})
    data = prepared_of(tmp_path, frame)
    for kind, most in ((True, 300), (False, 100)):
        rows = rows_of(data)
        design = linear.fit_design(rows, rows.matrix(), kind)
        assert len(design.code_C) == most


def test_a_regression_learns_the_effect_of_each_month(tmp_path: Path) -> None:
    """A straight line through the twelve numbers would miss the summer."""
    month = np.arange(600) % 12 + 1
    noise = np.random.default_rng(0).normal(size=600)
    frame = pl.DataFrame({"month": month, "x": noise, "y": 5.0 * ((month > 5) & (month < 9)) + noise})
    data = prepared_of(tmp_path, frame)
    config, rows = config_of("linear", data), rows_of(data)
    model, losses = linear.train_copy(config, 0, rows, rows, lambda: False)
    assert model.design.value_L.tolist() == list(range(1, 13))
    best = linear.first_rounds(model, int(np.argmin(losses)) + 1)
    later = np.array([[7.0, 0.0], [12.0, 0.0], [13.0, 0.0]], np.float32)  # a number that no training row has
    scaling = objective_of(config, rows).scaling
    summer, winter, unknown = scaling.center + scaling.scale * linear.predict(best, later)
    assert summer == pytest.approx(5, abs=0.1)
    assert winter == pytest.approx(0, abs=0.1)
    assert winter - 0.1 < unknown < summer + 0.1
    importance = linear.importance(best)
    assert importance["month"] == pytest.approx(5 * np.std([0] * 9 + [1] * 3) / scaling.scale, rel=0.1)
    assert not linear.fit_design(rows, rows.matrix(), is_regression=False).value_L.size


def test_more_columns_than_rows_have_the_minimum_too(tmp_path: Path) -> None:
    """The columns are rotated before the fit, and the weights of the rotated columns would be returned."""
    generator = np.random.default_rng(0)
    frame = frame_of("binary").head(40).with_columns(pl.Series(f"x{n}", generator.normal(size=40)) for n in range(60))
    data = prepared_of(tmp_path, frame, drop=("day",))
    config, rows = config_of("linear", data), rows_of(data)
    model, _ = linear.train_copy(config, 0, rows, rows, lambda: False)
    dataset = dataset_of(objective_of(config, rows), rows)
    columns = model.design.columns(dataset.rows.matrix())
    used = len(columns[0, model.design.column_indices("scores")])
    assert used > len(columns) + 2
    columns, target = np.concatenate([columns[:, :used], np.zeros((2, used))]), np.append(dataset.target, [0, 1])
    weights = np.append(np.ones(len(rows)), [linear.PRIOR_ROWS] * 2)
    penalty = linear.CANDIDATES[1][2]
    expected = LogisticRegression(C=1 / (penalty * len(rows)), tol=1e-8, max_iter=1000).fit(columns, target, weights)
    assert model.weights_TKD[1][:, :used] == pytest.approx(expected.coef_, abs=1e-3)


def test_columns_of_numbers_categories_and_missing_values(fitted: Any) -> None:
    """A column that is not centred would move the mean row, from which contributions are counted."""
    model, features, _, _ = fitted("regression")
    design, columns = model.design, model.design.columns(features)
    assert np.abs(columns.mean(axis=0)).max() < 1e-9
    missing = np.isnan(features[:, design.missing_M[0]])
    scores = columns[:, np.flatnonzero(design.number_S == design.missing_M[0])[0]]
    assert not scores[missing].any()
    assert np.std(scores[~missing]) == pytest.approx(1, abs=0.1)
    assert design.columns(features[:0]).shape == (0, columns.shape[1])
    unknown = features[:1].copy()
    unknown[0, design.category_C[0]] = 1e6
    part = design.columns(unknown)[0, len(design.number_S) + len(design.missing_M) :][: len(design.code_C)]
    assert part == pytest.approx(-design.mean_D[len(design.number_S) + len(design.missing_M) :][: len(design.code_C)])


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_sum_to_the_prediction(kind: str, fitted: Any) -> None:
    """Reasons would explain another prediction than the one beside them."""
    model, features, _, _ = fitted(kind)
    model = linear.first_rounds(model, 10)
    prediction = linear.predict(model, features)
    if kind == "multiclass":
        values = linear.contributions(model, features).sum(axis=2)
        assert softmax(values, axis=1) == pytest.approx(prediction)
        return
    values = linear.contributions(model, features).sum(axis=1)
    assert values == pytest.approx(prediction if kind == "regression" else logit(prediction), abs=1e-6)
    assert linear.importance(model).keys() == dict.fromkeys(linear.feature_names(model)).keys()


def test_importance_counts_each_column_by_its_deviation(tmp_path: Path) -> None:
    """The rank of a number with a wide range would not count, so the only feature that matters would seem useless."""
    size = np.exp(2 * np.random.default_rng(0).normal(size=300))
    data = prepared_of(tmp_path, pl.DataFrame({"size": size, "y": np.log(size)}))
    rows = rows_of(data)
    model, _ = linear.train_copy(config_of("linear", data), 0, rows, rows, lambda: False)
    assert model.design.wide_W.tolist() == [0]
    model = linear.first_rounds(model, 1 + number_of("regression", 0, "ranks")[0])
    deviations = model.design.columns(rows.matrix()).std(axis=0)
    expected = np.linalg.norm(model.weights_TKD[0, 0] * deviations)
    assert linear.importance(model)["size"] == pytest.approx(expected, rel=0.1)


def test_copies_count_by_the_weights_of_their_rows(tmp_path: Path) -> None:
    """Rows of little weight would choose the penalty as much as the others, if they are in other folds."""
    data = prepared_of(tmp_path, frame_of("regression").with_columns(w=1.0 + pl.int_range(pl.len())), weight="w")
    rows = rows_of(data)
    order = np.argsort(rows.column("weight"))
    stops = [rows.take(order[:60]), rows.take(order[60:120])]
    config = config_of("linear", data)
    _, history, _ = linear.train_copies(config, [(rows.take(order[120:]), stop) for stop in stops], Training(), map)
    losses = [linear.train_copy(config, 0, rows.take(order[120:]), stop, lambda: False)[1] for stop in stops]
    expected = np.average(losses, axis=0, weights=[stop.column("weight").sum() for stop in stops]) ** 0.5
    assert [scores["root_mean_squared_error"] for scores in history] == pytest.approx(expected.tolist(), rel=1e-6)


def test_a_class_without_a_row_has_a_small_probability(tmp_path: Path) -> None:
    """The copy of a fold would have no column for it, or a probability of 0, whose log loss is infinite."""
    data = prepared_of(tmp_path, frame_of("multiclass"), drop=("day",))
    rows = rows_of(data)
    is_other = np.flatnonzero(rows.column("target") != 2)
    model, _ = linear.train_copy(config_of("linear", data), 0, rows.take(is_other), rows, lambda: False)
    for number in (1, 7, len(linear.CANDIDATES)):
        features = rows.matrix()
        probabilities = linear.predict(linear.first_rounds(model, number), features)
        assert probabilities.shape[1] == 3
        assert 0 < probabilities[:, 2].max() < 0.05


def test_a_file_gives_the_same_bits_and_a_damaged_one_a_sentence(fitted: Any, tmp_path: Path) -> None:
    """A loaded member would predict other values than the trained one, or a damaged file would end in a traceback."""
    model, features, _, _ = fitted("binary")
    model = linear.first_rounds(model, 7)
    file = tmp_path / linear.FILE
    file.write_bytes(linear.to_bytes(model))
    assert linear.to_bytes(linear.load(file)) == file.read_bytes()
    assert linear.predict(linear.load(file), features).tobytes() == linear.predict(model, features).tobytes()
    assert linear.predict(model, features) == pytest.approx(
        expit(model.design.columns(features) @ model.weights_TKD[0, 0] + model.intercepts_TK[0, 0])
    )
    for content in (b"", file.read_bytes()[:100], b"\xff" * 50):
        file.write_bytes(content)
        with pytest.raises(UserError, match="is missing or damaged: train the member again"):
            linear.load(file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_does_not_depend_on_the_other_rows(kind: str, fitted: Any) -> None:
    """A new row would have another prediction than the same row among others, in its last bits."""
    model, features, _, _ = fitted(kind)
    model = linear.first_rounds(model, 9)
    expected = linear.predict(model, features)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 40)):
        assert linear.predict(model, features[rows]).tobytes() == expected[rows].tobytes()


def test_the_first_candidates_are_fitted_without_time(tmp_path: Path) -> None:
    """The first candidate alone is almost constant, and would be the member."""
    data = prepared_of(tmp_path, frame_of("multiclass"), drop=("day",))
    rows = rows_of(data)
    _, losses = linear.train_copy(config_of("linear", data), 0, rows, rows, lambda: True)
    assert len(losses) == linear.LEAST_CANDIDATES


def test_features_that_do_not_vary_give_a_constant_prediction(tmp_path: Path) -> None:
    """Features may be constant in the rows of a fold. A standard deviation of 0 would make every prediction NaN."""
    frame = frame_of("binary")
    data = prepared_of(tmp_path, frame, drop=("day",))
    rows = rows_of(data)
    features = rows.matrix()
    constant = rows.replaced({name: np.full(len(rows), 3, np.float32) for name in rows.features})
    model, losses = linear.train_copy(config_of("linear", data), 0, constant, rows, lambda: False)
    assert np.isfinite(losses).all()
    assert len(np.unique(linear.predict(linear.first_rounds(model, 1), features))) == 1


def test_two_classes_have_two_probabilities(tmp_path: Path) -> None:
    """With task=multiclass, the predictions of two classes would be one column, which no other member has."""
    frame = frame_of("binary")
    data = prepared_of(tmp_path, frame, drop=("day",), task="multiclass")
    binary = prepared_of(tmp_path, frame, "binary", drop=("day",))
    predictions = []
    for folder in (data, binary):
        rows = rows_of(folder)
        model, losses = linear.train_copy(config_of("linear", folder), 0, rows, rows, lambda: False)
        predictions.append((linear.predict(linear.first_rounds(model, 5), rows.matrix()), losses))
    (classes, losses), (positive, expected) = predictions
    assert classes == pytest.approx(np.stack([1 - positive, positive], axis=1), abs=1e-6)
    assert losses == pytest.approx(expected, abs=1e-6)


def test_many_categories_need_no_column_for_each_row_at_once(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importance of features took 2 GB for a table of 1,300 rows, whose names of farms and owners make 5,000 columns."""
    model, features, _, _ = fitted("regression")
    model = linear.first_rounds(model, 9)
    many = np.tile(features, (200, 1))
    at_once = linear.predict(model, many), linear.contributions(model, many)
    assert at_once[0].tobytes() == np.tile(linear.predict(model, features), 200).tobytes()
    assert at_once[1].tobytes() == np.tile(linear.contributions(model, features), (200, 1)).tobytes()
    monkeypatch.setattr(linear, "CELLS_AT_ONCE", 1000)
    for function, expected in zip((linear.predict, linear.contributions), at_once, strict=True):
        tracemalloc.start()
        result = function(model, many)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.tobytes() == expected.tobytes()
        assert peak < 3 * result.nbytes + 500_000, "the columns of all rows"


def test_a_regression_keeps_one_decomposition(tmp_path: Path) -> None:
    """Each of twelve sets of columns would keep as many numbers as all columns have."""
    generator = np.random.default_rng(0)
    names = {f"c{n}": [f"v{value}" for value in generator.integers(0, 200, 300)] for n in range(10)}
    frame = pl.DataFrame({**names, "x": generator.normal(size=300), "y": generator.normal(size=300)})
    rows = rows_of(prepared_of(tmp_path, frame))
    tracemalloc.start()
    model, _ = linear.train_copy(config_of("linear", tmp_path / "data"), 0, rows, rows, lambda: False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 8 * len(rows) * len(model.design.mean_D)
