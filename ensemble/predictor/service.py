"""Serve a loaded ensemble over HTTP: a request contains raw rows, such as reviews, and the response their forecast.

    python scripts/serve.py ensemble=runs/demo/ensemble port=8000
    curl -H 'content-type: application/json' -d @request.json http://127.0.0.1:8000/predict

    POST /predict   {"reviews": […], "products": […]}, or {"rows": […]} of a table, to {"forecast": […], "notes": […]}, where
                    notes are messages about unusual rows, such as cells that count as empty; requests.py of the recipe
                    defines the fields
    GET /schema     the JSON schema of a request, its limits, and the loaded members with their weights
    GET /health     200 once the members are loaded, 503 when one of their processes has ended
    GET /metrics    counts and latencies for Prometheus

A body may be compressed, with `content-encoding: gzip`; another encoding is answered with status 415. An invalid request is
answered with 422 and the name of the field, one that is too large with 413, a body that arrives too slowly with 408. A body
that is not complete is counted as 400. If a worker process fails or the disk of temporary files is full, the answer has
status 503. SIGTERM ends the service after the requests under way; those that take longer than stop_timeout_s are answered
with 503.
"""

import asyncio
import codecs
import gc
import signal
import socket
import sys
import time
import zlib
from http import HTTPStatus
from types import ModuleType
from typing import Any

from ensemble import configuration, recipe
from ensemble.data.octets import repeated_key
from ensemble.errors import Failure, UserError, full_temporary_disk, shortened
from ensemble.predictor.settings import ServeConfig

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from pydantic import ValidationError
    from pydantic_core import to_json
    from starlette.requests import ClientDisconnect
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise UserError(f"the package {error.name} is not installed: pip install 'accelerate-ensemble[serve]'") from None

from ensemble.predictor import new_data
from ensemble.predictor.forecast import value_as_text
from ensemble.predictor.loaded import Predictor

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROUTES = ("/predict", "/schema", "/health", "/metrics")
READING = ["GET", "HEAD"]


def serve(settings: ServeConfig) -> None:
    """Load the ensemble and answer requests until SIGTERM or Ctrl-C; requests under way are finished first.

    Raises `UserError` for an ensemble that cannot be loaded, impossible limits, and an address that is not available.
    """
    is_named = settings.host != "", "an address, such as 127.0.0.1, or 0.0.0.0 for all of this machine"
    configuration.check(settings, at_least_1="max_reviews max_bytes body_timeout_s stop_timeout_s", host=is_named)
    with _listen(settings.host, settings.port) as listener, Predictor.load(settings.ensemble, settings.threads) as predictor:
        # A request creates tens of thousands of objects, and each collection would scan the objects of all libraries
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 10, 10)
        host, port = listener.getsockname()[:2]
        options = uvicorn.Config(
            make_app(predictor, settings),
            log_level="warning",
            access_log=False,
            lifespan="off",  # the app has none, and uvicorn logs a traceback of it after a second Ctrl-C
            timeout_graceful_shutdown=settings.stop_timeout_s,
        )
        server = uvicorn.Server(options)
        for number in (signal.SIGINT, signal.SIGTERM):
            # For signals before uvicorn handles them; after it has stopped, it raises the signal again
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        print(f"serving {settings.ensemble} at http://{host if ':' not in host else f'[{host}]'}:{port}", flush=True)
        server.run(sockets=[listener])
        # Every request is answered; a worker that still computes does so for a request that was answered with 503
        for worker in predictor.workers.values():
            worker.process.kill()
    print("stopped", file=sys.stderr)


def make_app(predictor: Predictor, settings: ServeConfig) -> ASGIApp:
    """The routes that the module's docstring lists, and their metrics."""
    app = FastAPI(title="accelerate-ensemble", openapi_url=None, redirect_slashes=False)
    request_module = _request_module(predictor)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    reviews = Counter("ensemble_reviews", "Reviews, or rows of a table, in answered requests", registry=registry)
    forecasts = Counter("ensemble_forecasts", "Rows of the forecasts in answers", registry=registry)

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        body = await _body(request, settings)
        encoding = request.headers.get("content-encoding", "identity").lower()
        if isinstance(body, bytes) and encoding != "identity":
            body = await run_in_threadpool(_decompressed, body, encoding, settings.max_bytes)
        if isinstance(body, Response):
            return body
        return await run_in_threadpool(_predict, predictor, settings, body, reviews, forecasts)

    # `async`: other functions would wait for a thread, and all of them may be predicting
    @app.api_route("/schema", methods=READING)
    async def schema() -> dict[str, Any]:
        manifest = predictor.manifest
        return {
            "request": request_module.Request.model_json_schema(),
            "limits": {"max_reviews": settings.max_reviews, "max_bytes": settings.max_bytes},
            "ensemble": {
                "recipe": manifest["recipe"],
                "fingerprint": manifest["fingerprint"],
                "members": dict(zip(predictor.ensemble.member_names, predictor.ensemble.weights, strict=True)),
                **request_module.facts(manifest),
            },
        }

    @app.api_route("/health", methods=READING)
    async def health() -> Response:
        lost = predictor.lost()
        status = HTTPStatus.SERVICE_UNAVAILABLE if lost else HTTPStatus.OK
        return JSONResponse({"status": "lost" if lost else "ok", "lost": lost}, status)

    @app.api_route("/metrics", methods=READING)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return _measured(app, registry)


