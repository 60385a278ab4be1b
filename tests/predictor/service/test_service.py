"""The service over loopback connections: answers, errors, many clients at once, and its end."""

import asyncio
import contextlib
import gc
import gzip
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio.to_thread
import psutil
import pytest
import uvicorn
from scripts_run import ENVIRONMENT
from service_process import TIMEOUT_S, Service

from ensemble.errors import Failure, UserError
from ensemble.predictor import service as service_module
from ensemble.predictor.loaded import PREPARATION, Predictor, Worker
from ensemble.predictor.settings import ServeConfig

LONG = bool(os.environ.get("TORTURE_LONG"))
DURATION_S = 60 if LONG else 5
NUM_CLIENTS = 16
REVIEW = {"parent_asin": "A", "user_id": "U", "rating": 5.0, "timestamp": 1_660_000_000_000}


def ask(port: int, method: str, path: str, body: bytes | None = None, encoding: str = "identity") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, {"content-encoding": encoding})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def encode(content: Any) -> bytes:
    return json.dumps(content).encode()


@pytest.fixture(scope="module")
def body_of_request(request_rows: Any) -> bytes:
    return encode(request_rows)


def test_a_request_is_answered_with_the_forecast(service: Service, fitted: Path, body_of_request: bytes) -> None:
    """The answer would have another forecast than the ensemble's, or invalid JSON."""
    import pyarrow.parquet as pq

    status, body = ask(service.port, "POST", "/predict", body_of_request)
    assert status == 200, body
    answer = json.loads(body, parse_constant=pytest.fail)
    table = pq.read_table(fitted / "ensemble/forecast.parquet")
    assert answer["week"] == table.schema.metadata[b"week"].decode()
    assert answer["horizon_weeks"] == 12
    assert (answer["lacking"], answer["notes"]) == ({}, [])
    for row, expected in zip(answer["forecast"], table.to_pylist(), strict=True):
        assert {name: row[name] for name in ("rank", "product_id", "title", "category", "probability")} == {
            name: expected[name] for name in ("rank", "product_id", "title", "category", "probability")
        }
        assert row["members"] == {name: expected[name] for name in ("lightgbm", "transformer", "xgboost")}
        assert [reason["feature"] for reason in row["reasons"]] == [reason["feature"] for reason in expected["reasons"]]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({}, ["reviews"]),
        ({"reviews": []}, ["reviews"]),
        ({"reviews": [REVIEW, {**REVIEW, "rating": 6}]}, ["reviews", 1, "rating"]),
        ({"reviews": [{**REVIEW, "rating": "five"}]}, ["reviews", 0, "rating"]),
        ({"reviews": [{**REVIEW, "timestamp": 1_660_000_000}]}, ["reviews", 0, "timestamp"]),
        ({"reviews": [{**REVIEW, "timestamp": 9_660_000_000_000}]}, ["reviews", 0, "timestamp"]),
        ({"reviews": [{**REVIEW, "parent_asin": ""}]}, ["reviews", 0, "parent_asin"]),
        ({"reviews": [{**REVIEW, "user_id": " "}]}, ["reviews", 0, "user_id"]),
        ({"reviews": [{"parent_asin": "A"}]}, ["reviews", 0, "user_id"]),
        ({"reviews": [REVIEW], "products": [{"title": "no id"}]}, ["products", 0, "parent_asin"]),
        (
            {"reviews": [REVIEW], "products": [{"parent_asin": "A", "price": float("nan")}]},
            ["products", 0, "price", "float"],
        ),
        ({"reviews": [REVIEW], "metadata": []}, ["metadata"]),
        ({"reviews": [REVIEW], "products": [{"parent_asin": "A"}]}, ["reviews"]),  # no week is complete
        ({"reviews": [REVIEW]}, ["reviews"]),  # the members learned with metadata
    ],
)
def test_a_wrong_field_is_named(service: Service, content: Any, place: list[Any]) -> None:
    """A client would have to guess which of ten thousand rows is wrong."""
    status, body = ask(service.port, "POST", "/predict", encode(content))
    assert status == 422, body
    (first, *_) = json.loads(body)["detail"]
    assert first["loc"] == ["body", *place]
    assert first["msg"]


