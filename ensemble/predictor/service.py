"""A loaded ensemble over HTTP: a request holds raw reviews, its answer the ranked forecast.

    python scripts/serve.py ensemble=runs/demo/ensemble port=8000
    curl -H 'content-type: application/json' -d @request.json http://127.0.0.1:8000/predict

    POST /predict   {"reviews": […], "products": […]} to {"forecast": […]}; the recipe's requests.py has the fields
    GET /schema     the JSON schema of a request, its limits, and what the ensemble is
    GET /health     200 once the members are loaded, 503 when one of their processes is gone
    GET /metrics    counts and latencies for Prometheus

What is wrong with a request is answered with 422 and names the field, what is too large with 413, a body that comes too
slowly with 408, and one that breaks off is counted as 400. SIGTERM ends the service after the requests under way; those that
take longer than stop_timeout_s are answered with 503.
"""

import asyncio
import gc
import signal
import socket
import sys
import time
from http import HTTPStatus
from types import ModuleType
from typing import Any

from ensemble import recipe
from ensemble.errors import Failure, UserError
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

from ensemble.predictor.loaded import Predictor

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROUTES = ("/predict", "/schema", "/health", "/metrics")


def serve(settings: ServeConfig) -> None:
    """Load the ensemble and answer requests until SIGTERM or Ctrl-C; those under way are finished first.

    Raises `UserError` for an ensemble that cannot be loaded, impossible limits, and an address that cannot be listened at.
    """
    for name in ("max_reviews", "max_bytes", "body_timeout_s", "stop_timeout_s"):
        if getattr(settings, name) < 1:
            raise UserError(f"{name}={getattr(settings, name)} is impossible: it must be at least 1")
    with (
        _listen(settings.host, settings.port) as listener,
        Predictor.load(settings.ensemble, settings.threads) as predictor,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises the one that stopped it again: it was obeyed
        # A request makes tens of thousands of objects: the collector would look through all libraries' again and again
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 10, 10)
        host, port = listener.getsockname()[:2]
        print(f"serving {settings.ensemble} at http://{host}:{port}", flush=True)
        options = uvicorn.Config(
            make_app(predictor, settings),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=settings.stop_timeout_s,
        )
        uvicorn.Server(options).run(sockets=[listener])
    print("stopped", file=sys.stderr)


def make_app(predictor: Predictor, settings: ServeConfig) -> ASGIApp:
    """The routes that the module's docstring lists, and their metrics."""
    app = FastAPI(title="accelerate-ensemble", openapi_url=None)
    requests_of = _requests_of(predictor)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    requests = Counter("ensemble_requests", "Requests by route and status", ("route", "status"), registry=registry)
    seconds = Histogram(
        "ensemble_request_seconds",
        "From the first byte to the answer",
        ("route",),
        buckets=LATENCY_BUCKETS_S,
        registry=registry,
    )
    reviews = Counter("ensemble_reviews", "Reviews in answered requests", registry=registry)
    forecasts = Counter("ensemble_forecasts", "Products in answers", registry=registry)

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                body = await _body(request, settings.max_bytes)
        except TimeoutError:
            sentence = f"the body had not come after {settings.body_timeout_s} s: send it faster, or less of it"
            return _refusal(HTTPStatus.REQUEST_TIMEOUT, [], sentence)
        except ClientDisconnect:
            return _refusal(HTTPStatus.BAD_REQUEST, [], "the body broke off before it was whole: send the request again")
        if body is None:
            return _refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [], f"a request may have at most {settings.max_bytes} bytes: send less"
            )
        answer, num_reviews, num_forecasts = await run_in_threadpool(_predict, predictor, settings, body)
        reviews.inc(num_reviews)
        forecasts.inc(num_forecasts)
        return answer

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        like = predictor.like
        return {
            "request": requests_of.Request.model_json_schema(),
            "limits": {"max_reviews": settings.max_reviews, "max_bytes": settings.max_bytes},
            "ensemble": {
                "recipe": like["recipe"],
                "fingerprint": like["fingerprint"],
                "members": dict(zip(predictor.ensemble.member_names, predictor.ensemble.weights, strict=True)),
                **requests_of.facts(like),
            },
        }

    @app.get("/health")
    def health() -> Response:
        lost = predictor.lost()
        status = HTTPStatus.SERVICE_UNAVAILABLE if lost else HTTPStatus.OK
        return JSONResponse({"status": "lost" if lost else "ok", "lost": lost}, status)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        """The app itself, its requests counted and timed."""
        if scope["type"] != "http":
            return await app(scope, receive, send)
        began = time.perf_counter()
        route = scope["path"] if scope["path"] in ROUTES else "other"  # any path for a label would fill the memory
        status, is_answered = HTTPStatus.INTERNAL_SERVER_ERROR.value, False

        async def noting(message: Message) -> None:
            nonlocal status, is_answered
            status, is_answered = message.get("status", status), True
            await send(message)

        try:
            await app(scope, receive, noting)
        except asyncio.CancelledError:  # the time for what was under way is up; uvicorn would log it as our mistake
            if not is_answered:
                refusal = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, [], "the service is being stopped: ask another")
                await refusal(scope, receive, noting)
        finally:
            requests.labels(route, str(status)).inc()
            seconds.labels(route).observe(time.perf_counter() - began)

    return measured


