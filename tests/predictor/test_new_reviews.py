"""A forecast from new raw reviews, by members that predict again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from prediction_files import SPLITS, change, fit
from scripts_run import started

from ensemble import folders, predictions
from ensemble.errors import UserError
from ensemble.predictor import new_data


def test_the_same_raw_reviews_give_the_same_forecast(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """New reviews would be prepared otherwise than those that the members learned from, and nobody would notice."""
    reviews, products = raw_market
    out = tmp_path / "new"
    words = (f"ensemble={fitted}/ensemble", f"source=[{reviews}]", f"metadata=[{products}]", f"out={out}")
    done = started("ensemble_predictor", "predict", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"the ranked forecast is in {out}/forecast.csv"
    expected, result = (pq.read_table(folder / "forecast.parquet") for folder in (fitted / "ensemble", out))
    assert result.schema.metadata == expected.schema.metadata
    assert str(result.to_pylist()) == str(expected.to_pylist())  # as text, since NaN does not equal NaN
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
    path = new_data.predict(fitted / "ensemble", (str(earlier),), (str(products),), tmp_path / "new", {})
    table = pq.read_table(path.with_suffix(".parquet"))
    before = pq.read_table(fitted / "ensemble/forecast.parquet")
    weeks = [np.datetime64(parquet_table.schema.metadata[b"week"].decode()) for parquet_table in (table, before)]
    assert weeks[1] - weeks[0] == np.timedelta64(28, "D")
    assert 0 < table["probability"].to_numpy().max() < 1


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (
            "members/xgboost",
            None,
            "member xgboost of the ensemble is not at .*/xgboost: put it back, or predict with it and fit",
        ),
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
        new_data.predict(folder / "ensemble", (str(raw_market[0]),), (str(raw_market[1]),), tmp_path / "new", {})
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["fitted"]


def test_what_cannot_be_forecast_is_refused(
    fitted: Path, files: Path, prepared: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """Missing reviews, or a member of which only prediction files exist, would cause a traceback."""
    with pytest.raises(UserError, match=r"no reviews are given: add source=\[reviews.jsonl\]"):
        new_data.predict(fitted / "ensemble", (), (), tmp_path / "new", {})
    with pytest.raises(UserError, match=r"/nowhere/reviews.jsonl"):
        new_data.predict(fitted / "ensemble", ("/nowhere/reviews.jsonl",), (str(raw_market[1]),), tmp_path / "new", {})
    foreign = shutil.copytree(files, tmp_path / "predictions")
    for split in SPLITS:
        change(foreign / f"clear.{split}.parquet", config={})
    fit(foreign, prepared, tmp_path / "ensemble")
    with pytest.raises(UserError, match=r"the predictions of member clear are not from scripts/predict.py"):
        new_data.predict(tmp_path / "ensemble", (str(raw_market[0]),), (), tmp_path / "new", {})
    with pytest.raises(UserError, match=r"trained with product metadata, but none are given: add metadata="):
        new_data.predict(fitted / "ensemble", (str(raw_market[0]),), (), tmp_path / "new", {})
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
        real_config = {"config": {"kind": "xgboost", "folder": str(folder / "members/xgboost")}}
        metadata = json.loads(pq.read_schema(folder / f"predictions/xgboost.{split}.parquet").metadata[predictions.KEY])
        change(folder / f"predictions/xgboost.{split}.parquet", config={**metadata["config"], **real_config["config"]})
    fit(folder / "predictions", prepared, folder / "two", combiner="equal")
    source, metadata = map(str, raw_market)
    path = new_data.predict(folder / "two", (source,), (metadata,), tmp_path / "new", {})
    assert "warning: predictions of lost are missing: the other weights increase in proportion" in capsys.readouterr().err
    result = pq.read_table(path.with_suffix(".parquet"))
    assert "lost" not in result.column_names
    assert 0 < result["probability"].to_numpy().max() < 1


def test_the_error_of_a_moved_member_gives_an_advice_that_helps(fitted: Path, prepared: Path, tmp_path: Path) -> None:
    """After a folder was moved between prediction and fit, another fit alone would not find the members either."""
    files = Path(shutil.copytree(fitted / "predictions", tmp_path / "predictions"))
    for path in files.glob("xgboost.*.parquet"):
        metadata = json.loads(pq.read_schema(path).metadata[predictions.KEY])
        change(path, config={**metadata["config"], "folder": str(tmp_path / "earlier/members/xgboost")})
    fit(files, prepared, tmp_path / "ensemble", combiner="equal", compare=False)
    member = folders.read_json(tmp_path / "ensemble/ensemble.json")["members"]["xgboost"]
    with pytest.raises(UserError, match="put it back, or predict with it and fit the ensemble again"):
        new_data.check_member("xgboost", tmp_path / "ensemble", member)


def test_a_member_trained_anew_is_refused(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """The weights of one model would be given to another: wrong probabilities without a word."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    member = folder / "members" / "xgboost"
    (member / "importance.json").write_text("{}")
    (member / folders.NAME).unlink()
    folders.write_manifest(member, {"kind": "tree member"})
    source, metadata = map(str, raw_market)
    with pytest.raises(UserError, match=r"member xgboost at .* was trained again after the ensemble was fitted"):
        new_data.predict(folder / "ensemble", (source,), (metadata,), tmp_path / "new", {})


def test_an_ensemble_is_not_replaced_by_its_forecast(fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """out= the ensemble's own folder with overwrite=true would delete the ensemble."""
    folder = shutil.copytree(fitted, tmp_path / "fitted")
    source, metadata = map(str, raw_market)
    with pytest.raises(
        UserError, match=r"it has no manifest.json of the kind 'forecast'.*not replaced: choose another folder"
    ):
        new_data.predict(folder / "ensemble", (source,), (metadata,), folder / "ensemble", {}, overwrite=True)
    assert (folder / "ensemble" / "ensemble.json").exists()


def test_reviews_that_begin_late_are_warned_of(
    fitted: Path, raw_market: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the new reviews, without the old, give other totals, ages and last years: a worse forecast without a word."""
    lines = [json.loads(line) for line in raw_market[0].read_text().splitlines()]
    half = sorted(line["timestamp"] for line in lines)[len(lines) // 2]
    recent = tmp_path / "recent.jsonl"
    recent.write_text("".join(json.dumps(line) + "\n" for line in lines if line["timestamp"] >= half))
    new_data.predict(fitted / "ensemble", (str(recent),), (str(raw_market[1]),), tmp_path / "new", {})
    assert capsys.readouterr().err.count("only right if all its reviews are given, old and new") == 1
