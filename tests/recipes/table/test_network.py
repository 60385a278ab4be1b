"""The network for tables: what its copies learn from, that nothing held out reaches them, and data of every kind."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import flat_data
import launcher
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from rtdl_num_embeddings import PiecewiseLinearEmbeddings
from safetensors.torch import load_file

from ensemble import configuration, folders, predictions, recipe
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.neural import loop, setup
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.predictor import bag
from ensemble.recipes.table import encoding, training
from ensemble.recipes.table.model import Copies, dropout
from ensemble.recipes.table.settings import RecipeConfig

torch.set_num_threads(1)
SMALL = ("recipe.num_submodels=2", "recipe.width=8", "recipe.num_bins=4", "recipe.embedding_size=2", "trackers=[]")
NUM_ROWS, NUM_FOLDS = 120, 3


def written(folder: Path, kind: str = "binary", num_rows: int = NUM_ROWS, num_folds: int = NUM_FOLDS, **more: Any) -> Path:
    """A folder for cross-validation, with a forecast of 20 rows."""
    arrays, entry = flat_data.folded({**flat_data.columns(num_rows, kind), **more}, num_folds)
    forecast = flat_data.columns(20, kind, seed=1)
    forecast |= {"target": np.full(20, np.nan)} | {name: values[:20] for name, values in more.items() if name == "weight"}
    return flat_data.write(folder, {"train": arrays, "forecast": forecast}, kind, entry)


def settings(data: Path, out: Path, *words: str) -> Any:
    given = [f"data={data}", f"out={out}", "batch_size=32", "max_epochs=2", "log_every=1", *SMALL, *words]
    return configuration.load(config_class("table"), None, given)


def train(data: Path, out: Path, accelerator: Accelerator, *words: str) -> NeuralMember:
    config = settings(data, out, *words)
    summary = loop.train(training.make(config.recipe, str(data)), config, accelerator)
    assert summary["status"] == "done"
    return NeuralMember(out, accelerator, data)


def made(data: Path, *words: str) -> tuple[training.TabularNetwork, Copies]:
    torch.manual_seed(0)
    tabm = training.make(settings(data, data, *words).recipe, str(data))
    return tabm, tabm.model()


def gradient(tabm: training.TabularNetwork, model: Copies, *pieces: np.ndarray) -> tuple[torch.Tensor, float]:
    """The gradient of the summed losses of `pieces` of the training rows, and the sum of their counts."""
    model.zero_grad()
    counted = 0.0
    for rows in pieces:
        total, count, _ = tabm.step(model, tabm.rows("train").gather(rows), None)
        total.backward()
        counted += float(count)
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]), counted


# ------------------------------------------------------------------------------------------------ the promises of the loop


def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(tmp_path: Path) -> None:
    """Accumulation would learn something else, since the rows that a copy is fitted on differ from piece to piece."""
    tabm, model = made(written(tmp_path / "data", num_folds=4), "recipe.dropout=0")
    rows = np.arange(50)
    whole, count = gradient(tabm, model, rows)
    cut, count_of_cut = gradient(tabm, model, rows[:1], rows[1:20], rows[20:])
    assert count == count_of_cut == 50 * (4 - 2)  # for each row one copy stops on it, and one holds it out
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["width", "num_submodels", "num_layers", "embedding_size", "num_bins"])
def test_what_does_not_fit_into_memory_is_refused(name: str, tmp_path: Path, accelerator: Accelerator) -> None:
    """The system would kill the training without a message."""
    data = written(tmp_path / "data")
    with pytest.raises(UserError, match=rf"needs at least .* GB of memory .* are available: reduce .*recipe\.{name}"):
        train(data, tmp_path / "run", accelerator, f"recipe.{name}=1000000000")
    assert not (tmp_path / "run").exists()


def test_another_number_of_copies_than_the_data_need_is_refused(tmp_path: Path, accelerator: Accelerator) -> None:
    """The masks of the copies would be allocated before the memory is estimated: a traceback."""
    data = written(tmp_path / "data")
    with pytest.raises(UserError, match=r"^recipe\.num_copies=1000000000, but .* needs \d+: leave it out$"):
        train(data, tmp_path / "run", accelerator, "recipe.num_copies=1000000000")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, the order of rows or the moments of the optimizer would start anew."""
    data = written(tmp_path / "data")
    train(data, tmp_path / "whole", accelerator, "recipe.dropout=0.2")
    config = settings(data, tmp_path / "cut", "recipe.dropout=0.2", "checkpoint_steps=3")
    tabm = training.make(config.recipe, str(data))
    calls, step = iter(range(100)), tabm.step

    def crashing(*given: Any) -> Any:
        if next(calls) == 9:  # the first four are passes before the first step
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(tabm, "step", crashing)
    with pytest.raises(KeyboardInterrupt):
        loop.train(tabm, config, accelerator)
    resumed = loop.train(training.make(config.recipe, str(data)), config, accelerator, "last")
    assert resumed["steps"] == 8
    expected, actual = (load_file(tmp_path / run / "final/model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.torture
def test_two_ranks_learn_what_one_learns_and_the_checkpoint_predicts(tmp_path: Path, accelerator: Accelerator) -> None:
    """DDP would miss a copy whose rows are all on another rank, or the script could not train a table at all."""
    data, words = written(tmp_path / "data"), ("recipe.dropout=0", "schedule=constant", "learning_rate=1e-4")
    member = train(data, tmp_path / "one", accelerator, *words)
    out = tmp_path / "two"
    given = [f"data={data}", f"out={out}", "batch_size=32", "max_epochs=2", *SMALL, *words]
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU, launcher.TRAIN, "--recipe", "table", *given]
    code, errors = launcher.run(command, tmp_path)
    assert code == 0, errors
    two, one = NeuralMember(out, accelerator, data).predict(data, "oof"), member.predict(data, "oof")
    np.testing.assert_allclose(two["prediction"], one["prediction"], rtol=1e-4)


def test_a_training_ends_when_its_seconds_are_used_up(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training would exceed its time limit, or end without a best step, or with a learning rate that has not fallen."""
    clock = iter(range(10_000))
    monkeypatch.setattr(setup, "time", types.SimpleNamespace(monotonic=lambda: next(clock) / 2))  # a second a step
    data = written(tmp_path / "data")
    member = train(data, tmp_path / "run", accelerator, "max_epochs=50", "max_seconds=10", "warmup_steps=2")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 8 <= summary["steps"] <= 10
    assert summary["best_step"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    assert rates[-1] < 0.1 * max(rates)
    assert len(member.predict(data, "oof")["row_id"]) == NUM_ROWS


def test_a_deadline_ends_a_training(tmp_path: Path) -> None:
    """A fit would wait for its network for longer than its time limit."""
    data, out = written(tmp_path / "data"), tmp_path / "run"
    given = [f"data={data}", f"out={out}", "batch_size=32", "max_epochs=9000", "patience=9000", "log_every=1", *SMALL]
    command = [*launcher.ACCELERATE, *launcher.SINGLE_CPU, launcher.TRAIN, "--recipe", "table", "--deadline", "1", *given]
    code, errors = launcher.run(command, tmp_path)
    assert code == 0, errors
    assert folders.read_json(out / "config.json")["max_seconds"] == 1.0
    assert folders.read_json(out / "summary.json")["steps"] < 9000


# ------------------------------------------------------------------------------------------------ what copies learn from


def test_nothing_of_a_held_out_row_reaches_the_copy_that_predicts_its_fold(tmp_path: Path, accelerator: Accelerator) -> None:
    """Out-of-fold predictions would be too good, through quantiles, bins, categories or the scale of the target."""
    arrays, entry = flat_data.folded(flat_data.columns(NUM_ROWS, "regression"), NUM_FOLDS)
    changed = {name: values.copy() for name, values in arrays.items()}
    row = int(np.flatnonzero(arrays["fold"] == 1)[0])
    changed["target"][row], changed["x0"][row], changed["x2"][row], changed["c"][row] = 1e6, 1e6, np.nan, np.nan
    predicted_by_copy = []
    for number, columns in enumerate((arrays, changed)):
        data = flat_data.write(tmp_path / f"data{number}", {"train": columns}, "regression", entry)
        # Scored once, at the end: the step that is kept is chosen by all rows together
        member = train(data, tmp_path / f"run{number}", accelerator, "max_epochs=1")
        predicted = member.predict(data, "oof")
        assert np.array_equal(predicted["row_id"], np.arange(NUM_ROWS))
        predicted_by_copy.append(predicted["prediction"])
    same_fold = (arrays["fold"] == 1) & (np.arange(NUM_ROWS) != row)
    assert np.array_equal(predicted_by_copy[0][same_fold], predicted_by_copy[1][same_fold])
    assert not np.array_equal(predicted_by_copy[0], predicted_by_copy[1])


def test_each_row_stops_the_copy_that_is_not_fitted_on_it(tmp_path: Path) -> None:
    """Early stopping would look at rows that a copy learned, or at some twice."""
    tabm, _ = made(written(tmp_path / "data"))
    fit, stop, held = (tabm.rows(split) for split in ("train", "validation", "oof"))
    assert len(fit) == len(stop) == len(held) == NUM_ROWS
    assert (stop.uses.sum(axis=1) == 1).all()
    assert ((fit.uses.astype(int) + stop.uses + held.uses) == 1).all()


def test_forward_in_time_new_rows_are_predicted_by_the_copy_of_all_rows(tmp_path: Path, accelerator: Accelerator) -> None:
    """The copy of the first block, which learned from little, would count as much as the others."""
    arrays = flat_data.columns(NUM_ROWS)
    time = np.arange(NUM_ROWS, dtype=float)
    arrays |= {"time": time, "fold": np.digitize(time, [40, 60, 80, 100]) - 2}
    entry = {"scheme": "forward", "num_folds": 3, "embargo": 1.0, "begins": [40.0, 60.0, 80.0, 100.0]}
    data = flat_data.write(tmp_path / "data", {"train": arrays, "forecast": flat_data.columns(20, seed=1)}, "binary", entry)
    member = train(data, tmp_path / "run", accelerator)
    tabm, model = made(data)
    assert len(model.copies) == 4
    assert (tabm.rows("forecast").uses == [False, False, False, True]).all()
    assert tabm.rows("train").uses[:, 3].all()
    assert set(tabm.rows("oof").row_numbers) == set(range(60, NUM_ROWS))
    assert member.predict(data, "forecast")["prediction"].shape == (20,)


def test_a_checkpoint_alone_predicts_new_data(tmp_path: Path, accelerator: Accelerator) -> None:
    """A forecast would need the training rows, or differ from that of the same rows beside them."""
    data = written(tmp_path / "data", "regression")
    member = train(data, tmp_path / "run", accelerator)
    rows = {**flat_data.columns(20, "regression", seed=1), "target": np.full(20, np.nan)}
    turned = {name: values[::-1] for name, values in rows.items()}
    new = flat_data.write(tmp_path / "new", {"forecast": turned}, "regression")
    apart = NeuralMember(tmp_path / "run", accelerator, new).predict(new, "forecast")
    beside = member.predict(data, "forecast")
    np.testing.assert_allclose(apart["prediction"][::-1], beside["prediction"], rtol=1e-6)
    for own, other in zip(apart["reasons"][::-1], beside["reasons"], strict=True):
        assert {reason["feature"]: reason["value"] for reason in own} == pytest.approx(
            {reason["feature"]: reason["value"] for reason in other}, nan_ok=True
        )


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "ranking"])
def test_rows_of_a_forecast_have_reasons(kind: str, tmp_path: Path, accelerator: Accelerator) -> None:
    """A row would be explained by features that do not move its prediction, by values of another row, or not at all."""
    data = written(tmp_path / "data", kind)
    predicted = train(data, tmp_path / "run", accelerator, "max_epochs=30", "learning_rate=0.01").predict(data, "forecast")
    rows = open_table(data / "rows" / "forecast").to_pydict()
    strength: dict[str, float] = dict.fromkeys(("x0", "x1", "x2", "c"), 0.0)
    for number, reasons in enumerate(predicted["reasons"]):
        assert reasons
        assert {reason.get("class") for reason in reasons} == (
            set(np.argsort(-predicted["prediction"][number])[:2].tolist()) if kind == "multiclass" else {None}
        )
        for reason in reasons:
            strength[reason["feature"]] += abs(reason["contribution"])
            assert reason["value"] == pytest.approx(rows[reason["feature"]][number], nan_ok=True)
    assert max(strength, key=lambda name: strength[name]) == "x0"  # the target follows from it and the category


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "ranking"])
def test_the_importance_of_features_is_that_of_held_out_rows(kind: str, tmp_path: Path, accelerator: Accelerator) -> None:
    """A report would not say on what the member with the largest weight relies, or would permute rows it was fitted on."""
    data = written(tmp_path / "data", kind)
    member = train(data, tmp_path / "run", accelerator, "max_epochs=30", "learning_rate=0.01")
    seen: dict[torch.nn.Module, torch.Tensor] = {}  # the last rows of each copy
    for copy in member.model.copies:
        copy.register_forward_pre_hook(lambda copy, inputs: seen.update({copy: inputs[0]} if len(inputs[0]) else {}))
    importance = member.predict(data, "oof")["importance"]
    if kind == "ranking":
        assert importance is None
        return
    assert importance["rows"] == NUM_ROWS
    assert set(importance["worse"]) == {"x0", "x1", "x2", "c"}
    assert max(importance["worse"], key=importance["worse"].get) == "x0"  # the target follows from it and the category
    rows = open_table(data / "rows" / "train").to_pydict()
    features = np.stack([rows[name] for name in ("x0", "x1", "x2")], axis=1).astype(np.float32)
    for fold, copy in enumerate(member.model.copies):
        held, inputs = features[np.array(rows["fold"]) == fold], seen[copy]  # unchanged, then one feature after the other
        np.testing.assert_array_equal(inputs[: len(held)], held)
        assert len(inputs) == 5 * len(held)


# ------------------------------------------------------------------------------------------------ values and targets


def test_what_is_missing_or_unknown_is_an_input_of_its_own(tmp_path: Path) -> None:
    """NaN would spread through the network, and an unknown category would read another feature's weights."""
    tabm, model = made(written(tmp_path / "data"))
    network, rows = model.copies[0].eval(), tabm.rows("forecast").gather(np.arange(1))
    assert isinstance(network, torch.nn.Module)
    inputs = []
    for code in (np.nan, 4.0, 99.0, -1.0):
        rows["codes"][:] = code
        rows["numbers"][0] = torch.tensor([torch.nan, torch.inf, -3e38])
        inputs.append(network(rows["numbers"], rows["codes"]))
    assert all(torch.equal(outputs, inputs[0]) and outputs.isfinite().all() for outputs in inputs)
    torch.nn.init.ones_(network.missing)
    assert not torch.equal(network(rows["numbers"], rows["codes"]), inputs[0])


def test_a_category_that_a_copy_was_not_fitted_on_is_missing(tmp_path: Path) -> None:
    """A random weight that was never trained would be added to a prediction."""
    arrays, entry = flat_data.folded(flat_data.columns(NUM_ROWS), NUM_FOLDS)
    arrays["c"][arrays["fold"] == 2] = 3
    arrays["c"][arrays["fold"] != 2] %= 3
    arrays["c"][np.flatnonzero(arrays["fold"] != 2)[:10]] = np.nan  # so that a missing category is an input too
    tabm, model = made(flat_data.write(tmp_path / "data", {"train": arrays}, "binary", entry))
    model.eval()
    rows = tabm.rows("train").gather(np.flatnonzero(arrays["fold"] == 2)[:1])
    for number, is_known in enumerate((True, False, False)):  # copy 0 is fitted on fold 2, copy 1 on fold 0
        outputs = [model.copies[number](rows["numbers"], torch.tensor([[code]])) for code in (3.0, torch.nan)]
        assert torch.equal(*outputs) != is_known


def test_a_number_that_a_copy_was_not_fitted_on_is_missing(tmp_path: Path) -> None:
    """A column that begins after the rows of a copy would reach random weights in a forecast."""
    arrays, entry = flat_data.folded(flat_data.columns(NUM_ROWS), NUM_FOLDS)
    arrays["x2"][arrays["fold"] != 2] = np.nan
    tabm, model = made(flat_data.write(tmp_path / "data", {"train": arrays}, "binary", entry))
    model.eval()
    rows = tabm.rows("train").gather(np.flatnonzero(arrays["fold"] == 2)[:1])
    without = rows["numbers"].index_fill(1, torch.tensor([2]), torch.nan)
    for number, is_known in enumerate((True, False, False)):  # copy 0 is fitted on fold 2, copy 1 on fold 0
        outputs = [model.copies[number](numbers, rows["codes"]) for numbers in (rows["numbers"], without)]
        assert torch.equal(*outputs) != is_known
        references = model.copies[number].references(4)[:, 2]
        assert np.isnan(references).all() != is_known


def test_a_row_of_weight_two_is_as_good_as_two_rows(tmp_path: Path) -> None:
    """Weights would be ignored."""
    weight = np.ones(NUM_ROWS, np.float32)
    weight[:10], weight[10:20] = 2, 0
    tabm, model = made(written(tmp_path / "data", weight=weight), "recipe.dropout=0")
    weighted, _ = gradient(tabm, model, np.arange(30))
    tabm.task = dataclasses.replace(tabm.task, weight="")
    tabm.rows("train").columns.pop("weight")
    repeated, _ = gradient(tabm, model, np.arange(10), np.arange(10), np.arange(20, 30))
    torch.testing.assert_close(weighted, repeated, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_absolute_error_if_it_is_the_metric(tmp_path: Path) -> None:
    """The network would predict means, and stop by the squared error."""
    tabm, model = made(written(tmp_path / "data", "regression"), "recipe.dropout=0")
    tabm.task = dataclasses.replace(tabm.task, metric="mean_absolute_error")
    rows, expected = tabm.rows("train").gather(np.arange(20)), torch.zeros(())
    total, _, _ = tabm.step(model, rows, None)
    outputs = model(rows["numbers"], rows["codes"], [torch.nonzero(used)[:, 0] for used in rows["uses"].T])
    for number, (output, used) in enumerate(zip(outputs, rows["uses"].T, strict=True)):
        target = (rows["target"][used] - model.mean[number]) / model.deviation[number]
        expected = expected + (output[..., 0] - target[:, None]).abs().mean(dim=1).sum()
    torch.testing.assert_close(total.double(), expected.double(), rtol=1e-5, atol=1e-5)
    assert training.BY_LOSS[tabm.task.loss][0] == "mean_absolute_error"


@pytest.mark.parametrize(
    ("kind", "output"),
    [("binary", "probability"), ("multiclass", "probabilities"), ("regression", "value"), ("ranking", "score")],
)
def test_every_kind_of_task_is_learned(kind: str, output: str, tmp_path: Path, accelerator: Accelerator) -> None:
    """Predictions would have another form than those of trees, or could not be written to a prediction file."""
    data = written(tmp_path / "data", kind)
    member = train(data, tmp_path / "run", accelerator)
    predicted = member.predict(data, "oof")
    assert predicted["output"] == output
    assert predicted["prediction"].shape == ((NUM_ROWS, 3) if kind == "multiclass" else (NUM_ROWS,))
    if kind == "multiclass":
        np.testing.assert_allclose(predicted["prediction"].sum(axis=1), 1, rtol=1e-6)  # float32
    forecast = predictions.Predictions(**member.predict(data, "forecast"), split="forecast", member="tabm")
    predictions.write(tmp_path / "file", forecast)
    classes = folders.read_manifest(data)["task"]["classes"]
    assert list(predictions.read(tmp_path / "file").classes) == (classes if kind == "multiclass" else [])


def test_a_target_of_any_scale_is_learned(tmp_path: Path, accelerator: Accelerator) -> None:
    """Numbers such as 1e9 would be out of reach, or lose their digits in float32."""
    target = 1e9 + 1e5 * flat_data.columns(NUM_ROWS, "regression")["target"]
    data = written(tmp_path / "data", "regression", target=target)
    predicted = train(data, tmp_path / "run", accelerator, "max_epochs=30", "learning_rate=0.01").predict(data, "oof")
    assert np.array_equal(predicted["target"], target)
    assert np.sqrt(np.mean((predicted["prediction"] - target) ** 2)) < 0.7 * target.std()


@pytest.mark.parametrize("num_rows", [60, NUM_ROWS])
def test_tiny_tables_and_constant_features_are_trained_on(num_rows: int, tmp_path: Path, accelerator: Accelerator) -> None:
    """A training would divide by the difference of equal quantiles, or fail for a feature without values."""
    nothing = {"x0": np.full(num_rows, 7, np.float32), "x1": np.full(num_rows, np.nan, np.float32)}
    constant = {} if num_rows == 60 else {**nothing, "x2": nothing["x0"], "c": np.zeros(num_rows, np.float32)}
    data = written(tmp_path / "data", num_rows=num_rows, num_folds=8, **constant)
    predicted = train(data, tmp_path / "run", accelerator).predict(data, "oof")
    assert len(predicted["row_id"]) == num_rows
    assert np.isfinite(predicted["prediction"]).all()


def test_data_of_another_recipe_train_one_copy(prepared: Path, tmp_path: Path, accelerator: Accelerator) -> None:
    """Only tables would have this network, or its predictions could not be joined with those of the recipe's members."""
    member = train(prepared, tmp_path / "run", accelerator, "max_epochs=0.05", "batch_size=256")
    predicted = member.predict(prepared, "blend")
    manifest = folders.read_manifest(prepared)
    assert predicted["recipe"] == manifest["recipe"] == "hot_sellers"
    assert len(predicted["prediction"]) == manifest["splits"]["blend"]["rows"]
    assert bag.default_splits(tmp_path / "run", manifest, False)[0] == "blend"


def test_only_this_network_fits_data_of_any_recipe(prepared: Path, tmp_path: Path) -> None:
    """A network would read columns that are not there, or data without features would end in a traceback."""
    manifest = folders.read_manifest(prepared)
    recipe.check_named("table", manifest, prepared, has_network=True)
    with pytest.raises(UserError, match="was prepared for the recipe hot_sellers"):
        recipe.check_named("table", manifest, prepared)
    with pytest.raises(UserError, match="was prepared for the recipe hot_sellers"):
        recipe.check_named("next_item", manifest, prepared, has_network=True)
    data = flat_data.write(tmp_path / "data", {"train": flat_data.columns(30)}, features=[])
    with pytest.raises(UserError, match="has no flat features"):
        training.make(RecipeConfig(), str(data))


# ------------------------------------------------------------------------------------------------ the layers


def test_numbers_are_embedded_as_in_the_authors_package() -> None:
    """The faster computation would give other embeddings."""
    values = np.random.default_rng(0).exponential(size=500).astype(np.float32)
    scale = encoding.fit(values, 6)
    shape = training.Shape(
        num_numbers=1, categories=(), num_outputs=1, num_knots=encoding.NUM_KNOTS, num_bins=6, embedding_size=3,
        num_submodels=2, width=4, num_layers=2, dropout=0.1,
    )  # fmt: skip
    network = training.Network(shape)
    training.set_scales(network, [values], [])
    torch.nn.init.normal_(network.numbers.linear.weight)
    package = PiecewiseLinearEmbeddings([torch.from_numpy(scale.edges)], 3, activation=False, version="B")
    for name in ("linear0", "linear"):
        getattr(package, name).load_state_dict(getattr(network.numbers, name).state_dict())
    x = np.sort(values)[::7]
    known = np.isfinite(scale.knots)
    begins, place = scale.segments[known, 0], scale.segments[known, 4].astype(int)
    low, high = scale.edges[place], scale.edges[place + 1]
    scores = torch.from_numpy(np.interp(x, begins, low + scale.segments[known, 2] * (high - low)).astype(np.float32))
    embedded = network.embedded_numbers(torch.from_numpy(x)[:, None])
    torch.testing.assert_close(embedded, package(scores[:, None]).flatten(1), rtol=1e-4, atol=1e-4)


def test_reference_values_are_as_frequent_as_in_training() -> None:
    """A number that is nearly always 0 would seem to matter in each row: it would be compared with rare values."""
    generator = np.random.default_rng(0)
    counts = np.repeat([0, 1, 2], [700, 250, 50]).astype(np.float32)
    rare = np.where(np.arange(1000) < 920, 0, generator.exponential(size=1000)).astype(np.float32)
    continuous, constant = generator.normal(size=1000).astype(np.float32), np.full(1000, 4, np.float32)
    shape = training.Shape(
        num_numbers=4, categories=(4, 2), num_outputs=1, num_knots=encoding.NUM_KNOTS, num_bins=6, embedding_size=3,
        num_submodels=2, width=4, num_layers=2, dropout=0.1,
    )  # fmt: skip
    network = training.Network(shape)
    codes = np.where(counts == 2, np.nan, 2 * counts + 1).astype(np.float32)
    training.set_scales(network, [counts, rare, continuous, constant], [codes, np.full(1000, np.nan, np.float32)])
    references = np.sort(network.references(200), axis=0)
    assert np.unique(references[:, 0], return_counts=True)[1].tolist() == [140, 50, 10]
    assert (references[:, 1] == 0).sum() == 184
    quantiles = np.quantile(continuous, (np.arange(200) + 0.5) / 200)
    np.testing.assert_allclose(references[5:-5, 2], quantiles[5:-5], atol=0.2)
    assert (references[:, 3] == 4).all()
    assert [np.sum(references[:, 4] == code) for code in range(4)] == [0, 147, 0, 53]  # 700 and 250 of 950 rows
    assert np.isnan(references[:, 5]).all()


def test_numbers_near_zero_have_finite_embeddings() -> None:
    """The slope between two denormal numbers is infinite in float32, and the loss would be NaN."""
    values = np.array([1e-42, 3e-42, 2e-41, 0.1, 0.5], np.float32)
    scale = encoding.fit(values, 4)
    assert np.isfinite(scale.segments[np.isfinite(scale.knots)]).all()


def test_a_copy_is_the_network_of_the_authors_package(tmp_path: Path) -> None:
    """Scaling the weights instead of the inputs would give other outputs."""
    tabm, model = made(written(tmp_path / "data"))
    network = model.copies[0].eval()
    rows = tabm.rows("train").gather(np.arange(40))
    hidden = network.inputs(rows["numbers"], rows["codes"])[:, None].expand(-1, 2, -1)
    expected = network.output(network.backbone(hidden))
    torch.testing.assert_close(network(rows["numbers"], rows["codes"]), expected)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_bf16_gives_nearly_the_same(kind: str, tmp_path: Path) -> None:
    """The network could not be trained in the precision of GPUs, or quantiles would be computed in it."""
    tabm, model = made(written(tmp_path / "data", kind), "recipe.dropout=0")
    batch = tabm.rows("train").gather(np.arange(60))
    whole, _, _ = tabm.step(model, batch, None)
    with torch.autocast("cpu", torch.bfloat16):
        low, _, _ = tabm.step(model, batch, None)
    low.backward()
    assert low != whole
    torch.testing.assert_close(low, whole, rtol=0.02, atol=0)


def test_dropout_drops_what_it_should() -> None:
    """Some elements would be dropped more often than others, or the mean would change."""
    torch.manual_seed(0)
    x = torch.ones(4000, 8)
    dropped = dropout(x, 0.1)
    assert abs(float(dropped.mean()) - 1) < 0.01
    assert ((dropped == 0).float().mean(dim=0) - 0.1).abs().max() < 0.02
    assert torch.equal(dropout(x, 0.0), x)
    assert 0 < (dropout(x, 0.999) != 0).float().mean() < 0.01


def test_the_estimate_of_memory_counts_all_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate would leave out the embeddings of a column of many categories, which are most of the parameters."""
    monkeypatch.setattr(flat_data, "NUM_CATEGORIES", 40)
    tabm, model = made(written(tmp_path / "data", "multiclass"), "recipe.num_layers=3")
    assert tabm.size(4).num_parameters == sum(parameter.numel() for parameter in model.parameters())
