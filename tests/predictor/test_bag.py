"""Bags: out-of-fold predictions by the copy that was not trained on the row, and forecasts as the mean of copies."""

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folded import content, prepare_changed
from launcher import ACCELERATE, PREDICT, ROOT, SINGLE_CPU, TRAIN, run, started
from sklearn.metrics import average_precision_score

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictor import bag, new_data
from ensemble.predictor import fit as predictor
from ensemble.predictor.loaded import Worker
from ensemble.recipes.hot_sellers import baselines
from ensemble.report import commands, page
from ensemble.report import run as report_run
from ensemble.trees import bagging as tree_bag
from ensemble.trees import threads, train
from ensemble.trees.predict import TreeMember
from ensemble.trees.settings import SearchConfig, TreesConfig

TREES = str(ROOT / "scripts/train_trees.py")
NUM_FOLDS = 4


@pytest.fixture(scope="module", autouse=True)
def openmp() -> None:
    """Load OpenMP, as `threads.configure` does in a script."""
    threads.provide_openmp()


def config(data: Path, out: Path, **settings: Any) -> TreesConfig:
    values = {"num_rounds": 25, "early_stopping_rounds": 25, "learning_rate": 0.3, "threads": 1, "folds": True}
    values["min_leaf_weight"] = 10.0  # with smaller leaves, the rows of the first folds are fitted by chance
    return TreesConfig(library="xgboost", data=str(data), out=str(out), **{**values, **settings})


def load_copy(copy: Path) -> bag.Predict:
    return TreeMember(copy).predict