def test_a_repeated_key_is_named(service: Service) -> None:
    """The last of two ratings would be used, and the client would not know that there were two."""
    body = encode({"reviews": [REVIEW]}).replace(b'"rating"', b'"rat\\u0069ng": 1.0, "rating"')
    status, answer = ask(service.port, "POST", "/predict", body)
    assert (status, json.loads(answer)["detail"][0]["msg"]) == (
        422,
        "the key 'rating' is twice in one object: keep one of them",
    )


def test_unusual_reviews_are_noted(service: Service, request_rows: Any) -> None:
    """A forecast from a part of the reviews would look like any other: its warnings would be on the server alone."""
    newest = max(review["timestamp"] for review in request_rows["reviews"])
    recent = [review for review in request_rows["reviews"] if review["timestamp"] > newest - 200 * 86_400_000]
    products = [{**request_rows["products"][0], "main_category": "Nowhere"}, *request_rows["products"][1:]]
    body = encode({"reviews": [*recent, recent[0]], "products": products})
    status, body = ask(service.port, "POST", "/predict", body)
    assert status == 200, body
    begin, duplicate, category = json.loads(body)["notes"]
    assert begin.startswith("these reviews begin 2")
    assert duplicate.startswith(f"1 of {len(recent) + 1:,} rows are left out: duplicate: the same product, user and time")
    assert "/" not in duplicate
    assert category.startswith(
        f"1 of {len(products)} rows are kept with a category that training does not have, such as 'No"
    )


def test_missing_metadata_are_called_by_their_field(service: Service) -> None:
    """A client would look for a field `metadata`, which only the command line has."""
    status, body = ask(service.port, "POST", "/predict", encode({"reviews": [REVIEW]}))
    assert status == 422
    assert "products in Python or in a request" in json.loads(body)["detail"][0]["msg"]


def test_an_announced_length_that_is_too_much_is_refused_at_once(service: Service) -> None:
    """A client would send gigabytes before it gets the answer."""
    with begin(service.port, "content-length: 8000001", b'{"reviews": [') as connection:
        connection.settimeout(5)
        answer = received(connection)
    assert answer.startswith("HTTP/1.1 413 ")
    assert "a request may have at most 8000000 bytes" in answer


def test_what_is_no_request_is_refused(service: Service) -> None:
    """Bytes that are no JSON, another route or another method would get status 500."""
    assert ask(service.port, "POST", "/predict", b"{")[0] == 422
    assert ask(service.port, "POST", "/predict", b"\xff\xfe")[0] == 422
    assert ask(service.port, "GET", "/predict")[0] == 405
    assert ask(service.port, "GET", "/nothing")[0] == 404
    assert ask(service.port, "POST", "/predict/")[0] == 404, "a redirect would name the host that the request names"


def test_a_body_may_begin_with_a_byte_order_mark(service: Service, body_of_request: bytes) -> None:
    """A request that PowerShell or Notepad has saved would be refused for its first character, which no editor shows."""
    plain = ask(service.port, "POST", "/predict", body_of_request)
    assert plain[0] == 200
    assert ask(service.port, "POST", "/predict", b"\xef\xbb\xbf" + body_of_request) == plain


def test_too_much_is_refused(service: Service) -> None:
    """One client could fill the memory."""
    status, body = ask(service.port, "POST", "/predict", encode({"reviews": [REVIEW] * 20_001}))
    assert (status, json.loads(body)["detail"][0]["loc"]) == (413, ["body", "reviews"])
    status, body = ask(service.port, "POST", "/predict", b" " * 8_000_001)
    assert (status, json.loads(body)["detail"][0]["loc"]) == (413, ["body"])


def test_a_body_may_be_gzip(service: Service, body_of_request: bytes) -> None:
    """A client that compresses would read `Invalid JSON`, or a small body could expand to gigabytes."""
    packed, plain = gzip.compress(body_of_request), ask(service.port, "POST", "/predict", body_of_request)
    assert plain[0] == 200
    assert ask(service.port, "POST", "/predict", packed, "gzip") == plain
    refused = [(packed[:-9], "gzip"), (body_of_request, "gzip"), (packed, "br"), (gzip.compress(b" " * 8_000_001), "gzip")]
    refused.append((packed + gzip.compress(b"[]"), "gzip"))
    answers = [ask(service.port, "POST", "/predict", body, encoding) for body, encoding in refused]
    assert [status for status, _ in answers] == [422, 422, 415, 413, 422]
    sentences = [json.loads(body)["detail"][0]["msg"] for _, body in answers]
    assert "ends early" in sentences[0]
    assert "but the body is not (" in sentences[1]
    assert sentences[2] == "the content-encoding 'br' is unknown here: send the body as gzip, or as it is"
    assert "ends before the body does" in sentences[4]


