"""The ensemble predictor: what it refuses before it writes, what it writes, and a forecast from new raw reviews."""

import csv
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensemble import combine, predictions, predictor
from ensemble.combine import weights
from ensemble.data import baseline, manifest
from ensemble.data.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictions import Predictions

ROOT = Path(__file__).resolve().parents[1]
SPLITS = ("blend", "test", "forecast")
REASONS = [{"feature": "reviews_4w", "value": 7.0, "contribution": 0.5}]


def synthetic(data: Path, name: str, split: str, noise: float, seed: int) -> Predictions:
    """A member that knows the truth but for so much noise; rows come in an order of its own."""
    rows = baseline.predict(data, split)
    generator = np.random.default_rng([seed, SPLITS.index(split)])
    target = np.nan_to_num(rows["target"])
    logit = 2 * target - 3 + noise * generator.normal(size=len(target))
    rows |= {"prediction": 1 / (1 + np.exp(-logit)), "config": {"kind": "xgboost", "folder": f"/nowhere/{name}"}}
    order = generator.permutation(len(target))
    arrays = {key: rows[key][order] for key in predictions.COLUMNS}
    reasons = [REASONS for _ in order] if split == "forecast" and name == "clear" else None
    return Predictions(**{**rows, **arrays}, split=split, member=name, reasons=reasons)


