"""Copies of a member on the folds of a table: no leak, the same bits with any threads and after kills, valid folders."""

import dataclasses
import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from copied_members import (
    KINDS,
    NUM_LABELLED,
    NUM_ROWS,
    SETTINGS,
    config_of,
    content,
    folds_of,
    frame_of,
    models_of,
    prepared_of,
)
from tree_members import interrupt, rows_of

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.data import out_of_fold
from ensemble.predictor import members
from ensemble.recipes.table.prepare import write_rows
from ensemble.trees import boosting, copies, linear, predict, stored, threads, train, unknown
from ensemble.trees.boosting import CannotLearn, Training
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.predict import TreeMember, average_predictions, library_module
from ensemble.trees.rows import TreeData


@pytest.fixture(scope="module", params=["xgboost", "lightgbm", "catboost", "extra_trees", "linear"])
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "catboost":
        pytest.importorskip("catboost")
    return request.param


def pinned(library: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library; all copies get `num_rounds` trees, whatever their validation scores."""
    module = library_module(library)
    if hasattr(module, "train_copies"):
        original = module.train_copies
        return types.SimpleNamespace(
            **{**vars(module), "train_copies": lambda config, *rest: (*original(config, *rest)[:2], config.num_rounds)}
        )
    monkeypatch.setattr(boosting, "best_round", lambda history, metric: len(history))
    return module


# ------------------------------------------------------------------------------------------------ no leak


def with_changed_rows(data: Path, folder: Path, held: np.ndarray) -> TreeData:
    """The split `train` with other targets and features in the rows `held`, which are predicted from the old features."""
    table = open_table(data / "rows" / "train")
    arrays = {name: table[name].to_numpy().copy() for name in table.column_names}
    target = arrays["target"]
    target[held] = target.max() + target.min() - target[held]
    arrays["colour"][held], arrays["size"][held], arrays["other"][held] = 0, -5 * arrays["size"][held], np.nan
    write_rows(folder / "rows" / "train", arrays)
    before = rows_of(data)

    class Changed(TreeData):
        def take(self, rows: np.ndarray) -> TreeData:
            return before.take(rows) if np.array_equal(rows, held) else super().take(rows)

    return Changed(folder, "train", folders.read_manifest(data))


@pytest.mark.parametrize(("kind", "is_forward"), [("regression", False), ("multiclass", False), ("binary", True)])
def test_rows_that_are_held_out_change_no_bit_of_their_predictions(
    kind: str, is_forward: bool, library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that predicts a row would know its target: through trees, the scale of the target, or unknown values."""
    data, module = data_of(kind, is_forward), pinned(library, monkeypatch)
    folds, config = folds_of(data), config_of(library, data, early_stopping_rounds=1000)
    ends = np.cumsum([0, *(fold.held.size for fold in folds)])
    result = [
        copies.train(module, config, rows, folds, Training(), is_forward).out_of_fold["prediction"]
        for rows in (rows_of(data), with_changed_rows(data, tmp_path, folds[1].held))
    ]
    is_same = [result[0][begin:end].tobytes() == result[1][begin:end].tobytes() for begin, end in itertools.pairwise(ends)]
    # The copies of other folds learn those rows, so the test can fail; forward in time, only the copy of a later fold does
    assert is_same == [is_forward, True, False]


def test_each_copy_predicts_with_the_same_number_of_trees(library: str, data_of: Any, tmp_path: Path) -> None:
    """With few rows each copy would stop at a random number of trees, and their predictions would not be comparable."""
    summary = train.train(config_of(library, data_of("regression"), tmp_path / "m"))
    models = [model for model, _ in models_of(tmp_path / "m")]
    assert summary["models"] == len(models) == 3
    count = {"lightgbm": "current_iteration"}.get(library, "num_boosted_rounds")
    if library == "linear":
        assert 1 <= summary["candidate"] <= len(linear.CANDIDATES)
        assert {len(model.weights_TKD) for model in models} == {1}
        return
    if library == "catboost":
        assert {model.tree_count_ for model in models} == {summary["trees"]}
    else:
        assert {getattr(model, count)() for model in models} == {summary["trees"]}
    assert 1 < summary["trees"] <= 12


def test_a_category_of_one_fold_gets_neutral_predictions(library: str, tmp_path: Path) -> None:
    """A colour without training rows would be predicted as an extreme colour, and weights would be fitted on that."""
    frame = frame_of("regression").with_columns(y=40.0 * (pl.col("colour") == "coral") + 40.0 * (pl.col("colour") == "blue"))
    frame = frame.with_columns(y=pl.col("y") + 80.0 * (pl.col("colour") == "coral") + pl.col("size"))
    frame = frame.with_columns(y=pl.when(pl.int_range(NUM_ROWS) < NUM_LABELLED).then("y"))
    rows = open_table(prepared_of(tmp_path, frame, drop=("day",)) / "rows" / "train")
    in_fold = np.isin(np.arange(NUM_ROWS), rows["row_id"].to_numpy()[rows["fold"].to_numpy() == 1])
    is_new = in_fold & (np.arange(NUM_ROWS) % 2 == 0)
    frame = frame.with_columns(colour=pl.when(pl.Series(is_new)).then(pl.lit("gold")).otherwise("colour"))
    data = prepared_of(tmp_path, frame, "new", drop=("day",))
    train.train(
        config_of(
            library, data, tmp_path / "m", num_rounds=30, early_stopping_rounds=30, row_fraction=1.0, column_fraction=1.0
        )
    )
    member = TreeMember(tmp_path / "m")
    result = member.predict(data, "oof")
    of_new = result["prediction"][is_new[result["row_id"]]]
    assert len(of_new) > 10
    # That of blue, which lies between amber and coral
    rows_of_fold = rows_of(data).take(folds_of(data)[1].held)
    features = next(rows_of_fold.take(np.flatnonzero(is_new[rows_of_fold.column("row_id")])).batches())
    (colour,) = (feature for feature in folders.read_manifest(data)["features"] if feature["column"] == "colour")
    features[:, rows_of_fold.features.index(colour["name"])] = colour["values"].index("blue")
    model, scaling = models_of(tmp_path / "m")[1]
    expected = scaling.value(library_module(library).predict(model, features))
    assert of_new == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("settings", [{"num_folds": 3}, {"num_folds": 1}, {"time": "day"}])
def test_bits_depend_on_the_seed_but_not_on_threads(library: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The same command would give other predictions when it is repeated, or on a machine with more cores."""
    data = prepared_of(tmp_path, frame_of("multiclass"), **settings)
    result = []
    for number, num_threads in enumerate((1, 1, 2)):
        train.train(config_of(library, data, tmp_path / str(number), threads=num_threads))
        result.append(content(tmp_path / str(number)))
    assert result[0] == result[1]
    assert result[0] == result[2]
    train.train(config_of(library, data, tmp_path / "seed", seed=1))
    is_same = content(tmp_path / "seed")[out_of_fold.FILE] == result[0][out_of_fold.FILE]
    assert is_same == (library == "linear")  # linear models draw no random numbers


@pytest.mark.parametrize(("num_rounds", "most_ahead"), [(60, 4), (6, 3)])
def test_rounds_ahead_change_no_bit(
    num_rounds: int, most_ahead: int, library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member would depend on the speed of the machine: on trees after the best one, or on seeds of another chunk."""
    result, ahead = [], []
    pop = copies.deque.popleft

    class Counted(copies.deque):  # type: ignore[type-arg]
        def popleft(self) -> Any:
            ahead.append(len(self))
            return pop(self)

    monkeypatch.setattr(copies, "deque", Counted)
    for number, seconds in enumerate((0.0, 1e9)):
        monkeypatch.setattr(copies, "AHEAD_S", seconds)
        config = config_of(
            library, data_of("binary"), tmp_path / str(number), num_rounds=num_rounds, early_stopping_rounds=5
        )
        trained = train.train(config)
        result.append((content(tmp_path / str(number)), (tmp_path / str(number) / "metrics.jsonl").read_bytes()))
    assert result[0] == result[1]
    if library not in ("catboost", "extra_trees", "linear"):  # which train each copy by itself
        assert max(ahead) == most_ahead  # the first round, and thus the first chunk, begins with one
        assert num_rounds < 60 or trained["trees"] + config.early_stopping_rounds < num_rounds  # stopped within a chunk


def test_a_training_that_was_killed_ends_with_the_same_bits(library: str, data_of: Any, tmp_path: Path) -> None:
    """A requeued job would end with another member, or with files of two members."""
    data, out = data_of("binary"), tmp_path / "again"
    train.train(config_of(library, data, tmp_path / "whole"))
    config = config_of(library, data, out)
    if library not in ("catboost", "extra_trees", "linear"):  # which keep nothing of a training that was killed
        interrupt(config)
        interrupt(config, 1, "auto")
        assert [folder.name for folder in Checkpoints(out, "").all()] == ["trees-00000008", "trees-00000004"]
    interrupt(config, 2, "auto", unknown, "describe")  # after all trees were trained
    assert not out.exists()
    assert train.train(config, "auto")["status"] == "done"
    assert content(out) == content(tmp_path / "whole")
    assert (out / "metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "whole"]


def test_a_training_that_is_asked_to_stop_keeps_its_trees(
    library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted job would continue until it is killed, or look like a finished one."""

    class Asked(train.StopSignals):
        def __enter__(self) -> "Asked":
            super().__enter__()
            self.received = 15
            return self

    config = config_of(library, data_of("binary"), tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(train, "StopSignals", Asked)
        assert train.train(config)["status"] == "preempted"
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.checkpoint/status").read_text() == "preempted\n"
    assert train.train(config, "auto")["status"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_several_models_in_one_file() -> None:
    """A checkpoint would give a copy the trees of another."""
    for models in ([b"a\nb", b"", b"\x00" * 9], [b"x"]):
        assert stored.unpack(stored.pack(models)) == models


# ------------------------------------------------------------------------------------------------ hard tables


def test_weights_count(library: str, tmp_path: Path) -> None:
    """Rows of nearly no weight that contradict the others would be learned, and would stop the training early."""
    frame = frame_of("regression")
    is_wrong = pl.Series(np.arange(NUM_ROWS) % 2 == 0)
    frame = frame.with_columns(
        w=pl.when(is_wrong).then(2.0**-99).otherwise(2.0), y=pl.when(is_wrong).then(-pl.col("y")).otherwise("y")
    )
    data = prepared_of(tmp_path, frame, weight="w", drop=("day",))
    train.train(config_of(library, data, tmp_path / "m", num_rounds=40, early_stopping_rounds=40))
    result = TreeMember(tmp_path / "m").predict(data, "oof")
    assert set(result["weight"]) == {2.0**-99, 2.0}
    counted = result["weight"] > 1
    assert counted.tolist() == (result["row_id"] % 2 == 1).tolist()
    score = {
        of: np.corrcoef(result["prediction"][counted == of], result["target"][counted == of])[0, 1] for of in (True, False)
    }
    assert score[True] > 0.7
    assert score[False] < -0.5


def test_large_targets_keep_their_differences(library: str, data_of: Any, tmp_path: Path) -> None:
    """Times in milliseconds would be equal in float32 if the folds had no scales."""
    result = []
    for name, offset in (("plain", 0.0), ("large", 1.7e12)):
        data = prepared_of(tmp_path, frame_of("regression", offset), name, drop=("day",))
        train.train(config_of(library, data, tmp_path / f"m-{name}"))
        result.append(TreeMember(tmp_path / f"m-{name}").predict(data, "oof"))
    assert result[1]["prediction"] - 1.7e12 == pytest.approx(result[0]["prediction"], abs=0.05)
    assert np.corrcoef(result[0]["prediction"], result[0]["target"])[0, 1] > 0.7
    assert len(folders.read_json(tmp_path / "m-large" / "summary.json")["scalings"]) == 3


def test_a_copy_whose_targets_need_no_scale_keeps_its_place(library: str, tmp_path: Path) -> None:
    """The predictions of each copy would be multiplied by the scale of another one."""
    group = pl.int_range(NUM_ROWS) % 6
    frame = frame_of("regression").with_columns(shop=group, y=pl.when(group == 0).then("y").otherwise(pl.col("y") * 0))
    data = prepared_of(tmp_path, frame, group="shop", drop=("day",))
    if library == "catboost":
        with pytest.raises(CannotLearn):  # it refuses rows whose targets are all equal
            train.train(config_of(library, data, tmp_path / "m"))
        return
    train.train(config_of(library, data, tmp_path / "m"))
    scalings = [scaling for _, scaling in models_of(tmp_path / "m")]
    target = rows_of(data).column("target")
    learned = [target[np.union1d(fold.fit, fold.stop)] for fold in folds_of(data)]
    assert [scaling.is_identity for scaling in scalings] == [not values.any() for values in learned]
    assert sorted(values.any() for values in learned) == [False, True, True]
    assert np.isfinite(TreeMember(tmp_path / "m").predict(data, "forecast")["prediction"]).all()


@pytest.mark.parametrize("number", [1, 2])
def test_a_class_of_few_rows_has_its_column(number: int, library: str, tmp_path: Path) -> None:
    """A copy without a row of a class would give fewer probabilities, or those of other classes."""
    is_rare = pl.int_range(NUM_ROWS) < number
    frame = frame_of("multiclass").with_columns(y=pl.when(is_rare).then(pl.lit("zero")).otherwise("y"))
    data = prepared_of(tmp_path, frame, drop=("day",))
    assert folders.read_manifest(data)["task"]["classes"] == ["high", "low", "mid", "zero"]
    train.train(config_of(library, data, tmp_path / "m"))
    result = TreeMember(tmp_path / "m").predict(data, "oof")
    assert result["prediction"].shape == (NUM_LABELLED, 4)
    assert result["prediction"].sum(axis=1) == pytest.approx(1)
    assert (result["prediction"].argmax(axis=1) == result["target"]).mean() > 0.6


@pytest.mark.parametrize("what", ["target", "features"])
def test_rows_that_a_library_refuses_have_an_error_message(what: str, library: str, tmp_path: Path) -> None:
    """A fold without a yes, or without a feature that varies, would end the whole fit with a library's traceback."""
    frame = pl.DataFrame(
        {
            "x": np.arange(60) % 7 if what == "target" else np.arange(60) == 5,
            "g": np.arange(60) // 4,
            "y": np.where(np.arange(60) // 4 == 3, "yes", "no") if what == "target" else np.sin(np.arange(60)),
        }
    )
    data = prepared_of(tmp_path, frame, group="g", num_folds=0)
    out, taken = tmp_path / "m", {"xgboost", "extra_trees", "linear"} | ({"lightgbm"} if what == "target" else set())
    if library in taken:
        assert train.train(config_of(library, data, out))["status"] == "done"
        assert np.isfinite(TreeMember(out).predict(data, "oof")["prediction"]).all()
        return
    with pytest.raises(CannotLearn, match=rf"^{library} cannot learn from the rows of \S+ \([^\n]+\): leave it out$"):
        train.train(config_of(library, data, out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.parquet"]


# ------------------------------------------------------------------------------------------------ time


def test_few_rows_of_many_categories_are_learned(tmp_path: Path) -> None:
    """The member would predict the mean, since by default LightGBM ignores categories of fewer than 100 rows."""
    generator = np.random.default_rng(0)
    kind, value = generator.integers(0, 8, 400), generator.normal(size=8)
    frame = pl.DataFrame({"kind": [f"k{number}" for number in kind], "y": value[kind] + generator.normal(0, 0.1, 400)})
    data = prepared_of(tmp_path, frame)
    summary = train.train(config_of("lightgbm", data, tmp_path / "m", num_rounds=60, learning_rate=0.2))
    assert summary["validation_root_mean_squared_error"] < 0.5 * np.std(value[kind])


def test_a_time_limit_ends_a_training_with_a_valid_member(library: str, data_of: Any, tmp_path: Path) -> None:
    """A fit would take twice its time, or a member would be missing."""
    data = data_of("binary")
    summary = train.train(config_of(library, data, tmp_path / "m", max_seconds=1e-9, num_rounds=5000))
    most = linear.LEAST_CANDIDATES if library == "linear" else SETTINGS["chunk_rounds"]
    assert summary.get("trees", summary.get("candidate")) <= most
    result = TreeMember(tmp_path / "m").predict(data, "oof")
    assert len(result["row_id"]) == NUM_LABELLED
    assert np.ptp(result["prediction"]) > 0


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_a_short_time_raises_the_learning_rate(
    library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trees that fit into the time would underfit, or the summary would not contain the learning rate."""
    pytest.importorskip(library)
    monkeypatch.setattr(copies, "rate_in_time", lambda rate, of_a_tree, left: 0.9)
    config = config_of(library, data_of("binary"), tmp_path / "short", max_seconds=600.0, early_stopping_rounds=1000)
    short = train.train(config)
    assert short["learning_rate"] == 0.9
    config = config_of(library, data_of("binary"), tmp_path / "same", learning_rate=0.9, early_stopping_rounds=1000)
    same = train.train(config)
    assert "learning_rate" not in same
    assert content(tmp_path / "short") == content(tmp_path / "same")


def test_a_resumed_training_keeps_the_higher_learning_rate(
    data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later trees, and all trees that are trained again, would have the lower rate of the settings and underfit."""
    monkeypatch.setattr(copies, "rate_in_time", lambda rate, of_a_tree, left: 0.9)
    whole, again = (
        config_of("lightgbm", data_of("binary"), tmp_path / name, max_seconds=600.0, early_stopping_rounds=1000)
        for name in ("whole", "again")
    )
    train.train(whole)
    interrupt(again, 3)  # the first checkpoint is that of the lower rate
    assert train.train(again, "auto")["learning_rate"] == 0.9
    assert content(tmp_path / "again") == content(tmp_path / "whole")
    assert train.train(again, "auto")["learning_rate"] == 0.9


def test_the_rate_follows_from_the_time() -> None:
    """The rate would not rise if there is time for 100 of 400 trees, or it would rise without need."""
    assert copies.rate_in_time(0.05, 1.0, 100.0) == pytest.approx(0.2)
    assert copies.rate_in_time(0.05, 1.0, 1e6) == 0.05
    assert copies.rate_in_time(0.05, 1.0, 1.0) == copies.HIGHEST_RATE


def test_copies_are_not_trained_again_without_time(data_of: Any, tmp_path: Path) -> None:
    """The second training, which takes as long as the first, would end long after the limit."""
    data = data_of("regression")
    for num_chunks in (1, 2):
        num_trees = [0]
        training = Training(
            on_chunk=lambda history, trees=num_trees: trees.append(len(history)),
            seconds_left=lambda trees=num_trees, num=num_chunks: 100.0 * (trees[-1] < num * SETTINGS["chunk_rounds"]),
        )
        config = config_of("xgboost", data, early_stopping_rounds=1000, num_rounds=1000)
        result = copies.train(library_module("xgboost"), config, rows_of(data), folds_of(data), training, False)
        # The time is over when a chunk begins, and is asked for after each round
        assert len(result.history) == num_chunks * SETTINGS["chunk_rounds"] + 1
        once = dataclasses.replace(config, regrow=False, num_rounds=len(result.history))
        expected = copies.train(library_module("xgboost"), once, rows_of(data), folds_of(data), Training(), False)
        assert result.out_of_fold
        assert expected.out_of_fold
        assert np.array_equal(result.out_of_fold["prediction"], expected.out_of_fold["prediction"])


def test_time_is_kept_for_the_training_on_all_rows(data_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With folds forward in time a fit would exceed its limit by a third training, for which no time was reserved."""
    data, num_trees = data_of("regression"), []
    config = config_of("xgboost", data, early_stopping_rounds=1000, num_rounds=1000)
    for is_forward in (False, True):
        now = [0.0]
        monkeypatch.setattr(copies, "time", types.SimpleNamespace(monotonic=lambda now=now: now[0]))
        training = Training(
            on_chunk=lambda history, now=now: now.__setitem__(0, float(len(history))),  # a second for each tree
            seconds_left=lambda now=now: 300.0 - now[0],
        )
        result = copies.train(library_module("xgboost"), config, rows_of(data), folds_of(data), training, is_forward)
        num_trees.append(len(result.history))
    assert num_trees[1] < num_trees[0] < 300


# ------------------------------------------------------------------------------------------------ the member


@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_get_the_mean_of_the_copies(
    kind: str, library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows would be predicted by one copy, or on another scale than the held-out rows."""
    data = data_of(kind)
    train.train(config_of(library, data, tmp_path / "m"))
    files = sorted(path.name for path in (tmp_path / "m").glob("model*"))
    module = library_module(library)
    assert files == predict.model_files(module.FILE, 3)
    monkeypatch.setattr(threads, "configure", lambda requested=0, quiet=False: 1)  # which other tests have done
    loaded = members.load(tmp_path / "m", data, 1)
    result = loaded.predict(data, "forecast")
    member = TreeMember(tmp_path / "m")
    features = rows_of(data, "forecast").matrix()
    each = [scaling.value(module.predict(model, features)) for model, scaling in models_of(tmp_path / "m")]
    assert np.array_equal(result["prediction"], average_predictions(result["output"], each))
    assert (np.min(each, axis=0) - 2e-7 <= result["prediction"]).all() or kind == "multiclass"
    assert any(result["reasons"])
    file = member.write_contributions(data, "forecast", "mine", tmp_path)
    total = pq.read_table(file).drop_columns(["row_id"]).to_pandas().sum(axis=1).to_numpy()
    if kind != "multiclass":
        shown = {"binary": lambda odds: 1 / (1 + np.exp(-odds))}.get(kind, lambda value: value)(total)
        assert shown == pytest.approx(result["prediction"], rel=1e-4, abs=2e-7)
    out = loaded.predict(data, "oof")
    assert sorted(out["row_id"]) == list(range(NUM_LABELLED))
    assert (
        out["target"].tolist()
        == rows_of(data).column("target")[np.argsort(rows_of(data).column("row_id"))][out["row_id"]].tolist()
    )


def test_the_mean_of_predictions() -> None:
    """The mean of probabilities would be no probability, or would differ from the sum of the contributions."""
    assert average_predictions("probability", [np.array([0.2]), np.array([0.8])]) == pytest.approx([0.5])
    assert average_predictions("probability", [np.array([0.0, 1.0])] * 2) == pytest.approx([0, 1], abs=1e-6)
    shares = average_predictions("probabilities", [np.array([[0.5, 0.5, 0.0]]), np.array([[0.5, 0.125, 0.375]])])
    assert shares[0, 0] / shares[0, 1] == pytest.approx(2)
    assert shares.sum() == pytest.approx(1)
    assert average_predictions("value", [np.array([1.0]), np.array([4.0])]) == pytest.approx([2.5])
    copies = np.random.default_rng(0).normal(size=(9, 50))  # the sum of a row must not depend on the number of rows
    one_by_one = [average_predictions("value", list(copies[:, row : row + 1]))[0] for row in range(50)]
    assert average_predictions("value", list(copies)).tolist() == one_by_one
    alone = np.array([0.0, 0.25])
    assert average_predictions("probability", [alone]) is alone


def test_a_class_that_one_copy_knows_is_predicted() -> None:
    """The copies whose rows lack the class, such as a species of one site, would rule it out for all new rows."""
    without = np.array([[0.6, 0.4, 1e-15]])
    shares = average_predictions("probabilities", [np.array([[0.02, 0.01, 0.97]]), *[without] * 4])
    assert shares[0, 2] == pytest.approx(0.047, abs=0.001)
    chance = average_predictions("probability", [np.array([0.7, 0.3]), *[np.array([1e-15, 1 - 1e-15])] * 4])
    assert chance == pytest.approx([0.021, 0.979], abs=0.002)


def test_forward_in_time_new_rows_are_predicted_by_a_model_of_all_rows(
    library: str, data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest rows, which are most similar to new ones, would not be learned; or the first rows would be predicted."""
    data, module = data_of("regression", True), pinned(library, monkeypatch)
    last = folds_of(data)[-1].held
    config = config_of(library, data)
    actual = []
    for rows in (rows_of(data), with_changed_rows(data, tmp_path, last)):
        result = copies.train(module, config, rows, folds_of(data), Training(), True)
        assert len(result.models) == 1
        actual.append(
            result.models[0].scaling.value(module.predict(result.models[0].booster, next(rows_of(data).batches())))
        )
        assert result.out_of_fold
        fold = rows.column("fold")[np.isin(rows.column("row_id"), result.out_of_fold["row_id"])]
        assert set(fold) == {0, 1, 2}
    assert not np.array_equal(actual[0], actual[1])
    several = copies.train(
        module, dataclasses.replace(config, refit=True, num_refits=2), rows_of(data), folds_of(data), Training(), True
    )
    assert len(several.models) == 2
    (mine, other) = (module.predict(model.booster, next(rows_of(data).batches())) for model in several.models)
    assert np.array_equal(mine, other) == (library in ("extra_trees", "linear"))  # leaves of one row repeat its target