def test_schema_and_health(service: Service) -> None:
    """A client would not know what to send, and a load balancer not whether the service works."""
    status, body = ask(service.port, "GET", "/schema")
    schema = json.loads(body)
    assert status == 200
    assert {"parent_asin", "user_id", "rating", "timestamp"} == set(schema["request"]["$defs"]["Review"]["required"])
    assert schema["limits"] == {"max_reviews": 20_000, "max_bytes": 8_000_000}
    assert sum(schema["ensemble"]["members"].values()) == pytest.approx(1)
    assert ask(service.port, "GET", "/health") == (200, b'{"status":"ok","lost":[]}')
    assert [ask(service.port, "HEAD", path) for path in ("/health", "/schema", "/metrics")] == [(200, b"")] * 3


def samples(port: int) -> dict[str, float]:
    """The metrics as Prometheus reads them, by their name with labels."""
    from prometheus_client.parser import text_string_to_metric_families

    status, body = ask(port, "GET", "/metrics")
    assert status == 200
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_metrics_count(service: Service, body_of_request: bytes, request_rows: Any) -> None:
    """Monitoring would see no requests, or a label for each path that anyone tries."""
    before = samples(service.port)
    assert ask(service.port, "POST", "/predict", body_of_request)[0] == 200
    assert ask(service.port, "POST", "/predict", b"{")[0] == 422
    for number in range(3):
        assert ask(service.port, "GET", f"/guess-{number}")[0] == 404
    after = samples(service.port)
    grown = {name: value - before.get(name, 0) for name, value in after.items() if "_created" not in name}
    assert grown["ensemble_requests_total /predict 200"] == 1
    assert grown["ensemble_requests_total /predict 422"] == 1
    assert grown["ensemble_requests_total other 404"] == 3
    assert not any("guess" in name for name in after)
    assert grown["ensemble_request_seconds_count /predict"] == 2
    assert grown["ensemble_reviews_total"] == len(request_rows["reviews"])
    assert grown["ensemble_forecasts_total"] > 0


def megabytes(service: Service) -> float:
    """Memory of the service and its members that is not shared with other processes."""
    root = psutil.Process(service.process.pid)
    return sum(process.memory_full_info().uss for process in [root, *root.children(recursive=True)]) / 1e6


def test_many_clients_at_once(service: Service, request_rows: Any) -> None:
    """Requests would be mixed, a mistake of a client would affect the answer to another, or memory would grow."""
    last = sorted(request_rows["reviews"], key=lambda row: row["timestamp"])[-400:]
    bodies = [encode({"reviews": last[-size:], "products": request_rows["products"]}) for size in (100, 200, 300, 400)]
    bad = [encode({"reviews": [{**REVIEW, "rating": -1}]}), b"{", encode({"reviews": [REVIEW] * 20_001})]
    expected = [json.loads(ask(service.port, "POST", "/predict", body)[1])["forecast"] for body in bodies]
    assert len({len(forecast) for forecast in expected}) > 1, "mixed answers could not be told apart"
    faults: list[str] = []
    count = [0, 0]
    end = [time.monotonic() + DURATION_S]

    def client(number: int) -> None:
        turn = number
        while time.monotonic() < end[0]:
            turn += 1
            try:
                if number % 4 == 3:
                    status, _ = ask(service.port, "POST", "/predict", bad[turn % len(bad)])
                    count[1] += 1
                    if status not in (413, 422):
                        faults.append(f"a bad request was answered with {status}")
                    continue
                which = turn % len(bodies)
                status, body = ask(service.port, "POST", "/predict", bodies[which])
                count[0] += 1
                if status != 200 or json.loads(body)["forecast"] != expected[which]:
                    faults.append(f"request {which}: {status} {body[:200]!r}")
            except Exception as error:
                faults.append(repr(error))

    def storm(duration_s: float) -> None:
        end[0] = time.monotonic() + duration_s
        clients = [threading.Thread(target=client, args=[number]) for number in range(NUM_CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()

    storm(DURATION_S / 4)  # buffers and caches reach their size
    before, count[:] = megabytes(service), [0, 0]
    storm(DURATION_S)
    after = megabytes(service)
    print(f"{count[0]} forecasts and {count[1]} refusals in {DURATION_S} s; {before:.0f} MB before, {after:.0f} MB after")
    assert not faults, faults[:3]
    assert min(count) > 0
    assert after < 1.1 * before + 20


def test_what_is_under_way_is_finished(trees: Path, body_of_request: bytes) -> None:
    """A rollout would cut clients off in the middle of their requests, or leave members without a service."""
    service = Service(trees)
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert len(children) == 3
    answers: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(service.port, "POST", "/predict", body_of_request)))
    for child in children:
        child.suspend()  # so that the request is not answered before the service is asked to stop, on any machine
    asking.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not any(
        connection.status == psutil.CONN_ESTABLISHED for connection in psutil.Process(service.process.pid).net_connections()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)  # the request is read
    assert not answers, "this test could not fail"
    threading.Timer(1, lambda: [child.resume() for child in children]).start()
    code, log = service.stop()
    asking.join()
    assert (code, log.splitlines()[-1]) == (0, "stopped")
    assert [status for status, _ in answers] == [200]
    assert not psutil.wait_procs(children, timeout=10)[1]
    with pytest.raises(ConnectionRefusedError):
        ask(service.port, "GET", "/health")