@pytest.fixture(scope="module")
def files(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prediction files of two members and the baseline; whoever wants to change them copies the folder."""
    folder = tmp_path_factory.mktemp("predictions")
    for split in SPLITS:
        for number, (name, noise) in enumerate({"clear": 0.7, "vague": 2.0}.items()):
            predictions.write(folder / f"{name}.{split}.parquet", synthetic(prepared, name, split, noise, number))
        momentum = Predictions(**baseline.predict(prepared, split), split=split, member="momentum")
        predictions.write(folder / f"momentum.{split}.parquet", momentum)
    return folder


@pytest.fixture
def copied(files: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(files, tmp_path / "predictions"))


def fit(files: Path, prepared: Path, out: Path, **settings: Any) -> dict[str, Any]:
    return predictor.fit(files, prepared, out, num_draws=20, **settings)


def change(path: Path, **changed: Any) -> None:
    """Rewrite a prediction file with other values, without the checks of `predictions.write`."""
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[predictions.KEY])
    for name, value in changed.items():
        if name in predictions.COLUMNS:
            kind = predictions.COLUMNS[name]
            table = table.set_column(table.column_names.index(name), name, pa.array(value, kind))
        else:
            about[name] = value
    pq.write_table(table.replace_schema_metadata({predictions.KEY: json.dumps(about).encode()}), path)


# What is written


def test_the_ensemble_leaves_its_files(files: Path, prepared: Path, tmp_path: Path) -> None:
    """A later stage would find something missing, or a score that is not in the file."""
    scores = fit(files, prepared, tmp_path / "ensemble")
    names = {
        "ensemble.json",
        "scores.json",
        "like.json",
        "test.parquet",
        "forecast.parquet",
        "forecast.csv",
        "README.md",
        "manifest.json",
    }
    assert {path.name for path in (tmp_path / "ensemble").iterdir()} == names
    manifest.verify(tmp_path / "ensemble")
    assert json.loads((tmp_path / "ensemble/scores.json").read_text()) == scores
    assert scores["members"] == ["clear", "vague"]
    assert set(scores["scores"]) == {"ensemble", "clear", "vague", "momentum", "base rate"}
    assert set(scores["weights"]) == {"clear", "vague"}
    value = {name: of["average_precision"]["value"] for name, of in scores["scores"].items()}
    assert value["ensemble"] > value["vague"] > value["base rate"]
    assert value["base rate"] == pytest.approx(scores["base_rate"])
    test = predictions.read(tmp_path / "ensemble/test.parquet")
    assert (test.member, test.split) == ("ensemble", "test")
    assert np.array_equal(np.sort(test.row_id), np.sort(baseline.predict(prepared, "test")["row_id"]))


def test_parquet_and_csv_hold_one_ranked_forecast(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The two would disagree, the best product not stand first, or a title stand beside another product's probability."""
    fit(files, prepared, tmp_path / "ensemble")
    table = pq.read_table(tmp_path / "ensemble/forecast.parquet")
    about = manifest.read_manifest(prepared)
    assert table.schema.metadata == {b"week": about["last_week"].encode(), b"horizon_weeks": b"12"}
    rows = table.to_pylist()
    assert [row["rank"] for row in rows] == list(range(1, about["splits"]["forecast"]["rows"] + 1))
    assert all(above["probability"] >= below["probability"] for above, below in itertools.pairwise(rows))
    assert rows[0]["probability"] > rows[-1]["probability"]
    products = open_table(prepared / "products").to_pylist()
    forecast = predictions.read(files / "clear.forecast.parquet")
    by_product = dict(zip(forecast.cluster.tolist(), forecast.prediction.tolist(), strict=True))
    number = {product["product_id"]: row for row, product in enumerate(products)}
    for row in rows:
        product = products[number[row["product_id"]]]
        assert (row["title"], row["category"]) == (product["title"], about["categories"][product["category"]])
        assert row["clear"] == by_product[number[row["product_id"]]]
        assert row["reasons"] == REASONS
    with open(tmp_path / "ensemble/forecast.csv", newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    for row, line in zip(rows, lines, strict=True):
        assert [line["rank"], line["product_id"], line["title"]] == [str(row["rank"]), row["product_id"], row["title"] or ""]
        assert [float(line[name]) for name in ("probability", "clear", "vague")] == [
            row[name] for name in ("probability", "clear", "vague")
        ]
        assert line["why"] == "reviews_4w = 7"


def test_titles_of_any_kind_pass_through_the_csv(files: Path, prepared: Path, tmp_path: Path) -> None:
    """A comma, a quote or a line break in a title would move every column behind it."""
    strange = 'a "quoted", title;\nwith two lines – and ünïcode'
    products = open_table(prepared / "products")
    column = products.column_names.index("title")
    changed = products.set_column(column, "title", pa.array([strange] * products.num_rows, pa.large_string()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "open_table", lambda folder: changed)
        fit(files, prepared, tmp_path / "ensemble")
    with open(tmp_path / "ensemble/forecast.csv", newline="", encoding="utf-8") as stream:
        assert {line["title"] for line in csv.DictReader(stream)} == {strange}


def test_the_order_of_members_does_not_matter(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The forecast would depend on how the command was typed."""
    found = []
    for number, members in enumerate([("clear", "vague", "momentum"), ("momentum", "vague", "clear"), ()]):
        scores = fit(files, prepared, tmp_path / str(number), members=members)
        found.append((scores, (tmp_path / str(number) / "forecast.csv").read_bytes()))
    assert found[0] == found[1] == found[2]


def test_what_tells_which_member_to_drop_is_written(files: Path, prepared: Path, tmp_path: Path) -> None:
    """The user would have weights, and nothing to judge a member by; or weeks and categories that do not add up."""
    scores = fit(files, prepared, tmp_path / "ensemble", combiner="greedy")
    description = manifest.read_json(tmp_path / "ensemble" / "ensemble.json")
    assert description["combiner"]["method"] == scores["combiner"]["method"] == "greedy"
    assert {*weights.COMBINERS["binary"], "auto"} == set(scores["combiner"]["cross_fitted"])
    found = description["diversity"]
    for part in ("by_week", "by_category"):
        assert sum(of["rows"] for of in found[part].values()) == scores["rows"]
    assert set(found["by_category"]) <= {name or "unknown" for name in manifest.read_manifest(prepared)["categories"]}
    assert len(found["by_week"]) == scores["weeks"]
    assert set(found["drift"]["log_loss"]) == {"ensemble", "clear", "vague"}
    assert found["without"]["clear"]["log_loss"] > found["without"]["vague"]["log_loss"]
    assert found["weights"]["clear"]["low"] > found["weights"]["vague"]["high"]


def test_a_foreign_member_of_any_scale_joins(copied: Path, prepared: Path, tmp_path: Path) -> None:
    """A model that ranks by margins would be refused, or its margins be shown as probabilities."""
    for split in SPLITS:
        path = copied / f"vague.{split}.parquet"
        margin = 1000 * pq.read_table(path)["prediction"].to_numpy() - 300
        change(path, prediction=margin, output="score", config={})
    scores = fit(copied, prepared, tmp_path / "ensemble")
    assert scores["scores"]["vague"]["log_loss"]["value"] < scores["scores"]["base rate"]["log_loss"]["value"]
    shown = pq.read_table(tmp_path / "ensemble" / "forecast.parquet")["vague"].to_numpy()
    assert 0 < shown.min() < shown.max() < 1
    change(copied / "vague.test.parquet", output="probability")
    with pytest.raises(UserError, match="member vague says a probability on test, and a score on another split"):
        fit(copied, prepared, tmp_path / "again")


def test_a_test_split_changes_nothing_that_is_fitted(copied: Path, prepared: Path, tmp_path: Path) -> None:
    """Weights, or the choice between them, would be tuned to the rows that the score is reported on."""
    fit(copied, prepared, tmp_path / "before")
    for path in copied.glob("*.test.parquet"):
        table = pq.read_table(path)
        change(path, target=1 - table["target"].to_numpy(), prediction=table["prediction"].to_numpy() ** 2)
    fit(copied, prepared, tmp_path / "after")
    before, after = (manifest.read_json(tmp_path / name / "ensemble.json") for name in ("before", "after"))
    assert before["combiner"] == after["combiner"]
    for part in ("error_correlation", "without", "weights"):
        assert before["diversity"][part] == after["diversity"][part]
    assert before["diversity"]["by_week"] != after["diversity"]["by_week"]


def test_only_the_named_members_take_part(files: Path, prepared: Path, tmp_path: Path) -> None:
    """members=[…] would be ignored."""
    scores = fit(files, prepared, tmp_path / "ensemble", members=("vague",))
    assert scores["weights"] == {"vague": 1.0}
    assert "clear" not in pq.read_table(tmp_path / "ensemble/forecast.parquet").column_names


# What is refused

Damage = Callable[[Path], Any]


def every_test_file(**changed: Any) -> Damage:
    """The same change for all members, so that they still agree with each other."""
    return lambda folder: [change(path, **changed) for path in folder.glob("*.test.parquet")]


def of_vague(split: str, name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """One column of one member's file."""

    def damage(folder: Path) -> None:
        path = folder / f"vague.{split}.parquet"
        change(path, **{name: edit(pq.read_table(path)[name].to_numpy().copy())})

    return damage


def remove(pattern: str) -> Damage:
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def rename(old: str, new: str) -> Damage:
    return lambda folder: [path.rename(folder / path.name.replace(old, new)) for path in folder.glob(f"{old}*")]


def second_is(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: np.concatenate([values[:1], [value], values[2:]]).astype(values.dtype)


def last_is_first(values: np.ndarray) -> np.ndarray:
    return np.append(values[:-1], values[0])


def cut(folder: Path) -> None:
    path = folder / "vague.test.parquet"
    pq.write_table(pq.read_table(path)[:-1], path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove("vague.test.parquet"), "vague.test.parquet does not exist: write it"),
        (remove("vague.forecast.parquet"), "vague.forecast.parquet does not exist: write it"),
        (lambda folder: (folder / "vague.test.parquet").write_bytes(b"PAR1"), "is not a sound Parquet file"),
        (remove("[cv]*"), "there is no member in .*, only baselines"),
        (remove("*"), "there are no prediction files in"),
        (of_vague("test", "prediction", second_is(np.nan)), "1 of .* predictions are NaN"),
        (of_vague("blend", "prediction", second_is(1.5)), "member 'vague' predicts 1.5 .*, which is no probability"),
        (of_vague("test", "row_id", last_is_first), "is predicted more than once"),
        (of_vague("test", "row_id", second_is(10**9)), "member vague lacks 1 of the rows of clear and has 1 others"),
        (cut, "member vague lacks 1 of the rows of clear and has 0 others"),
        (of_vague("test", "target", lambda target: 1 - target), "member vague has another target than clear"),
        (of_vague("test", "group", lambda week: week + 1), "member vague has another group than clear"),
        (of_vague("test", "cluster", lambda product: product + 1), "member vague has another cluster than clear"),
        (lambda folder: change(folder / "vague.blend.parquet", fingerprint="f0"), "predicted blend for data f0, but"),
        (every_test_file(fingerprint="f0"), "predicted test for data f0, but"),
        (
            lambda folder: shutil.copy(folder / "vague.test.parquet", folder / "vague.blend.parquet"),
            "vague.blend.parquet holds vague's predictions of test: name it vague.test.parquet",
        ),
        (rename("vague", "new"), "new.blend.parquet holds vague's predictions of blend: name it vague.blend.parquet"),
        (rename("vague", "rank"), "no member may be called 'rank'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    damage: Damage, sentence: str, copied: Path, prepared: Path, tmp_path: Path
) -> None:
    """An ensemble of forecasts for other data, rows or splits: its score would be wrong, and nobody would see why."""
    damage(copied)
    with pytest.raises(UserError, match=sentence) as raised:
        fit(copied, prepared, tmp_path / "ensemble")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"members": ("clear", "nobody")}, "nobody.blend.parquet does not exist: write it with scripts/predict.py"),
        ({"members": ("clear", "clear")}, "two members have one name in clear, clear"),
        ({"members": ("ensemble",)}, "no member may be called 'ensemble'"),
        ({"seed": -1}, "seed=-1 is impossible: it must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, Any], sentence: str, files: Path, prepared: Path, tmp_path: Path
) -> None:
    """A typo would end in a traceback, or in an ensemble of one member twice."""
    with pytest.raises(UserError, match=sentence):
        fit(files, prepared, tmp_path / "ensemble", **settings)
    with pytest.raises(UserError, match="num_draws=0 is impossible"):
        predictor.fit(files, prepared, tmp_path / "ensemble", num_draws=0)
    assert list(tmp_path.iterdir()) == []


def test_other_data_are_refused(files: Path, prepared_copy: Path, tmp_path: Path) -> None:
    """The forecast would name products of other data."""
    about = manifest.read_manifest(prepared_copy)
    (prepared_copy / manifest.NAME).unlink()
    manifest.write_manifest(prepared_copy, {**about, "first_week": "1999-01-04"})
    with pytest.raises(UserError, match=r"member clear predicted blend for data .*: predict again with this data"):
        fit(files, prepared_copy, tmp_path / "ensemble")


# From new raw reviews


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / f"scripts/{script}.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def fitted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with members/xgboost and an ensemble of it, all made by the scripts."""
    folder = tmp_path_factory.mktemp("fitted")
    data, files = f"data={prepared}", f"{folder}/predictions"
    for words in (
        ("train_trees", data, f"out={folder}/members/xgboost", "num_rounds=10"),
        ("predict", data, f"member={folder}/members/xgboost", f"out={files}"),
        ("predict", data, "member=momentum", f"out={files}"),
        ("ensemble_predictor", "fit", data, f"predictions={files}", f"out={folder}/ensemble", "num_draws=5"),
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    assert "momentum" in done.stdout
    return folder


def test_the_same_raw_reviews_give_the_same_forecast(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """New reviews would be prepared otherwise than those that the members learned from, and nobody would notice."""
    reviews, products = raw_market
    out = tmp_path / "new"
    done = run("ensemble_predictor", "predict", f"ensemble={fitted}/ensemble", f"source=[{reviews}]",
               f"metadata=[{products}]", f"out={out}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"the ranked forecast is in {out}/forecast.csv"
    expected, found = (pq.read_table(folder / "forecast.parquet") for folder in (fitted / "ensemble", out))
    assert found.schema.metadata == expected.schema.metadata
    assert str(found.to_pylist()) == str(expected.to_pylist())  # as text, for a NaN among the reasons equals none
    assert (out / "forecast.csv").read_bytes() == (fitted / "ensemble/forecast.csv").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_later_reviews_move_the_forecast(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """The forecast would be of a week that is long past."""
    reviews, products = raw_market
    lines = [json.loads(line) for line in reviews.read_text().splitlines()]
    four_weeks_ms = 28 * 24 * 3600 * 1000
    end_ms = max(line["timestamp"] for line in lines) - four_weeks_ms
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("".join(json.dumps(line) + "\n" for line in lines if line["timestamp"] <= end_ms))
    path = predictor.predict(fitted / "ensemble", (str(earlier),), (str(products),), tmp_path / "new", {})
    table = pq.read_table(path.with_suffix(".parquet"))
    before = pq.read_table(fitted / "ensemble/forecast.parquet")
    weeks = [np.datetime64(of.schema.metadata[b"week"].decode()) for of in (table, before)]
    assert weeks[1] - weeks[0] == np.timedelta64(28, "D")
    assert 0 < table["probability"].to_numpy().max() < 1


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("members/xgboost", None, "member xgboost of the ensemble is not at .*: put it back, or fit the ensemble again"),
        ("members/xgboost/model.ubj", "{", "xgboost/model.ubj has 1 bytes, not"),
        ("members/xgboost/summary.json", "[]", "xgboost/summary.json has 2 bytes, not"),
        ("ensemble/ensemble.json", None, "ensemble.json does not exist"),
        ("ensemble/ensemble.json", "{}", "ensemble.json has 2 bytes, not"),
        ("ensemble/like.json", "{", "like.json is damaged"),
        ("ensemble/manifest.json", None, "manifest.json does not exist"),
    ],
)
def test_a_damaged_ensemble_or_member_is_named(
    file: str, content: str | None, sentence: str, fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """A moved member would end in a traceback, after the new reviews were prepared for an hour."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    if content is not None:
        (folder / file).write_text(content)
    elif (folder / file).is_dir():
        shutil.rmtree(folder / file)
    else:
        (folder / file).unlink()
    with pytest.raises(UserError, match=sentence) as raised:
        predictor.predict(folder / "ensemble", (str(raw_market[0]),), (str(raw_market[1]),), tmp_path / "new", {})
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["fitted"]


def test_what_cannot_be_forecast_is_refused(
    fitted: Path, files: Path, prepared: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without reviews, or with a member of unknown origin, there is nothing to ask."""
    with pytest.raises(UserError, match=r"no reviews are given: add source=\[reviews.jsonl\]"):
        predictor.predict(fitted / "ensemble", (), (), tmp_path / "new", {})
    with pytest.raises(UserError, match=r"/nowhere/reviews.jsonl"):
        predictor.predict(fitted / "ensemble", ("/nowhere/reviews.jsonl",), (str(raw_market[1]),), tmp_path / "new", {})
    foreign = shutil.copytree(files, tmp_path / "predictions")
    for split in SPLITS:
        change(foreign / f"clear.{split}.parquet", config={})
    fit(foreign, prepared, tmp_path / "ensemble")
    with pytest.raises(UserError, match=r"member clear was not predicted by scripts/predict.py"):
        predictor.predict(tmp_path / "ensemble", (str(raw_market[0]),), (), tmp_path / "new", {})
    with pytest.raises(UserError, match=r"learned with product metadata, and none are given: add metadata="):
        predictor.predict(fitted / "ensemble", (str(raw_market[0]),), (), tmp_path / "new", {})
    assert not (tmp_path / "new").exists()


def test_a_missing_member_is_made_up_for(
    fitted: Path, prepared: Path, raw_market: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One lost member would stop every forecast, or be left out without a word."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    for split in SPLITS:
        change_to = {"member": "lost", "config": {"kind": "xgboost", "folder": str(folder / "members/lost"), "model": "x"}}
        shutil.copy(folder / f"predictions/xgboost.{split}.parquet", folder / f"predictions/lost.{split}.parquet")
        values = pq.read_table(folder / f"predictions/lost.{split}.parquet")["prediction"].to_numpy()
        change(folder / f"predictions/lost.{split}.parquet", prediction=values**2, **change_to)
        there = {"config": {"kind": "xgboost", "folder": str(folder / "members/xgboost")}}
        about = json.loads(pq.read_schema(folder / f"predictions/xgboost.{split}.parquet").metadata[predictions.KEY])
        change(folder / f"predictions/xgboost.{split}.parquet", config={**about["config"], **there["config"]})
    fit(folder / "predictions", prepared, folder / "two", combiner="equal")
    source, metadata = map(str, raw_market)
    path = predictor.predict(folder / "two", (source,), (metadata,), tmp_path / "new", {})
    assert "warning: lost of the ensemble is missing: the others' weights make up for it" in capsys.readouterr().err
    found = pq.read_table(path.with_suffix(".parquet"))
    assert "lost" not in found.column_names
    assert 0 < found["probability"].to_numpy().max() < 1


def test_a_member_trained_anew_is_refused(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """The weights of one model would be given to another: wrong probabilities without a word."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    member = folder / "members" / "xgboost"
    (member / "importance.json").write_text("{}")
    (member / manifest.NAME).unlink()
    manifest.write_manifest(member, {"kind": "tree member"})
    source, metadata = map(str, raw_market)
    with pytest.raises(UserError, match=r"member xgboost at .* was trained anew after the ensemble was fitted"):
        predictor.predict(folder / "ensemble", (source,), (metadata,), tmp_path / "new", {})


def test_an_ensemble_is_not_replaced_by_its_forecast(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """out= the ensemble's own folder with overwrite=true would delete the ensemble."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    source, metadata = map(str, raw_market)
    with pytest.raises(UserError, match=r"it is no forecast.*not replaced: choose another folder"):
        predictor.predict(folder / "ensemble", (source,), (metadata,), folder / "ensemble", {}, overwrite=True)
    assert (folder / "ensemble" / "ensemble.json").exists()


def test_reviews_that_begin_late_are_warned_of(
    fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the new reviews, without the old, give other totals, ages and last years: a worse forecast without a word."""
    lines = [json.loads(line) for line in raw_market[0].read_text().splitlines()]
    half = sorted(line["timestamp"] for line in lines)[len(lines) // 2]
    recent = tmp_path / "recent.jsonl"
    recent.write_text("".join(json.dumps(line) + "\n" for line in lines if line["timestamp"] >= half))
    predictor.predict(fitted / "ensemble", (str(recent),), (str(raw_market[1]),), tmp_path / "new", {})
    assert "only right if all its reviews are given, old and new" in capsys.readouterr().err


def test_the_heaviest_member_explains() -> None:
    """A member without weight would be asked why, because its name comes first."""
    line = {"slope": 1, "intercept": 0}
    combination = {"scales": [line, line], "space": "logit", "weights": [0.0, 1.0], "intercept": 0.0, "calibration": line}
    ensemble = combine.Ensemble.from_dict(
        {
            "member_names": ["a", "b"], "outputs": ["probability"] * 2, "method": "simplex", "calibrator": "platt",
            "combination": combination, "cross_fitted": {}, "cross_fitted_calibrators": {}, "num_folds": 2,
        }
    )  # fmt: skip
    one = np.array([1])
    base = {
        "row_id": one,
        "target": one,
        "prediction": one,
        "group": one,
        "cluster": one,
        "recipe": "r",
        "split": "forecast",
    }
    files = [
        predictions.Predictions(
            **base, member=name, fingerprint="f", reasons=[[{"feature": name, "value": 1.0, "contribution": 1.0}]]
        )
        for name in ("a", "b")
    ]
    assert predictor.strongest_reasons(files, ensemble)[0][0]["feature"] == "b"
    turned = dataclasses.replace(ensemble, combination=dataclasses.replace(ensemble.combination, weights=(1.0, 0.0)))
    assert predictor.strongest_reasons(files, turned)[0][0]["feature"] == "a"
    assert predictor.strongest_reasons([files[0]], ensemble) is None
