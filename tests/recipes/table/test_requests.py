"""Requests of a table to the service: rows as JSON, refused by the column's name, answered as a file of the rows is."""

import json
from pathlib import Path
from typing import Any

import fits
import polars as pl
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from ensemble.pipeline import plan
from ensemble.predictor.loaded import Predictor
from ensemble.predictor.service import make_app
from ensemble.predictor.settings import ServeConfig
from ensemble.recipes.table import requests
from ensemble.trees import threads

LIKE: dict[str, Any] = {
    "task": {"kind": "binary"},
    "target": {"column": "y", "names": ["no", "yes"]},
    "features": [
        {"name": "age", "column": "age", "unit": ""},
        {"name": "job", "column": "job", "unit": "category", "categories": 2, "values": ["a", "b"]},
        {"name": "is_new", "column": "is new", "unit": "0 or 1"},
        {"name": "day", "column": "day", "unit": "days since 1970-01-01"},
        {"name": "day_weekday", "column": "day", "unit": "weekday", "part": "weekday"},
    ],
}


def request_of(*rows: dict[str, Any]) -> requests.Request:
    return requests.Request(rows=list(rows))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"age": "old"}, "age"),
        ({"age": True}, "age"),
        ({"day": 2.5}, "day"),
        ({"is new": 7}, "is new"),
    ],
)
def test_a_wrong_value_is_named_by_its_column(row: dict[str, Any], column: str) -> None:
    """It would count as empty, and the caller would never know."""
    problem = requests.problem(request_of({"age": 1}, row), LIKE)
    assert problem
    assert problem[0] == ["rows", 1, column]


def test_values_that_mean_the_same_are_taken() -> None:
    """A caller's JSON library writes numbers and truth values in its own way."""
    rows = [{"age": "1,234.5", "job": 3, "is new": 1, "day": "2024-01-31"}, {"age": None, "is new": "yes", "other": "x"}]
    assert requests.problem(request_of(*rows), LIKE) is None
    table, _ = requests.tables(request_of(*rows))
    assert table["job"].to_pylist() == [3, None]
    assert table["is new"].to_pylist() == ["1", "yes"]


def test_rows_without_a_known_column_are_refused() -> None:
    """All cells would count as empty, and each row would get the same prediction."""
    problem = requests.problem(request_of({"Age": 1}), LIKE)
    assert problem
    assert "age" in problem[1]
    with pytest.raises(ValidationError):
        request_of()
    with pytest.raises(ValidationError):
        request_of({"age": [1]})  # type: ignore[dict-item]


def test_the_schema_describes_the_columns() -> None:
    """A caller could only guess what to send."""
    schema = requests.facts(LIKE)["columns"]
    assert schema == {
        "age": {"holds": "number"},
        "job": {"holds": "text", "values": ["a", "b"]},
        "is new": {"holds": "true or false"},
        "day": {"holds": "date"},
    }


def test_the_service_answers_as_a_file_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service of a table would predict otherwise than the command, or refuse with a traceback."""
    monkeypatch.setattr(plan, "plan", lambda about, num_threads: fits.planned("lightgbm"))
    monkeypatch.setattr("ensemble.pipeline.run.plan", lambda about, num_threads: fits.planned("lightgbm"))
    threads.provide_openmp()  # `settle` does it, which may have been called in this process by another test
    monkeypatch.setattr(threads, "configure", lambda requested=0: 1)
    people = fits.people()
    people.write_csv(tmp_path / "people.csv")
    fits.fit(tmp_path / "people.csv", tmp_path / "out")
    new = people.tail(fits.NUM_NEW).drop("y")
    new.write_csv(tmp_path / "new.csv")
    folder = tmp_path / "out/ensemble"
    with Predictor.load(folder, threads=1) as predictor:
        client = TestClient(make_app(predictor, ServeConfig(ensemble=str(folder))))
        answer = client.post("/predict", content=json.dumps({"rows": new.to_dicts()}))
        assert answer.status_code == 200, answer.text
        prediction_of = {row["id"]: row["prediction"] for row in answer.json()["forecast"]}
        frame = predictor.predict(tmp_path / "new.csv")
        assert frame["id"].to_list() == new["who"].to_list()
        assert [prediction_of[name] for name in frame["id"]] == frame["prediction"].to_list()
        again = predictor.predict(new.to_pandas())
        assert again["prediction"].to_list() == frame["prediction"].to_list()
        assert predictor.predict(pl.DataFrame({"age": [20.0], "unknown": ["x"]}))["prediction"].is_between(0, 1).all()
        refused = client.post("/predict", content=json.dumps({"rows": [{"age": "old"}]}))
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["body", "rows", 0, "age"]
        schema = client.get("/schema").json()
        assert schema["ensemble"]["columns"]["age"] == {"holds": "number"}