def begin(port: int, headers: str, body: bytes) -> socket.socket:
    """A request whose body is not sent to its end."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    connection.sendall(f"POST /predict HTTP/1.1\r\nhost: here\r\n{headers}\r\n\r\n".encode() + body)
    return connection


def received(connection: socket.socket) -> str:
    """An answer in JSON, whose head and body may come one after the other."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(10_000)
    return answer.decode()


def counted(port: int, status: int) -> float:
    """Requests that were answered with `status`, once the last has been counted."""
    time.sleep(0.5)
    return samples(port).get(f"ensemble_requests_total /predict {status}", 0)


def test_bodies_that_do_not_end(trees: Path) -> None:
    """A slow client would hold its connection for ever; one that disconnects would count as an error of the service."""
    service = Service(trees, "body_timeout_s=2", "stop_timeout_s=1")
    began = time.monotonic()
    with begin(service.port, "content-length: 1000", b'{"reviews": [') as slow:
        answer = received(slow)
    assert answer.startswith("HTTP/1.1 408 ")
    assert "the body had not arrived after 2 s: send it faster" in answer
    assert 1 < time.monotonic() - began < 60
    begin(service.port, "content-length: 1000", b'{"reviews": [').close()
    with begin(service.port, "transfer-encoding: chunked", b"5\r\nhello\r\nno number\r\n") as broken:
        broken.recv(10_000)
    assert (counted(service.port, 400), counted(service.port, 408), counted(service.port, 500)) == (2, 1, 0)
    half_sent = [begin(service.port, "content-length: 1000", b"{") for _ in range(3)]
    time.sleep(0.5)
    code, log = service.stop()
    assert [connection.recv(100)[:12] for connection in half_sent] == [b"HTTP/1.1 503"] * 3
    for connection in half_sent:
        connection.close()
    assert (code, "Traceback" in log, log.splitlines()[-1]) == (0, False, "stopped"), log


