"""The routes, their OpenAPI document, and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HTTPRequest
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import recsys_moe
from recsys_moe.errors import UserError
from recsys_moe.serve import bodies, http
from recsys_moe.serve.bounded import request_types
from recsys_moe.serve.model_info import ModelReply
from recsys_moe.serve.page import add_page
from recsys_moe.serve.replies import (
    ErrorReply,
    EventsReply,
    ExplainReply,
    HealthReply,
    PredictReply,
    RecommendReply,
    ReloadReply,
    Reply,
    SeenReply,
    SimilarReply,
)
from recsys_moe.serve.request_types import Request
from recsys_moe.serve.service import Service

FAULTS = {
    400: "The body is not valid JSON or is incomplete.",
    401: "The API key is missing or wrong.",
    409: "The new model cannot be used; the old one stays in use.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    421: "Host header not allowed.",
    422: "The body is invalid; the message names the rule.",
    429: "The queue is full; try again after `Retry-After` seconds.",
    500: "Internal error.",
    503: "The service is shutting down, or cannot write events to its file.",
    504: "The answer took longer than `--timeout`.",
}
QUESTIONS: dict[str, tuple[str, type[Reply]]] = {
    "predict": ("Scores of pairs", PredictReply),
    "recommend": ("The k best items for each user", RecommendReply),
    "explain": (
        "The selected experts and feature attributions, per pair and task",
        ExplainReply,
    ),
    "events": ("Store what users did", EventsReply),
    "similar": ("The most similar items", SimilarReply),
    "seen": ("The items a user interacted with in training", SeenReply),
}
"""By path, without its slash: summary and reply."""
ASKING = (400, 413, 415, 422, 429, 504)


@dataclass(frozen=True)
class Route:
    """One path. `body` is None for GET; `replies` None for text."""

    path: str
    handle: http.Endpoint
    summary: str
    replies: type[BaseModel] | None
    body: type[BaseModel] | None = None
    method: str = "GET"
    faults: tuple[int, ...] = ()
    guarded: bool = True


def build_app(service: Service) -> FastAPI:
    """The ASGI application of a service."""
    app = FastAPI(
        title="recsys-moe",
        version=recsys_moe.__version__,
        description='Scores, rankings and explanations of one model. Errors are `{"error": ...}`.',
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to any Host, before the key is checked
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.add_exception_handler(HTTPException, http.on_http_error)
    for route in routes(service):
        _add(app, route, service)
    add_page(app)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(
        http.Metered,
        metrics=service.metrics,
        paths=paths,
        hosts=service.hosts,
        asking=frozenset(f"/{kind}" for kind in QUESTIONS),
        full=lambda: service.batcher.full,
    )
    return app


def routes(service: Service) -> list[Route]:
    """All routes of the service."""
    bodies = request_types(service.limits)
    asked = [_question(service, kind, body) for kind, body in bodies.items()]
    return [*asked, *_state(service), *([_reload(service)] if service.key else [])]


def _question(service: Service, kind: str, body: type[Request]) -> Route:
    async def handle(request: HTTPRequest) -> Response:
        asked = await bodies.read(request, body, service.limits.max_body)
        return http.reply(await service.answer(kind, asked))

    summary, replies = QUESTIONS[kind]
    faults = (*ASKING, 503) if kind == "events" else ASKING
    return Route(f"/{kind}", handle, summary, replies, body=body, method="POST", faults=faults)


def _state(service: Service) -> list[Route]:
    """The state of the service."""

    async def on_model(request: HTTPRequest) -> Response:
        return http.reply(service.describe())

    async def on_metrics(request: HTTPRequest) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def on_health(request: HTTPRequest) -> Response:
        return http.reply(HealthReply(status="ok"))

    async def on_ready(request: HTTPRequest) -> Response:
        if service.draining:
            raise http.refuse(503, "shutting down")
        return http.reply(HealthReply(status="ready"))

    health, alive, ready = HealthReply, "Liveness", "Readiness"
    return [
        Route("/model", on_model, "The model in use", ModelReply),
        Route("/metrics", on_metrics, "Metrics in Prometheus text format", None),
        Route("/healthz", on_health, alive, health, guarded=False),
        Route("/readyz", on_ready, ready, health, faults=(503,), guarded=False),
    ]


def _reload(service: Service) -> Route:
    """Exists only with an API key: otherwise anybody could make the service read files."""

    async def on_reload(request: HTTPRequest) -> Response:
        try:
            changed = await service.models.reload()
        except UserError as error:
            reason = str(error).replace(str(service.models.path), "the model folder")
            raise http.refuse(409, f"the old model stays in use: {reason}") from None
        version = service.models.current.version
        return http.reply(ReloadReply(model=version, changed=changed))

    summary = "Load the model that the folder holds now"
    reply = ReloadReply
    return Route("/reload", on_reload, summary, reply, method="POST", faults=(409,))


def _add(app: FastAPI, route: Route, service: Service) -> None:
    """Answer the route, behind the key where there is one, and document it."""
    key = service.key
    guarded = route.guarded and key is not None

    async def endpoint(request: HTTPRequest) -> Response:
        if guarded:
            http.check_key(request, key)
        return await route.handle(request)

    named = service.hosts is not None
    faults = (*route.faults, *((401,) if guarded else ()), *((421,) if named else ()), 500)
    app.add_api_route(
        route.path,
        endpoint,
        methods=[route.method],
        summary=route.summary,
        operation_id=route.path.strip("/"),
        response_class=Response,
        responses=_replies(route, faults),
        openapi_extra=_extra(route, guarded),
    )
    if route.method == "GET":  # the server sends the head alone
        app.add_api_route(route.path, endpoint, methods=["HEAD"], include_in_schema=False)


def _replies(route: Route, faults: tuple[int, ...]) -> dict[int | str, dict[str, Any]]:
    replies: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply, "description": FAULTS[status]} for status in sorted(faults)
    }
    if 429 in faults:
        header = {"description": "Seconds", "schema": {"type": "integer"}}
        replies[429]["headers"] = {"Retry-After": header}
    if route.replies is None:
        text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
        return {**replies, 200: {"description": route.summary, **text}}
    return {**replies, 200: {"description": route.summary, "model": route.replies}}


def _in_one_piece(schema: dict[str, Any]) -> Any:
    """The schema with its references resolved: they would point to the document's root."""
    named = schema.pop("$defs", {})

    def unfolded(part: Any) -> Any:
        if isinstance(part, list):
            return [unfolded(one) for one in part]
        if not isinstance(part, dict):
            return part
        whole = {**named.get(part.get("$ref", "").rpartition("/")[2], {}), **part}
        return {key: unfolded(value) for key, value in whole.items() if key != "$ref"}

    return unfolded(schema)


def _extra(route: Route, guarded: bool) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if route.body is not None:
        content = {http.JSON: {"schema": _in_one_piece(route.body.model_json_schema())}}
        extra["requestBody"] = {"required": True, "content": content}
    if guarded:
        extra["security"] = [{"key": []}]
    return extra
