"""Bodies of requests with the limits of a service."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

from pydantic import Field, StrictInt, create_model

from recsys_moe.serve.limits import Limits
from recsys_moe.serve.request_types import Id, NamedItem, Request, User, UserEvent
from recsys_moe.serve.requests import (
    EventsRequest,
    ExplainRequest,
    PredictRequest,
    RecommendRequest,
    SeenRequest,
    SimilarRequest,
)


def request_types(limits: Limits) -> dict[str, type[Request]]:
    """By path, without its slash: the request body, with the limits."""
    k = Annotated[StrictInt, Field(le=limits.max_k)]
    candidates = Annotated[list[Id], Field(min_length=1, max_length=limits.max_rows)] | None
    users = Annotated[list[User], Field(max_length=limits.max_users)]
    return {
        "predict": _bounded("PredictRequest", PredictRequest, **_pairs(limits.max_rows)),
        "recommend": _bounded(
            "RecommendRequest", RecommendRequest, users=users, k=k, candidates=candidates
        ),
        "explain": _bounded("ExplainRequest", ExplainRequest, **_pairs(limits.max_explain)),
        "events": _bounded(
            "EventsRequest",
            EventsRequest,
            events=Annotated[list[UserEvent], Field(max_length=limits.max_rows)],
        ),
        "similar": _bounded("SimilarRequest", SimilarRequest, k=k),
        "seen": _bounded("SeenRequest", SeenRequest, k=k),
    }


def _pairs(most: int) -> dict[str, Any]:
    bound = Field(max_length=most)
    return {"users": Annotated[list[User], bound], "items": Annotated[list[NamedItem], bound]}


def _bounded(name: str, base: type[Request], **kinds: Any) -> type[Request]:
    """`base` with other types of some fields, whose defaults and descriptions stay."""
    fields: dict[str, Any] = {
        field: (kind, copy(base.model_fields[field])) for field, kind in kinds.items()
    }
    return create_model(name, __base__=base, **fields)
