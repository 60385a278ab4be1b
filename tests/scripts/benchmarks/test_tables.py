"""The public tables: new rows, the cache, reading of predictions, and wins."""

import dataclasses
import gzip
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from benchmarks.runs import cached
from benchmarks.tables import comparison, data, measure, runners

from ensemble import folders
from ensemble.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
DAYS = pl.datetime_range(pl.datetime(2020, 1, 1), pl.datetime(2020, 7, 18), "1d", eager=True)  # 200
ROWS = pl.DataFrame({
    "number": [f"{value}.10" for value in range(200)],
    "text": [("red", "green", None)[value % 3] for value in range(200)],
    "day": DAYS.dt.strftime("%d-%m-%Y %H:%M"),
    "answer": [str(value % 3 == 0) for value in range(200)],
})  # fmt: skip


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small table instead of bank_churn."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "bank_churn.csv.gz").write_bytes(gzip.compress(ROWS.write_csv().encode()))
    replace(monkeypatch)
    return folder


def replace(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    table = data.Table(target="answer", task="binary", origin="here")
    monkeypatch.setitem(data.TABLES, "bank_churn", dataclasses.replace(table, **changes))


def arguments(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    words = {"tables": str(tmp_path / "source"), "folder": str(tmp_path / "work"), "python": sys.executable, "seeds": 1}
    return {**words, "names": ("bank_churn",), **changes}


# ------------------------------------------------------------------------------------------------ tables


def test_a_quarter_is_drawn_once_and_cells_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    """Two methods would get different rows or cells, or the targets of new rows."""
    facts = data.write("bank_churn", source, tmp_path / "first")
    data.write("bank_churn", source, tmp_path / "second")
    for file in ("train.csv", "new.csv", "truth.parquet"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    train, new = (pl.read_csv(tmp_path / "first" / f"{part}.csv", infer_schema=False) for part in ("train", "new"))
    truth = pl.read_parquet(tmp_path / "first" / "truth.parquet")
    assert "answer" not in new.columns
    assert facts["rows"] == {"train": 150, "new": 50}
    assert truth["row_id"].to_list() == list(range(50))
    together = pl.concat([train, new.with_columns(truth["answer"]).select(train.columns)])
    assert together.sort("number").equals(ROWS.sort("number"))
    drawn = new["number"].to_list()
    assert drawn not in (ROWS["number"][-50:].to_list(), ROWS["number"][:50].to_list())


def test_new_rows_are_the_latest_by_date(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates that begin with the day would be sorted as text, and methods would be fitted on the future."""
    replace(monkeypatch, time="day", time_format="%d-%m-%Y %H:%M")
    mixed = ROWS.sample(fraction=1, shuffle=True, seed=3)
    (source / "bank_churn.csv.gz").write_bytes(gzip.compress(mixed.write_csv().encode()))
    data.write("bank_churn", source, tmp_path / "work")
    new = pl.read_csv(tmp_path / "work" / "new.csv", infer_schema=False)
    assert set(new["day"]) == set(ROWS["day"][-50:])


def test_rows_of_one_moment_stay_together() -> None:
    """Rows of one hour would be in both parts, with the same target."""
    table = dataclasses.replace(data.TABLES["electricity"], time="moment")
    rows = pl.DataFrame({"moment": [str(value // 30) for value in range(100)]})  # 0 ×30, 1 ×30, 2 ×30, 3 ×10
    assert data.new_rows(rows, table).tolist() == [False] * 60 + [True] * 40


def test_an_official_split_is_used(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The score on adult would not be comparable with published ones."""
    replace(monkeypatch, files=("one", "two"), drop=("text",))
    ROWS[:120].write_csv(source / "one.csv")
    ROWS[120:].write_csv(source / "two.csv")
    data.write("bank_churn", source, tmp_path / "work")
    train, new = (pl.read_csv(tmp_path / "work" / f"{part}.csv", infer_schema=False) for part in ("train", "new"))
    assert train.equals(ROWS[:120].drop("text"))
    assert new.equals(ROWS[120:].drop("text", "answer"))


def test_the_readme_lists_the_tables() -> None:
    """The page would name other files than the measured ones."""
    page = (ROOT / "ensemble/recipes/table/README.md").read_text()
    listed = set(re.findall(r"\b[0-9a-f]{64}\b", page))
    results = (folders.read_json(ROOT / f"slurm/results/tables{name}.json") for name in ("", "_large", "_further"))
    small, large, further = (result["tables"] for result in results)
    assert small.keys() == {name for name, table in data.TABLES.items() if table.is_default}
    assert further.keys() == data.FURTHER_TABLES.keys()
    assert (small | large | further).keys() == data.TABLES.keys()
    assert listed == {digest for table in (small | large).values() for digest in table["sha256"]}
    assert all(table.origin in page for name, table in data.TABLES.items() if name in small | large)


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"names": ("iris",)}, "table 'iris' is unknown, choose from adult, ames, bank_churn"),
        ({"names": ("letter",)}, "letter.csv.gz: get the table from OpenML 6, letter, or leave it out of names"),
        ({"methods": ("best",)}, "methods=['best']: 'best' is unknown, choose from ours, lightgbm, best_quality"),
        ({"python": "gone/python"}, "there is no gone/python: `make bench-tables` installs AutoGluon there"),
        ({"seeds": 0}, "seeds=0 is impossible"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(
    settings: dict[str, Any], sentence: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After hours there would be a traceback."""
    monkeypatch.setattr(measure, "one_table", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(UserError) as caught:
        measure.tables(**arguments(tmp_path, **settings))
    assert sentence in str(caught.value)


def test_another_table_of_the_same_name_is_refused(source: Path, tmp_path: Path) -> None:
    """A table of the same name without the target would end in a traceback of polars."""
    ROWS.drop("answer").write_csv(source / "bank_churn.csv")
    (source / "bank_churn.csv.gz").unlink()
    with pytest.raises(UserError, match="the table has no column answer: it is not the one from here"):
        data.write("bank_churn", source, tmp_path / "work")


# ------------------------------------------------------------------------------------------------ cache


def test_a_result_is_measured_once_for_its_settings(tmp_path: Path) -> None:
    """Results of hours would be measured again, or be those of other rows, another market or another time limit."""
    runs = []

    def measure(out: Path) -> dict[str, Any]:
        assert list(out.iterdir()) == [], "files of the previous result are still there"
        (out / "predictions.parquet").touch()
        runs.append(out)
        return {"fit_s": len(runs)}

    def result(digest: str, limit_s: float) -> dict[str, Any]:
        return cached(tmp_path / "result", {"train_sha256": digest, "limit_s": limit_s, "words": ["a=1"]}, measure)

    first = result("a", 60.0)
    assert result("a", 60.0) == first
    assert first == {"train_sha256": "a", "limit_s": 60.0, "words": ["a=1"], "fit_s": 1}
    assert result("b", 60.0)["fit_s"] == 2
    assert result("b", 90.0)["fit_s"] == 3


def test_a_failure_is_not_cached(tmp_path: Path) -> None:
    """A method that failed once would not run again, or would have half of its predictions."""

    def broken(out: Path) -> dict[str, Any]:
        (out / "predictions.parquet").touch()
        raise UserError("ended with 137")

    with pytest.raises(UserError, match="137"):
        cached(tmp_path / "result", {}, broken)
    assert cached(tmp_path / "result", {}, lambda out: {"files": len(list(out.iterdir()))})["files"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_folder_of_the_user_is_not_emptied(tmp_path: Path) -> None:
    """folder=runs sets=[ml-100k] would delete a training in runs/ml-100k."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="has files that no benchmark wrote, so it is not emptied: give another folder="):
        cached(tmp_path, {}, lambda out: {})
    assert (tmp_path / "notes.txt").exists()


def test_each_seed_and_limit_has_a_result_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of 60 s would be used for 300 s."""
    folder_names = []
    monkeypatch.setattr(runners, "cached", lambda out, *_: folder_names.append(out.name))
    for seed, limit_s in ((0, 60.0), (1, 60.0), (0, 300.0)):
        runners.result("good_quality", "adult", {"train_sha256": "a"}, tmp_path, "python", seed, limit_s)
    assert folder_names == ["good_quality.seed0.limit60", "good_quality.seed1.limit60", "good_quality.seed0.limit300"]


def test_new_rows_that_changed_are_predicted_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of the old rows would be compared with the truth of the new ones."""
    predicted = []

    def costs(method: str, python: str, table: Path, out: Path, *more: Any) -> dict[str, Any]:
        (out / "model").mkdir()
        predicted.append((table / "new.csv").read_text())
        return {"fit_s": 1}

    monkeypatch.setattr(runners, "foreign_costs", costs)
    replace(monkeypatch, files=("train", "test"))
    ROWS.write_csv(source / "train.csv")
    for rows in (ROWS, ROWS, ROWS.reverse()):
        rows.write_csv(source / "test.csv")
        facts = data.write("bank_churn", source, tmp_path / "bank_churn")
        runners.result("lightgbm", "bank_churn", facts, tmp_path, "python", 0, 60.0)
    assert predicted == [rows.drop("answer").write_csv() for rows in (ROWS, ROWS.reverse())]


def test_a_method_runs_only_on_tables_to_which_it_applies() -> None:
    """AutoGluon would validate by a missing column, or the same fit would be measured under two names."""
    methods = ("good_quality", "good_quality_by_time", "best_quality_date_parts", "best_quality_date_parts_by_time")
    applicable = {
        name: [method for method in methods if runners.is_applicable(method, data.TABLES[name])]
        for name in ("adult", "electricity", "metro_traffic")
    }
    assert applicable == {
        "adult": ["good_quality"],
        "electricity": ["good_quality", "good_quality_by_time"],
        "metro_traffic": list(methods),
    }


# ------------------------------------------------------------------------------------------------ scores


def test_predictions_are_joined_by_row_and_by_class(tmp_path: Path) -> None:
    """Predictions in another order of rows or classes would get a wrong score."""
    pl.DataFrame({"row_id": [0, 1, 2], "answer": ["True", "False", "True"]}).write_parquet(tmp_path / "truth.parquet")
    for file, names, rows in (("one", ("True", "False"), [2, 0, 1]), ("other", ("true", "false"), [2, 0, 3])):
        results = pl.DataFrame({"row_id": rows, names[0]: [0.9, 0.8, 0.1], names[1]: [0.1, 0.2, 0.9]})
        results.write_parquet(tmp_path / f"{file}.parquet")
    target, probability = comparison.read(tmp_path / "one.parquet", tmp_path / "truth.parquet", "answer", "binary")
    assert target.tolist() == [1, 0, 1]
    assert probability == pytest.approx(np.array([[0.2, 0.8], [0.9, 0.1], [0.1, 0.9]]))
    scores = comparison.scores("binary", target, probability)
    assert scores == {"loss": pytest.approx(-np.log([0.8, 0.9, 0.9]).mean()), "accuracy": 1, "roc_auc": 1}
    with pytest.raises(AssertionError, match="has other rows"):
        comparison.read(tmp_path / "other.parquet", tmp_path / "truth.parquet", "answer", "binary")


def test_a_class_that_no_column_has_is_refused(tmp_path: Path) -> None:
    """Rows of this class would be missing in the loss, or be scored as another class."""
    pl.DataFrame({"row_id": [0, 1], "answer": ["a", "b"]}).write_parquet(tmp_path / "truth.parquet")
    pl.DataFrame({"row_id": [0, 1], "a": [0.5, 0.5], "c": [0.5, 0.5]}).write_parquet(tmp_path / "found.parquet")
    with pytest.raises(AssertionError, match="lacks a class"):
        comparison.read(tmp_path / "found.parquet", tmp_path / "truth.parquet", "answer", "binary")


def test_our_forecast_names_the_classes() -> None:
    """The probability of one class would be scored as that of the other."""
    target = pl.Series([">50K", "<=50K", ">50K"])
    forecast = pl.DataFrame({"rank": [1, 2], "row_id": [7, 3], "prediction": [0.75, 0.25], "why": ["", ""]})
    results = runners.our_predictions(forecast, "binary", target)
    assert results.to_dict(as_series=False) == {"row_id": [7, 3], "<=50K": [0.25, 0.75], ">50K": [0.75, 0.25]}
    many = pl.DataFrame({"row_id": [0], "probability of A": [0.5], "probability of B": [0.5], "why": [""]})
    assert runners.our_predictions(many, "multiclass", target).columns == ["row_id", "A", "B"]
    assert runners.our_predictions(forecast, "regression", target).columns == ["row_id", "prediction"]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_bootstrap_is_paired(task: str) -> None:
    """A small difference on every row would be less than the spread of the rows, and every table would be level."""
    hard = np.random.default_rng(0).exponential(size=400) ** 2
    shift = 0.02 * hard + 0.01
    assert comparison.compare(task, [hard], [hard + shift], 200)["verdict"] == "win"
    assert comparison.compare(task, [hard + shift], [hard], 200)["verdict"] == "loss"
    assert comparison.compare(task, [hard], [hard], 200)["verdict"] == "level"
    noise = np.random.default_rng(1).normal(size=400)
    assert comparison.compare(task, [hard + 5], [hard + 5 + noise - noise.mean()], 200)["verdict"] == "level"


def test_the_difference_is_that_of_the_losses() -> None:
    """The interval would be that of mean squared errors, but the README gives RMSE."""
    ours, rival_losses = [np.array([1.0, 9.0]), np.array([3.0, 11.0])], [np.array([16.0, 16.0])]
    of_numbers = comparison.compare("regression", ours, rival_losses, 50)
    assert of_numbers["difference"]["value"] == pytest.approx(6**0.5 - 4)
    assert of_numbers["relative"] == pytest.approx(6**0.5 / 4 - 1)
    assert comparison.compare("multiclass", ours, rival_losses, 50)["difference"]["value"] == pytest.approx(6 - 16)


def test_wins_losses_time_and_memory_of_each_rival(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README would have wrong wins, compare other seeds, or hide that a rival had less time or failed."""
    calls = []

    def result(
        method: str, name: str, facts: dict[str, Any], folder: Path, python: str, seed: int, limit_s: float
    ) -> tuple[dict[str, Any], Path]:
        calls.append((method, seed, limit_s))
        if method == "best_quality" and seed == 1:
            raise UserError("/home/me/python fit.py ended with 1: no memory")
        truth = pl.read_parquet(folder / name / "truth.parquet")
        sure = {"ours": 0.9, "good_quality": 0.8, "best_quality": 0.95, "lightgbm": 0.9}[method]
        right = pl.when(pl.col("answer") == "True").then(sure).otherwise(1 - sure).alias("True")
        results = truth.select("row_id", right).with_columns((1 - pl.col("True")).alias("False"))
        file = folder / f"{method}.parquet"
        results.write_parquet(file)
        costs = {"fit_s": 70.0, "fit_cpu_s": 90.0, "predict_s": 2.0, "disk_mb": 1.0, "environment": {"date": "today"}}
        return {**costs, "peak_mb": 100.0 + seed if method == "ours" else 404.0, "seed": seed, "limit_s": limit_s}, file

    monkeypatch.setattr(runners, "result", result)
    chosen = ("ours", "good_quality", "best_quality", "lightgbm", "good_quality_by_time")
    results = measure.tables(**arguments(tmp_path, methods=chosen, seeds=2, rivals_time_limit=65.0))
    assert calls == [
        ("ours", 0, 60), ("ours", 1, 60), ("good_quality", 0, 65), ("good_quality", 1, 65), ("best_quality", 0, 65),
        ("best_quality", 1, 65), ("lightgbm", 0, 60),
    ]  # fmt: skip
    counts = {rival: (against["win"], against["level"], against["loss"]) for rival, against in results["against"].items()}
    assert counts == {"good_quality": (1, 0, 0), "best_quality": (0, 0, 1), "lightgbm": (0, 1, 0)}
    against = results["against"]["good_quality"]
    assert against["median_relative_difference"] == pytest.approx(np.log(0.9) / np.log(0.8) - 1)
    assert against["memory_ratio"]["median"] == pytest.approx(0.25)
    assert against["had_our_time"] == 0, "its limit was below our seconds"
    assert results["against"]["lightgbm"]["had_our_time"] == 1
    assert results["failed"] == {"bank_churn best_quality seed 1": "ended with 1: no memory"}
    one = results["tables"]["bank_churn"]["methods"]
    assert (len(one["ours"]["each"]), len(one["best_quality"]["each"])) == (2, 1)
    assert one["ours"]["loss"] == pytest.approx(-np.log(0.9))


def test_failures_alone_are_no_result(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed results of eleven tables would be replaced by none, as with time_limit=-1."""

    def fail(*arguments: Any) -> Any:
        raise UserError("fit.py ended with 2: time_limit=-1.0 is impossible")

    monkeypatch.setattr(runners, "result", fail)
    for method, why in (("ours", "ended with 2: time_limit=-1.0 is impossible"), ("best_quality_by_time", "none is applic")):
        with pytest.raises(UserError, match=f"no method has a result, so none is written: {why}"):
            measure.tables(**arguments(tmp_path, methods=(method,)))


def test_plain_lightgbm_fits_and_predicts_a_table(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version of pandas or LightGBM, a category that train lacks, or a column that is empty in new rows would fail."""
    replace(monkeypatch, time="day", time_format="%d-%m-%Y %H:%M")
    rows = ROWS.with_columns(
        pl.when(pl.int_range(pl.len()) == 199).then(pl.lit("blue")).otherwise("text").alias("text"),
        pl.when(pl.int_range(pl.len()) < 150).then("text").alias("holiday"),
    )
    (source / "bank_churn.csv.gz").write_bytes(gzip.compress(rows.write_csv().encode()))
    results = measure.tables(**arguments(tmp_path, methods=("lightgbm",)))
    assert results["failed"] == {}
    used = results["tables"]["bank_churn"]["methods"]["lightgbm"]
    assert 0 < used["loss"] < 1
    assert min(used["fit_s"], used["predict_s"], used["peak_mb"], used["disk_mb"]) > 0
    out = tmp_path / "work" / "bank_churn" / "lightgbm.seed0.limit60"
    assert sorted(path.name for path in out.iterdir()) == ["fit.json", "predictions.parquet", "result.json"]
    stored = folders.read_json(out / "result.json")
    assert stored["version"]
    assert {"date", "commit", "command"} <= stored["environment"].keys()
