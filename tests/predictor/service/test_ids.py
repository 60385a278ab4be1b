"""Ids in requests: they come back as they were sent, and products that no review names are counted."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from scripts_run import fork
from service_process import TIMEOUT_S, Service

IDS = ["00481", "481", "0481", "000000000000000000481", "481.0", "4.81e2", " 481", "NA", "true", "ü\u2028-7"]


def predict(service: Service, content: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/predict", json.dumps(content).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def table_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of an ensemble of a table with the id column `who` and two classes."""
    folder = tmp_path_factory.mktemp("table")
    age = np.random.default_rng(0).integers(18, 80, 200)
    frame = pl.DataFrame({"who": [f"{row:05}" for row in range(200)], "age": age, "plan": ["basic", "gold"] * 100})
    stays = (pl.col("age") > 40).xor(pl.col("plan") == "gold")
    target = pl.when(pl.int_range(200) < 190).then(pl.when(stays).then(pl.lit("stays")).otherwise(pl.lit("leaves")))
    frame.with_columns(since=pl.date(2020, 1, 1) + pl.duration(days="age"), next=target).write_csv(folder / "people.csv")
    data, member = f"data={folder}/data", f"{folder}/members/lightgbm"
    source = f"source=[{folder}/people.csv]"
    fork("prepare_data", "--recipe", "table", source, f"out={folder}/data", "target=next", "id=who")
    fork("train_trees", "library=lightgbm", data, f"out={member}", "num_rounds=10")
    fork("predict", f"member={member}", data, f"out={folder}/predictions")
    fork("ensemble_predictor", "fit", f"predictions={folder}/predictions", data, f"out={folder}/ensemble", "num_draws=5")
    service = Service(folder / "ensemble")
    yield service
    code, output = service.stop()
    assert (code, "Traceback" in output) == (0, False), output


def test_ids_of_a_table_are_answered_as_they_were_sent(table_service: Service) -> None:
    """A caller could not join the predictions with its rows: 00481 would come back as 481."""
    for ids in (IDS, [name for name in IDS if name.isdigit()], [481, 2**60 + 1]):
        rows = [{"who": name, "age": 20 + 3 * number} for number, name in enumerate(ids)]
        status, answer = predict(table_service, {"rows": rows})
        assert status == 200, answer
        of_row = {row["row_id"]: row["id"] for row in answer["forecast"]}
        assert [of_row[number] for number in range(len(ids))] == [str(name) for name in ids]


def test_the_answer_of_a_table_explains_itself(table_service: Service) -> None:
    """A caller could not see which class is predicted, or would have to convert 18322 to a date."""
    row = {"age": 60, "plan": "gold", "since": "2020-03-01"}
    status, answer = predict(table_service, {"rows": [row, {**row, "plan": "basic"}]})
    assert status == 200, answer
    assert answer["meaning"] == "prediction is the probability that next is stays"
    first, last = sorted(answer["forecast"], key=lambda row: row["row_id"])
    assert first["prediction"] < 0.5 < last["prediction"]
    texts = {reason["feature"]: reason.get("text") for row in (first, last) for reason in row["reasons"]}
    assert texts.pop("plan") in ("gold", "basic")
    assert texts == {name: "2020-03-01" if name == "since" else None for name in texts}


def renamed(request_rows: dict[str, list[dict[str, Any]]], names: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The request with other ids of products."""
    return {
        kind: [{**row, "parent_asin": names.get(row["parent_asin"], row["parent_asin"])} for row in rows]
        for kind, rows in request_rows.items()
    }


def test_ids_of_products_are_answered_as_they_were_sent(service: Service, request_rows: Any) -> None:
    """Reviews of 00481 and of 481 would be counted together, and the answer would have ids that do not exist."""
    status, before = predict(service, request_rows)
    assert status == 200, before
    by_rank = [row["product_id"] for row in before["forecast"]]
    names = dict(zip(by_rank, IDS, strict=False))
    status, after = predict(service, renamed(request_rows, names))
    assert status == 200, after
    assert len(names) == len(IDS)
    expected = {names.get(row["product_id"], row["product_id"]): row["probability"] for row in before["forecast"]}
    assert {row["product_id"]: row["probability"] for row in after["forecast"]} == expected


@pytest.mark.parametrize("num_matched", [0, 10])
def test_metadata_of_other_products_are_refused(service: Service, request_rows: Any, num_matched: int) -> None:
    """Most products would be without a category, and the forecast would be of another market."""
    known = sorted({row["parent_asin"] for row in request_rows["reviews"]})
    others = {name: f"0{name}" for name in known[num_matched:]}
    products = renamed({"products": request_rows["products"]}, others)
    status, answer = predict(service, {**request_rows, **products})
    assert status == 422
    (detail,) = answer["detail"]
    assert detail["loc"] == ["body", "reviews"]
    share = f"{num_matched} of {len(known)} reviewed products have metadata ({num_matched / len(known):.1%})"
    where = "at least 50% must have it (min_matched= on the command line)"
    advice = f"the reviews have '{known[num_matched]}' where the metadata have '0{known[num_matched]}'"
    assert detail["msg"] == f"only {share}, and {where}: ids must be written alike in both, and {advice}"