def _measured(app: ASGIApp, registry: CollectorRegistry) -> ASGIApp:
    """The app, with its requests counted and timed."""
    requests = Counter("ensemble_requests", "Requests by route and status", ("route", "status"), registry=registry)
    seconds = Histogram(
        "ensemble_request_seconds",
        "From the first byte to the answer",
        ("route",),
        buckets=LATENCY_BUCKETS_S,
        registry=registry,
    )

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        start = time.perf_counter()
        route = scope["path"] if scope["path"] in ROUTES else "other"  # a label for every path would fill the memory
        status, is_answered = HTTPStatus.INTERNAL_SERVER_ERROR.value, False

        async def send_and_record(message: Message) -> None:
            nonlocal status, is_answered
            status, is_answered = message.get("status", status), True
            await send(message)

        try:
            await app(scope, receive, send_and_record)
        except asyncio.CancelledError:  # stop_timeout_s has passed; uvicorn would log this as an error of the app
            if not is_answered:
                refusal = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, [], "the service is being stopped: use another")
                await refusal(scope, receive, send_and_record)
        finally:
            requests.labels(route, str(status)).inc()
            seconds.labels(route).observe(time.perf_counter() - start)

    return measured


def _predict(predictor: Predictor, settings: ServeConfig, body: bytes, reviews: Counter, forecasts: Counter) -> Response:
    """The response to a request's body; the rows of an answered request and of its forecast are counted."""
    request_module = _request_module(predictor)
    try:
        request = request_module.Request.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)[:100]
        return JSONResponse({"detail": [{**each, "loc": ["body", *each["loc"]]} for each in details]}, 422)
    if (key := repeated_key(body)) is not None:
        sentence = f"the key '{key}' is twice in one object: keep one of them"
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, [], sentence)
    counts = request_module.counts(request)
    for name, count in counts.items():
        if count > settings.max_reviews:
            sentence = f"{count} {name} are more than the {settings.max_reviews} that a request may have: send fewer"
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [name], sentence)
    if problem := request_module.problem(request, predictor.manifest):
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, *problem)
    source = next(iter(counts))
    try:
        forecast, notes = predictor.predict_with_notes(*request_module.tables(request))
    except (UserError, Failure) as error:
        if isinstance(error, UserError) and str(error) != str(full_temporary_disk()):  # of which the client knows nothing
            return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, [source], str(error))
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, [], "a member could not predict: look at the service's log")
    metadata = {name.decode(): value.decode() for name, value in (forecast.schema.metadata or {}).items()}
    rows = forecast.to_pylist()
    features = {feature["name"]: feature for feature in predictor.manifest["features"]}
    for row in rows:
        for reason in row["reasons"]:
            text = value_as_text(reason["value"], features.get(reason["feature"], {}))
            reason |= {} if text is None else {"text": text}
        row["members"] = {name: row.pop(name) for name in predictor.ensemble.member_names if name in row}
    meaning = new_data.meaning_of(predictor.manifest)
    answer = {
        **request_module.answer(metadata),
        **({"meaning": meaning} if meaning else {}),
        "forecast": rows,
        "notes": notes,
    }
    content = to_json(answer, inf_nan_mode="null")  # the value of an unknown feature is NaN, which JSON does not have
    reviews.inc(counts[source])
    forecasts.inc(len(rows))
    return Response(content, media_type="application/json")


def _request_module(predictor: Predictor) -> ModuleType:
    """The module requests.py of the ensemble's recipe, which defines the fields of a request."""
    module = recipe.of(predictor.manifest).module("requests")
    if module is None:
        raise UserError(f"the recipe {predictor.manifest['recipe']} has no requests.py, so it cannot be served over HTTP")
    return module


async def _body(request: Request, settings: ServeConfig) -> bytes | Response:
    """The request's body; or a refusal of one that is too large, too slow or not complete, whose rest is not read.

    A header Content-Length above `max_bytes` is refused before anything is read.
    """
    too_large = f"a request may have at most {settings.max_bytes} bytes: send less"
    length, body = request.headers.get("content-length", ""), bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            if length.isdecimal() and int(length) > settings.max_bytes:
                return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [], too_large)
            async for chunk in request.stream():
                body += chunk
                if len(body) > settings.max_bytes:
                    return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [], too_large)
    except TimeoutError:
        sentence = f"the body had not arrived after {settings.body_timeout_s} s: send it faster, or less of it"
        return _refusal(HTTPStatus.REQUEST_TIMEOUT, [], sentence)
    except ClientDisconnect:
        return _refusal(HTTPStatus.BAD_REQUEST, [], "the connection closed before the body was complete: send it again")
    return bytes(body)


def _decompressed(body: bytes, encoding: str, max_bytes: int) -> bytes | Response:
    """The body of a request with this header Content-Encoding; or a refusal of one that is too large after decompression,
    damaged or in an unknown encoding."""
    if encoding != "gzip":
        sentence = f"the content-encoding {shortened(encoding)!r} is unknown here: send the body as gzip, or as it is"
        return _refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, [], sentence)
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16 for the header of gzip
    try:
        content = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        sentence = f"content-encoding is gzip, but the body is not ({error}): compress it, or leave out the header"
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, [], sentence)
    if len(content) > max_bytes:
        sentence = f"a request may have at most {max_bytes} bytes after decompression: send less"
        return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [], sentence)
    if not stream.eof or stream.unused_data:
        ends = "before the body does" if stream.eof else "early"
        sentence = f"the gzip stream of the body ends {ends}: compress the whole body again"
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, [], sentence)
    return content


def _refusal(status: HTTPStatus, place: list[str | int], sentence: str) -> Response:
    """An error response in the format of pydantic's errors.

    After a status in `unread` the connection is closed, since the request may not have been read to its end.
    """
    unread = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)
    headers = {"connection": "close"} if status in unread else None
    return JSONResponse({"detail": [{"loc": ["body", *place], "msg": sentence, "type": "refused"}]}, status, headers)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; `UserError` if the address is not available."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError, TypeError) as error:
        raise UserError(f"host={host} port={port} is not available ({error}): choose another, or port=0") from None