def _predict(predictor: Predictor, settings: ServeConfig, body: bytes) -> tuple[Response, int, int]:
    """The answer to a request's body, and how many reviews went in and products came out."""
    requests_of = _requests_of(predictor)
    try:
        request = requests_of.Request.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return JSONResponse({"detail": [{**one, "loc": ["body", *one["loc"]]} for one in details[:100]]}, 422), 0, 0
    counts = requests_of.counts(request)
    for name, count in counts.items():
        if count > settings.max_reviews:
            sentence = f"{count} {name} are more than the {settings.max_reviews} that a request may have: send fewer"
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [name], sentence), 0, 0
    if problem := requests_of.problem(request, predictor.like):
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, *problem), 0, 0
    source = next(iter(counts))
    try:
        forecast = predictor.predict(*requests_of.tables(request))
    except UserError as error:
        return _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, [source], str(error)), 0, 0
    except Failure as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, [], "a member could not answer: look at the service's log"), 0, 0
    about = {name.decode(): value.decode() for name, value in (forecast.schema.metadata or {}).items()}
    found = forecast.to_pylist()
    for row in found:
        row["members"] = {name: row.pop(name) for name in predictor.ensemble.member_names if name in row}
    answer = {**requests_of.answer(about), "forecast": found}
    content = to_json(answer, inf_nan_mode="null")  # the value of an unknown feature, for which JSON has no number
    return Response(content, media_type="application/json"), counts[source], len(found)


def _requests_of(predictor: Predictor) -> ModuleType:
    """What a request holds, by the ensemble's recipe."""
    found = recipe.of(predictor.like).module("requests")
    if found is None:
        raise UserError(f"the recipe {predictor.like['recipe']} has no requests.py, so it cannot be served over HTTP")
    return found


async def _body(request: Request, max_bytes: int) -> bytes | None:
    """The request's body, or None if it is longer than it may be; then the rest is not kept.

    A length that is announced in the head is judged before anything is read.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)


def _refusal(status: HTTPStatus, place: list[str | int], sentence: str) -> Response:
    """In the form of a field's fault; what may not have been read to its end is not followed by another request."""
    unread = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)
    headers = {"connection": "close"} if status in unread else None
    return JSONResponse({"detail": [{"loc": ["body", *place], "msg": sentence, "type": "refused"}]}, status, headers)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise UserError(f"host={host} port={port} cannot be listened at ({error}): choose another, or port=0") from None