@pytest.fixture(scope="module")
def trained(folded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bag; tests damage copies of it only."""
    out = tmp_path_factory.mktemp("bag") / "xgboost"
    assert tree_bag.train(config(folded, out))["status"] == "done"
    return out


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "bag"))


# ------------------------------------------------------------------------------------------------ predictions of a bag


def test_out_of_fold_predictions_are_by_the_copy_of_the_fold(trained: Path, folded: Path) -> None:
    """A row would be predicted by a copy that learned from it, or under the name of other data."""
    columns = bag.load(trained, load_copy)(folded, "oof")
    parts = [TreeMember(trained / str(k)).predict(folded / f"folds/{k}", "blend") for k in range(NUM_FOLDS)]
    for name in bag.COLUMNS:
        assert np.array_equal(columns[name], np.concatenate([part[name] for part in parts]))
    assert len(np.unique(columns["row_id"])) == len(columns["row_id"])
    assert columns["fingerprint"] == folders.read_manifest(folded)["fingerprint"]
    assert columns["config"]["model"] == bag.model_fingerprint(trained)
    target_of = dict(zip(columns["row_id"].tolist(), columns["target"].tolist(), strict=True))
    blend = open_table(folded / "rows/blend")
    assert blend["hot"].to_pylist() == [target_of[row] for row in blend["row_id"].to_pylist()]


@pytest.mark.parametrize("split", ["test", "forecast"])
def test_other_splits_are_the_mean_of_the_later_copies(trained: Path, folded: Path, split: str) -> None:
    """The first copies, which have few training rows, would spoil the forecast, or its reasons would be those of no copy."""
    columns = bag.load(trained, load_copy)(folded, split)
    parts = [TreeMember(trained / str(k)).predict(folded / f"folds/{k}", split) for k in (2, 3, 4)]
    np.testing.assert_allclose(columns["prediction"], np.mean([part["prediction"] for part in parts], axis=0), rtol=1e-12)
    table = open_table(folded / "rows" / split)
    assert np.array_equal(columns["row_id"], table["row_id"].to_numpy())
    assert columns["fingerprint"] == folders.read_manifest(folded)["fingerprint"]
    assert columns["reasons"] == parts[-1]["reasons"]


def test_a_baseline_predicts_all_blocks(folded: Path, prepared: Path) -> None:
    """A baseline could not be compared with bags."""
    predict = bag.with_out_of_fold(baselines.predict)
    columns = predict(folded, "oof")
    first, *_ = (baselines.predict(folded / f"folds/{k}", "blend") for k in range(NUM_FOLDS))
    assert np.array_equal(columns["prediction"][: len(first["prediction"])], first["prediction"])
    assert len(columns["row_id"]) == sum(len(content(folded / f"folds/{k}", "blend")) for k in range(NUM_FOLDS))
    assert np.array_equal(predict(folded, "test")["prediction"], baselines.predict(folded, "test")["prediction"])
    with pytest.raises(UserError, match="has 0 folds, so a baseline has no out-of-fold rows: leave the split oof out"):
        predict(prepared, "oof")


def test_a_single_member_is_no_bag(trained: Path, folded: Path) -> None:
    """One member in a folder would be taken for a bag of one."""
    assert bag.copies(trained / "1") == [trained / "1"]
    alone = bag.load(trained / "1", load_copy)(folded / "folds/1", "blend")
    assert np.array_equal(alone["prediction"], TreeMember(trained / "1").predict(folded / "folds/1", "blend")["prediction"])
    assert bag.kind_of(trained / "1") == bag.kind_of(trained) == "xgboost"
    assert bag.model_fingerprint(trained / "1") == folders.read_json(trained / "1/manifest.json")["fingerprint"]


def test_a_bag_is_not_exported(trained: Path, tmp_path: Path) -> None:
    """The message would say that a manifest is missing, of which the user has not heard."""
    words = [sys.executable, ROOT / "scripts/export_model.py", f"member={trained}", "out=bag.onnx"]
    code, errors = run(words, tmp_path)
    assert code == 2
    rule = f"{trained} is a bag of {NUM_FOLDS + 1} models, and an exported file holds one"
    assert errors == f"error: {rule}: name one of its folders, such as member={trained}/{NUM_FOLDS}\n"


# ------------------------------------------------------------------------------------------------ no leak


def test_later_data_change_no_earlier_prediction(
    trained: Path, folded: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """A copy would have learned from data after the rows that it forecasts, and its weight would be too large."""
    after = open_table(folded / "folds/1/rows/blend")["week"].to_numpy().max()
    changed = prepare_changed(folded, raw_market, tmp_path / "changed", after=after)
    tree_bag.train(config(changed, tmp_path / "bag"))

    def predictions_of(member: Path, data: Path) -> dict[tuple[str, int], bytes]:
        ids = open_table(data / "products")["product_id"].to_pylist()
        columns = bag.load(member, load_copy)(data, "oof")
        rows = zip(columns["cluster"].tolist(), columns["group"].tolist(), columns["prediction"], strict=True)
        return {(ids[product], week): value.tobytes() for product, week, value in rows}

    before, after_change = predictions_of(trained, folded), predictions_of(tmp_path / "bag", changed)
    known = [key for key in before if key[1] <= after]
    assert len(known) > 1000
    assert {key: before[key] for key in known} == {key: after_change[key] for key in known}
    assert before != after_change, "nothing was changed"


def test_from_shuffled_labels_nothing_is_learned(folded: Path, trained: Path, tmp_path: Path) -> None:
    """A copy that learned from its own block would predict even random labels."""
    data = Path(shutil.copytree(folded, tmp_path / "data"))
    manifest = folders.read_manifest(data)
    for number, entry in enumerate(manifest["folds"]):
        fold = data / f"folds/{number}"
        for file in sorted(fold.glob("rows/*/*.arrow")):
            with pa.OSFile(str(file)) as source:
                table = pa.ipc.open_stream(source).read_all()
            week, hot = table["week"].to_numpy(), table["hot"].to_numpy().copy()
            for each in np.unique(week):
                hot[week == each] = np.random.default_rng(each).permutation(hot[week == each])  # alike in all folds
            table = table.set_column(table.column_names.index("hot"), "hot", pa.array(hot))
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        manifest_of_fold = folders.read_json(fold / "manifest.json")
        (fold / "manifest.json").unlink()
        rest = {name: value for name, value in manifest_of_fold.items() if name not in ("files", "fingerprint")}
        entry["fingerprint"] = folders.write_manifest(fold, rest)["fingerprint"]
    (data / "manifest.json").unlink()
    rest = {name: value for name, value in manifest.items() if name not in ("files", "fingerprint")}
    folders.write_manifest(data, rest, leave_out="folds")
    tree_bag.train(config(data, tmp_path / "bag"))

    def above_chance(member: Path, data: Path) -> float:
        columns = bag.load(member, load_copy)(data, "oof")
        return float(average_precision_score(columns["target"], columns["prediction"]) - columns["target"].mean())

    assert above_chance(tmp_path / "bag", data) < 0.02
    assert above_chance(trained, folded) > 0.04, "this test could not fail"


# ------------------------------------------------------------------------------------------------ what is refused


def test_copies_of_other_folds_are_refused(copied: Path, folded: Path, prepared: Path, tmp_path: Path) -> None:
    """A copy would predict weeks that it learned from."""
    with pytest.raises(
        UserError, match=r"copies of the bag .* were trained on rows of blend: predict oof, test or forecast"
    ):
        bag.load(copied, load_copy)(folded, "blend")
    with pytest.raises(UserError, match=r"the bag has 5 copies, but .* has 0 folds: name the data whose folds"):
        bag.load(copied, load_copy)(prepared, "oof")
    forecast = bag.load(copied, load_copy)(prepared, "forecast")  # no copy was trained on these rows
    assert len(forecast["prediction"]) == folders.read_manifest(prepared)["splits"]["forecast"]["rows"]
    (copied / "1").rename(copied / "x")
    (copied / "2").rename(copied / "1")
    (copied / "x").rename(copied / "2")
    with pytest.raises(UserError, match="so its blend split may contain training rows"):
        bag.load(copied, load_copy)(folded, "oof")
    (copied / "1").rename(copied / "x")
    with pytest.raises(UserError, match=r"the bag .* has no copy 1: train it on folds/1 of the prepared data"):
        bag.load(copied, load_copy)
    shutil.rmtree(copied / "4")
    (copied / "x").rename(copied / "1")
    with pytest.raises(UserError, match=r"the bag has 4 copies, but .* has 5 folds"):
        bag.load(copied, load_copy)(folded, "test")
    with pytest.raises(UserError, match=r"has no folder `folds`, which folds=true needs"):
        tree_bag.train(config(prepared, tmp_path / "out"))
    with pytest.raises(UserError, match="folds=true does not search settings"):
        tree_bag.train(config(folded, tmp_path / "out", search=SearchConfig(trials=2)))
    assert not (tmp_path / "out").exists()


def test_the_name_of_a_bag_is_of_all_its_copies(copied: Path) -> None:
    """A copy trained anew after the ensemble was fitted would go unnoticed."""
    before = bag.model_fingerprint(copied)
    summary = folders.read_json(copied / "1/summary.json")
    folders.write_json(copied / "1/summary.json", {**summary, "kind": "xgboosu"})
    assert bag.kind_of(copied) is None
    with pytest.raises(UserError, match="was changed after it was written"):
        bag.model_fingerprint(copied)
    (copied / "1/manifest.json").unlink()
    folders.write_manifest(copied / "1", {"kind": "tree member"})
    assert bag.model_fingerprint(copied) != before
    assert bag.model_fingerprint(copied / "nowhere") is None


def test_copies_of_an_earlier_bag_do_not_predict(copied: Path, folded: Path) -> None:
    """After a preparation with fewer folds, new rows would be predicted by copies of the earlier data too."""
    shutil.copytree(copied / "4", copied / "5")
    with pytest.raises(UserError, match=r"bag/5 is a copy of an earlier bag with more than the 5 folds of .*overwrite=true"):
        tree_bag.train(config(folded, copied))
    with pytest.raises(UserError, match="metric=speed does not score a binary task"):  # before anything is replaced
        tree_bag.train(config(folded, copied, overwrite=True, metric="speed"))
    assert (copied / "5/summary.json").exists()
    tree_bag.train(config(folded, copied, overwrite=True, num_rounds=2))
    assert sorted(path.name for path in copied.iterdir()) == ["0", "1", "2", "3", "4"]


# ------------------------------------------------------------------------------------------------ the scripts


def test_a_killed_bag_goes_on_with_the_next_copy(trained: Path, folded: Path, tmp_path: Path) -> None:
    """Hours of training would be lost, or the bag would differ from an uninterrupted one."""
    settings = config(folded, Path("bag"))
    names = ("num_rounds", "early_stopping_rounds", "learning_rate", "min_leaf_weight")
    words = [f"{name}={getattr(settings, name)}" for name in names]
    line = [sys.executable, TREES, f"data={folded}", "out=bag", "folds=true", "threads=1", *words]
    with started(line, tmp_path, tmp_path / "errors") as process:
        while not (tmp_path / "bag/1/summary.json").exists():
            assert process.poll() is None, (tmp_path / "errors").read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = (tmp_path / "bag/0/model.ubj").stat()
    code, output = run([*line, "--resume", "auto"], tmp_path)
    assert code == 0, output
    assert f"{tmp_path.name}" not in output
    assert "bag/0 is complete already" in output
    assert (tmp_path / "bag/0/model.ubj").stat() == before
    for number in range(NUM_FOLDS + 1):
        resumed, uninterrupted = (folder / f"{number}/model.ubj" for folder in (tmp_path / "bag", trained))
        assert resumed.read_bytes() == uninterrupted.read_bytes()


def test_a_signal_after_the_last_tree_of_a_copy_stops_the_bag(
    folded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would be killed while it writes the copy, or train the next one until Slurm kills it."""
    write_member = train.write_member

    def signalled(*arguments: Any) -> None:
        write_member(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train, "write_member", signalled)
    assert tree_bag.train(config(folded, tmp_path / "bag"))["status"] == "preempted"
    assert [path.name for path in (tmp_path / "bag").iterdir()] == ["0"]
    assert (tmp_path / "bag.checkpoint/status").read_text() == "preempted\n"


@pytest.fixture(scope="module")
def files(trained: Path, folded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prediction files of the bag and the baseline, written by the script."""
    folder = tmp_path_factory.mktemp("files")
    for member in (trained, "momentum"):
        code, output = run(
            [sys.executable, PREDICT, f"member={member}", f"data={folded}", f"out={folder}", "threads=1"], folder
        )
        assert code == 0, output
    return folder


def test_files_of_a_bag_are_those_of_any_member(files: Path, trained: Path, folded: Path, tmp_path: Path) -> None:
    """The ensemble could not read the predictions of a bag, or the service would give others than predict.py."""
    names = sorted(path.name for path in files.iterdir())
    expected = [f"momentum.{split}.parquet" for split in ("blend", "forecast", "oof", "test")]
    assert names == [*expected, *(f"xgboost.{split}.parquet" for split in ("forecast", "oof", "test"))]
    for split in ("oof", "test", "forecast"):
        both = [predictions.read(files / f"{name}.{split}.parquet") for name in ("momentum", "xgboost")]
        template, _ = predictions.align(both)
        assert template.fingerprint == folders.read_manifest(folded)["fingerprint"]
        assert both[1].config["kind"] == "xgboost"
        assert (both[1].config["folder"], both[1].config["model"]) == (str(trained), bag.model_fingerprint(trained))
    manifest = folders.read_manifest(folded)
    member = {"name": "xgboost", "folder": str(trained), "threads": 1}
    worker = Worker("xgboost", {"trusted": [], "manifest": manifest, **member})
    try:
        worker.wait()
        worker.run({"data": str(folded), "out": str(tmp_path / "served.parquet")})
    finally:
        worker.end()
    served = predictions.read(tmp_path / "served.parquet")
    assert np.array_equal(served.prediction, both[1].prediction)


def test_an_ensemble_of_bags_needs_no_blend(
    files: Path, trained: Path, folded: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """An ensemble of bags could not be fitted without blend, could not predict new reviews, or would have no report."""
    scores = predictor.fit(files, folded, tmp_path / "ensemble", num_draws=2, on="oof")
    assert scores["members"] == ["xgboost"]
    source, metadata = ((str(file),) for file in raw_market)
    new_data.predict(tmp_path / "ensemble", source, metadata, tmp_path / "new", {})
    of_new, of_old = (pq.read_table(tmp_path / f"{name}/forecast.parquet") for name in ("new", "ensemble"))
    assert of_new.drop_columns(["reasons"]).equals(of_old.drop_columns(["reasons"]))
    assert of_old.num_rows > 50
    run_of_page = report_run.read(tmp_path / "ensemble", folded, files)
    (member,) = run_of_page.members
    copies = [folders.read_json(trained / f"{number}/summary.json") for number in range(NUM_FOLDS + 1)]
    assert member.summary == {**copies[-1], "seconds": sum(copy["seconds"] for copy in copies)}
    written = commands.commands(run_of_page)
    assert sum(f"data={folded}/folds/" in line for line in written) == NUM_FOLDS + 1
    assert "on=oof" in written[-2]
    assert "xgboost" in page.render(run_of_page)


def test_an_ensemble_of_bags_is_told_to_be_fitted_on_their_rows(files: Path, folded: Path, tmp_path: Path) -> None:
    """Only baselines predict blend too, so the advice would be to train a member, although there is one."""
    with pytest.raises(UserError, match="only baselines, but xgboost predicted oof: add on=oof"):
        predictor.fit(files, folded, tmp_path / "ensemble", num_draws=2)


def test_neural_copies_make_a_bag(folded: Path, tmp_path: Path) -> None:
    """Networks could not be trained on folds, or would be normalised with statistics of later data."""
    from ensemble.recipes.hot_sellers import training
    from ensemble.recipes.hot_sellers.settings import RecipeConfig

    for folder in (folded / "folds/0", folded / "folds/2"):
        recipe = training.make(RecipeConfig(), str(folder))
        mean, _, base_rate = recipe.statistics()
        rows = open_table(folder / "rows/train")
        growth = rows["growth_4w"].to_numpy().astype(np.float64)
        names = [feature["name"] for feature in recipe.manifest["features"] if feature["name"] != "category"]
        signed = np.sign(growth) * np.log1p(np.abs(growth))
        assert mean[names.index("growth_4w")].item() == pytest.approx(signed[np.isfinite(signed)].mean(), rel=1e-5)
        assert base_rate == pytest.approx(rows["hot"].to_numpy().mean(), rel=1e-5)
    tiny = ["max_epochs=0.2", "recipe.width=8", "recipe.num_layers=1", "recipe.num_reviews=0", "batch_size=128"]
    line = [*ACCELERATE, "--quiet", *SINGLE_CPU, TRAIN, f"data={folded}/folds/0", "out=bag/0", *tiny]
    code, output = run(line, tmp_path)
    assert code == 0, output
    for number in range(1, NUM_FOLDS + 1):  # any weights do, but each copy must be of its own fold
        shutil.copytree(tmp_path / "bag/0", tmp_path / f"bag/{number}")
        best = tmp_path / f"bag/{number}/best"
        state = folders.read_json(best / "state.json")
        fingerprint = folders.read_manifest(folded / f"folds/{number}")["fingerprint"]
        folders.write_json(best / "state.json", {**state, "fingerprint": fingerprint})
        manifest = folders.read_json(best / "manifest.json")
        (best / "manifest.json").unlink()
        folders.write_manifest(best, {name: manifest[name] for name in manifest if name not in ("files", "fingerprint")})
    code, output = run(
        [sys.executable, PREDICT, "member=bag", f"data={folded}", "out=predictions", "splits=[oof,forecast]"], tmp_path
    )
    assert code == 0, output
    columns = predictions.read(tmp_path / "predictions/bag.oof.parquet")
    assert sorted(columns.row_id) == sorted(
        row for k in range(NUM_FOLDS) for row in open_table(folded / f"folds/{k}/rows/blend")["row_id"].to_pylist()
    )
    assert columns.config["kind"] == "neural"
    forecast = predictions.read(tmp_path / "predictions/bag.forecast.parquet")
    assert len(forecast.row_id) == folders.read_manifest(folded)["splits"]["forecast"]["rows"]
