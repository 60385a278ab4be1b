"""A table all the way, by the commands of the README: prepared, learned by both tree libraries, combined, reported."""

import dataclasses
import gzip
import html
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from scripts_run import fork, forked, run
from small_tables import fit_trees

from ensemble import configuration, folders, predictions
from ensemble.pipeline import settings
from ensemble.predictor import used_rows
from ensemble.report import words as report_words

ROOT = Path(__file__).resolve().parents[3]
MOVIELENS = ROOT.parent / "shared" / "data" / "movielens" / "ml-100k.inter.gz"
NUM_ROWS = 1600
BASE_RATE = "base rate"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose targets follow from a number, a category, a truth value and noise; the last 40 have no target."""
    generator = np.random.default_rng(0)
    age, city = generator.integers(18, 80, NUM_ROWS), generator.integers(0, 4, NUM_ROWS)
    member = generator.random(NUM_ROWS) < 0.4
    score = (age - 45) / 15 + np.array([0.0, 1.0, -1.0, 2.0])[city] + member
    noisy = score + generator.normal(0, 0.5, (4, NUM_ROWS))
    day = np.datetime64("2022-01-03") + np.sort(generator.integers(0, 600, NUM_ROWS)).astype("timedelta64[D]")
    targets = {
        "income": 20_000 + 8_000 * noisy[0],
        "rich": np.where(noisy[1] > 2, "yes", "no"),
        "tier": np.array(["low", "mid", "top"])[np.digitize(noisy[2], [-0.5, 1.5])],
        "grade": np.clip(np.round(noisy[3] + 1), 0, 4).astype(int),
    }
    file = tmp_path_factory.mktemp("table") / "people.csv"
    frame = pl.DataFrame(
        {
            "who": [f"person <b>{row}</b>" for row in range(NUM_ROWS)],
            "age": age,
            "city <i>": np.array(["Bonn", "Köln", "Ulm", "Jena"])[city],
            "member": member,
            "joined": day.astype(str),
            "household": generator.integers(0, 200, NUM_ROWS),
            "always": "x",
            **targets,
        }
    )
    is_known = pl.int_range(NUM_ROWS) % 40 > 0
    frame.with_columns(pl.when(is_known).then(name).alias(name) for name in targets).write_csv(file)
    return file


def chain(
    folder: Path, source: Path, *settings: str, num_rounds: int = 120, run: Callable[..., str] = fork
) -> tuple[dict[str, Any], str]:
    """Run all five commands. Returns the scores, and the text of the page."""
    printed = fit_trees(folder, source, *settings, num_rounds=num_rounds, run=run)
    in_time = any(setting.startswith("time=") for setting in settings)
    assert ("forward in time" in printed) == in_time
    fitted = (f"predictions={folder}/predictions", f"data={folder}/data", f"ensemble={folder}/ensemble")
    run("report", *fitted, f"out={folder}/report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert ("rows before it" in page) == ("forward in time" in text(page)) == in_time
    assert not re.search("person <b>|<i>", page)  # what stands in the table is text, never HTML
    return folders.read_json(folder / "ensemble" / "scores.json"), text(page)


def text(page: str) -> str:
    """What a person reads of a page, without pictures."""
    body = re.sub(r"<style.*?</style>|<script.*?</script>|<svg.*?</svg>|</?bdi>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).replace(report_words.THIN, " ").split())


def value(scores: dict[str, Any], name: str, metric: str) -> float:
    return scores["scores"][name][metric]["value"]


PARTS = {
    "regression": ("Predicted and observed", "Error by decile", "Root mean squared error", "Prediction intervals"),
    "binary": (
        "Precision and recall",
        "ROC-AUC",
        "the positive class is “yes”, the negative class “no”",
        "Decision threshold",
    ),
    "multiclass": ("Confusion", "true class, by predicted class low mid top", "Macro F1"),
    "ranking": ("NDCG by group size", "Relevance by place", "Recall@10"),
}
CASES = {
    "regression": ("target=income", "id=who", "drop=[rich,tier,grade]", "num_folds=3"),
    "binary": ("target=rich", "id=who", "drop=[income,tier,grade]", "time=joined", "embargo=7", "num_folds=3"),
    "multiclass": ("target=tier", "drop=[income,rich,grade]", "group=household", "num_folds=3", "test=0.2"),
    "ranking": ("target=grade", "task=ranking", "id=who", "drop=[income,rich,tier]", "group=household", "num_folds=3"),
}


def test_a_file_of_the_user_is_not_replaced(table: Path, tmp_path: Path) -> None:
    """out=precious.csv of a command whose other settings are right would replace a table."""
    folder = tmp_path / "run"
    chain(folder, table, *CASES["regression"], num_rounds=10)
    one_model = ("library=lightgbm", "num_rounds=5", "refit=true", "num_refits=1", "threads=1")
    fork("train_trees", *one_model, f"data={folder}/data", f"out={folder}/one")
    words = (f"member={folder}/one", f"data={folder}/data", f"out={tmp_path}/run/one.files", "contributions=true")
    printed = fork("predict", *words)  # of all splits, although rows of several copies have no contributions
    assert "no contributions for oof: they are means over all copies" in printed
    assert "one.forecast.contributions.parquet" in printed
    written = {"report": f"{folder}/report.html", "export_model": f"{folder}/member.onnx"}
    words = {
        "report": (f"predictions={folder}/predictions", f"data={folder}/data", f"ensemble={folder}/ensemble"),
        "export_model": (f"member={folder}/one", f"data={folder}/data"),
    }
    precious = tmp_path / "precious.csv"
    for script, what in (("report", "report"), ("export_model", "ONNX file")):
        precious.write_bytes(b"1,2\n" * 100_000)
        done = forked(script, *words[script], f"out={precious}")
        sentence = f"error: {precious} exists and this project did not write it, so the {what} does not replace it: "
        assert (done.returncode, done.stderr.splitlines()[-1].startswith(sentence)) == (2, True), done.stderr
        assert precious.read_bytes() == b"1,2\n" * 100_000
        fork(script, *words[script], f"out={written[script]}")
        fork(script, *words[script], f"out={written[script]}")  # the project's own file is replaced
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious.csv", "run"]


@pytest.mark.parametrize("kind", CASES)
def test_a_table_becomes_a_report(table: Path, tmp_path: Path, kind: str) -> None:
    """A stage would fail on the files of the stage before, use another kind of task, or show a figure of another kind."""
    scores, words = chain(tmp_path, table, *CASES[kind], run=run if kind == "binary" else fork)
    metric = scores["metric"]
    assert scores["kind"] == kind
    score, blind = value(scores, "ensemble", metric), value(scores, BASE_RATE, metric)
    margin = {"regression": score < 0.5 * blind, "binary": score < 0.7 * blind, "multiclass": score < 0.7 * blind}
    assert margin.get(kind, score > blind + 0.1), (metric, score, blind)
    for other, parts in PARTS.items():
        assert all((part in words) == (other == kind) for part in parts), other
    shown = report_words.number(score, {"regression": 0, "multiclass": 4, "binary": 4}.get(kind, 3))
    assert f"is {shown} (95 % interval" in words
    assert f"How well is {CASES[kind][0].removeprefix('target=')} predicted?" in words
    assert not re.search("hot seller|blend|validation|each week|what is told", words)
    assert "city <i>" in words  # importance and reasons name the column as its header does
    manifest = folders.read_manifest(tmp_path / "data")
    file = predictions.read(tmp_path / "ensemble" / f"{scores['split']}.parquet")
    assert file.classes == (("low", "mid", "top") if kind == "multiclass" else ())
    if kind == "multiclass":
        assert scores["split"] == "test"
        assert len(file.row_id) == manifest["splits"]["test"]["rows"]
    else:
        assert scores["split"] == "oof"
        assert scores["out_of_fold_rows"] >= len(file.row_id) == scores["rows"]
        assert (scores["out_of_fold_rows"] == manifest["splits"]["train"]["rows"]) == (kind != "binary")
    for sentence in used_rows.sentences(manifest, scores).values():
        assert sentence in words
    assert "Leaderboard" in words
    assert "always has one value in train" in words
    assert "Drift: rows of the forecast compared with train" in words
    forecast = pq.read_table(tmp_path / "ensemble" / "forecast.parquet")
    assert forecast.num_rows == manifest["splits"]["forecast"]["rows"] == NUM_ROWS // 40
    assert set(forecast["row_id"].to_pylist()) == set(range(0, NUM_ROWS, 40))
    assert "The 40 rows whose" in words
    if "id=who" in CASES[kind]:
        assert forecast["id"].to_pylist() == [f"person <b>{row}</b>" for row in forecast["row_id"].to_pylist()]
    age = pl.read_csv(table)["age"]
    for row in forecast.to_pylist():  # the reasons of a row are its own
        assert {age[row["row_id"]]} >= {reason["value"] for reason in row["reasons"] if reason["feature"] == "age"}
        assert row["reasons"]
        assert len({reason["contribution"] > 0 for reason in row["reasons"]}) == 1
    if kind == "regression":
        ends = forecast.select(["lower_90", "prediction", "upper_90"]).to_pandas().to_numpy()
        assert (np.diff(ends, axis=1) > 0).all()
        assert 0.85 < scores["intervals"]["coverage"] < 0.95
    if kind == "ranking":  # a group is called as in the table
        household = pl.read_csv(table)["household"].gather(forecast["row_id"].to_pylist())
        assert forecast["group"].to_pylist() == household.cast(pl.String).to_list()
    command = next(line for line in words.split("python ") if line.startswith("scripts/prepare_data.py"))
    assert "--recipe table" in command
    assert CASES[kind][0] in command


@pytest.mark.skipif(not MOVIELENS.exists(), reason=f"MovieLens 100K is not at {MOVIELENS}")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("regression", ("task=regression",)),
        ("ranking", ("task=ranking", "group=user_id:token", "drop=[timestamp:float]")),
    ],
)
def test_real_ratings_are_learned(tmp_path: Path, kind: str, settings: tuple[str, ...]) -> None:
    """A real file, tab-separated and with colons in its header, would fail in a stage, or members would learn nothing."""
    lines = gzip.decompress(MOVIELENS.read_bytes()).splitlines(keepends=True)
    ratings = tmp_path / MOVIELENS.name  # of fewer users
    ratings.write_bytes(
        gzip.compress(b"".join([lines[0], *(line for line in lines[1:] if int(line.split(b"\t")[0]) <= 200)]))
    )
    scores, words = chain(tmp_path, ratings, "target=rating:float", *settings, num_rounds=40)
    score, blind = (value(scores, name, scores["metric"]) for name in ("ensemble", BASE_RATE))
    assert score > blind + 0.03 if kind == "ranking" else score < 0.99 * blind, (score, blind)
    assert not (tmp_path / "ensemble" / "forecast.parquet").exists()
    assert "The forecast" not in words


def test_one_command_is_made_again_by_one_command(table: Path, tmp_path: Path) -> None:
    """A user who copies the command of the page would run seven commands with other settings, or train for another time."""
    out = tmp_path / "one"
    words = (
        "target=rich",
        "drop=[income,tier,grade,who]",
        "num_folds=3",
        "members=[linear,lightgbm]",
        "test=0.25",
        "metric=accuracy",
    )
    run("fit", f"source=[{table}]", f"out={out}", *words, "time_limit=0", "num_draws=3", "threads=1")
    html_of_page = (out / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"url\((?!#)|@import|<iframe|<object|<embed|https?://|src=", html_of_page)
    page = text(html_of_page)
    assert "The combiner simplex was set before the fit" in page
    assert "Equal weights are chosen" not in page
    assert "the ensemble’s accuracy is" in page
    commands = [line for line in re.findall(r"python .*", page) if "scripts" in line or "fit" in line]
    assert len(commands) == 1
    line = shlex.split(commands[0])
    assert 'source=["people.csv"]' in line
    schema = settings.config_class("table")
    made = configuration.load(schema, None, [word for word in line if "=" in word])
    asked = configuration.load(schema, None, [f"source=[{table}]", f"out={out}", *words, "time_limit=0", "num_draws=3"])
    assert dataclasses.replace(made, source=asked.source) == asked
    board = folders.read_json(out / "leaderboard.json")
    assert [row["member"] for row in board][-1] == BASE_RATE
    assert {row["metric"] for row in board} == {"accuracy"}
    assert next(row for row in board if row["member"] == "lightgbm")["megabytes"] > 0