@contextlib.contextmanager
def served(monkeypatch: pytest.MonkeyPatch, run: Any, predictor: Any) -> Iterator[None]:
    """A context in which `serve` loads this predictor, and calls `run` in place of the server."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(service_module, "make_app", lambda *_: None)
    monkeypatch.setattr(Predictor, "load", lambda *_: predictor)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)


def test_a_signal_before_the_server_runs_is_not_lost(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A service that is stopped while it starts would never end."""

    def run(server: uvicorn.Server, sockets: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        assert server.should_exit

    with served(monkeypatch, run, Predictor(*[cast(Any, None)] * 2, {}, None, Path())):
        service_module.serve(ServeConfig(ensemble="any", host="::1", port=0))
    assert capsys.readouterr().out.startswith("serving any at http://[::1]:")


def test_a_busy_service_is_healthy() -> None:
    """A load balancer would regard a service with many requests in progress as dead, and restart it."""
    num_predicting, is_free = [0], threading.Event()

    def predict_with_notes(*tables: Any) -> None:
        num_predicting[0] += 1
        is_free.wait(TIMEOUT_S)
        raise UserError("no forecast")

    async def status_of(method: str, path: str, body: bytes = b"") -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}, receive, send)
        return int(sent[0]["status"])

    async def ask_while_busy() -> list[int]:
        num_threads = anyio.to_thread.current_default_thread_limiter().total_tokens
        rows = encode({"rows": [{"a": 1}]})
        busy = [asyncio.create_task(status_of("POST", "/predict", rows)) for _ in range(int(num_threads))]
        while num_predicting[0] < num_threads:
            await asyncio.sleep(0.01)
        answers = [await asyncio.wait_for(status_of("GET", path), 20) for path in ("/health", "/metrics")]
        is_free.set()
        return answers + await asyncio.gather(*busy)

    manifest = {"recipe": "table", "config": {"missing": []}, "features": [{"column": "a", "name": "a", "unit": ""}]}
    predictor: Any = SimpleNamespace(manifest=manifest, lost=list, predict_with_notes=predict_with_notes)
    app = service_module.make_app(predictor, ServeConfig(ensemble="any"))
    answers = asyncio.run(ask_while_busy())
    assert (answers[:2], set(answers[2:])) == ([200, 200], {422})


def test_a_prediction_that_hangs_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose clients all got 503 would continue to compute their forecasts, or would never end."""
    worker = Worker(PREPARATION, {"trusted": [], "manifest": {"recipe": "table"}})
    worker.wait()
    failed: list[bool] = []

    def predict() -> None:
        with contextlib.suppress(Failure):
            worker.run({})
        failed.append(True)

    def run(server: uvicorn.Server, sockets: Any) -> None:
        psutil.Process(worker.process.pid).suspend()
        threading.Thread(target=predict, daemon=True).start()
        time.sleep(0.5)  # the task is sent
        assert not failed, "this test could not fail"

    hangs = threading.Timer(TIMEOUT_S, lambda: (failed.append(False), worker.process.kill()))
    hangs.start()
    predictor = Predictor(*[cast(Any, None)] * 2, {PREPARATION: worker}, None, Path())
    with served(monkeypatch, run, predictor):
        service_module.serve(ServeConfig(ensemble="any", port=0))
    hangs.cancel()
    assert False not in failed
    assert worker.process.returncode == -signal.SIGKILL


def test_a_lost_member_is_no_health(trees: Path, body_of_request: bytes) -> None:
    """A load balancer would continue to send requests to a service that cannot answer."""
    service = Service(trees)
    try:
        for process in psutil.Process(service.process.pid).children():
            process.kill()
        answers = (ask(service.port, "GET", "/health") for _ in range(1000))
        status, body = next(answer for answer in answers if answer[1].count(b",") == 3)  # all three are seen to be gone
        assert (status, sorted(json.loads(body)["lost"])) == (503, ["lightgbm", "preparation", "xgboost"])
        assert ask(service.port, "POST", "/predict", body_of_request)[0] == 503
    finally:
        service.stop()


def test_without_its_folder_for_temporary_files_it_names_the_folder(
    trees: Path, body_of_request: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a cleaner had deleted the folder TMPDIR, each request would end in a traceback in the log and a status 500."""
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path / "files"))
    (tmp_path / "files").mkdir()
    service = Service(trees)
    try:
        for act, status in ((None, 200), (Path.rmdir, 503), (Path.mkdir, 200)):
            if act:
                act(tmp_path / "files")
            assert ask(service.port, "POST", "/predict", body_of_request)[0] == status
    finally:
        _, output = service.stop()
    assert "failed: no temporary files can be written ([Errno 2] No such file or directory" in output
    assert "Traceback" not in output


def test_a_full_disk_of_temporary_files_is_no_fault_of_the_client(
    trees: Path, body_of_request: bytes, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 422 a client would discard its rows, and no monitor would report the service."""
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(small_disk))
    service = Service(trees)
    ballast = small_disk / "ballast"
    try:
        assert ask(service.port, "POST", "/predict", body_of_request)[0] == 200
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(1 << 16))
        assert ask(service.port, "POST", "/predict", body_of_request)[0] == 503
        ballast.unlink()
        assert ask(service.port, "POST", "/predict", body_of_request)[0] == 200
    finally:
        _, output = service.stop()
    assert f"failed: the disk of temporary files, {small_disk}, is full: free some space" in output
