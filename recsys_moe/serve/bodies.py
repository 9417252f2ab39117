"""Bodies of requests: read, checked by their types, or refused in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.exceptions import HTTPException

from recsys_moe.errors import suggestion
from recsys_moe.serve.http import JSON, refuse
from recsys_moe.serve.request_types import NewItem, NewUser, OwnEvent, UserEvent
from recsys_moe.serve.requests import EventsRequest

Body = TypeVar("Body", bound=BaseModel)
SHOWN = 3
"""Faults of a body that its message lists."""
SAID = ("value_error", "too_long")
"""Types of faults whose message has the value."""


async def read(request: Request, body: type[Body], max_body: int) -> Body:
    """The validated body. Raises 400, 413, 415 or 422."""
    _check_headers(request, max_body)
    raw = await _read_bytes(request, max_body)
    try:
        return parsed(raw, body)
    except ValidationError as error:
        raise _invalid(error, body) from None


def parsed(raw: bytes, body: type[Body]) -> Body:
    """`body.model_validate_json` in two thirds of the time where there are events: a validator
    that takes Python's own objects gets them without a copy. Of a name that is in an open object
    twice the last counts, and only that is checked. Raises ValidationError."""
    with suppress(ValueError):
        return body.model_validate(from_json(raw, cache_strings="keys"))
    return body.model_validate_json(raw)  # its faults name what the JSON has


def _check_headers(request: Request, max_body: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise refuse(415, f"Content-Type must be {JSON}, got {kind[:80] or 'none'}")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise refuse(415, "the body must not be compressed; send it without Content-Encoding")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > max_body:
        raise _too_large(max_body)


async def _read_bytes(request: Request, max_body: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise refuse(400, "the connection was closed before the body was complete")
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > max_body:
            raise _too_large(max_body)
        parts.append(part)
    return b"".join(parts)


def _too_large(max_body: int) -> HTTPException:
    return refuse(413, f"the body must be at most {max_body} bytes; send several requests")


def _invalid(error: ValidationError, body: type[BaseModel]) -> HTTPException:
    """422 with the first few faults, or 400 for invalid JSON."""
    faults = error.errors(include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        return refuse(400, f"{faults[0]['msg']}; send a JSON object")
    places: dict[str, list[ErrorDetails]] = {}
    for fault in faults:
        places.setdefault(_place(fault["loc"]), []).append(fault)
    texts = [
        f"{place}: {' or '.join(_words(one, body) for one in some[:SHOWN])}"
        for place, some in islice(places.items(), SHOWN)
    ]
    more = f" (and {len(places) - SHOWN} more)" if len(places) > SHOWN else ""
    return refuse(422, "; ".join(texts) + more)


def _words(fault: ErrorDetails, body: type[BaseModel]) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "too_short":  # all such lists need one
        return "must not be empty, got []; add an entry"
    if fault["type"] in SAID:
        return text
    got = json.dumps(fault["input"], default=repr)[:80]
    name = str(fault["loc"][-1])[:80] if fault["loc"] else "body"
    if fault["type"] == "missing":
        return f"field {name!r} must be given, got {got}; add it"
    if fault["type"] == "extra_forbidden":
        hint = suggestion(name, _owner(fault["loc"], body).model_fields)
        return f"there is no field {name!r}, got {got}; {hint}"
    return f"{text}, got {got}"


def _owner(location: Sequence[int | str], body: type[BaseModel]) -> type[BaseModel]:
    """The object at whose field a fault is."""
    if "events" in location[:-1]:
        return UserEvent if issubclass(body, EventsRequest) else OwnEvent
    return body if len(location) == 1 else NewUser if location[0] == "users" else NewItem


def _place(location: Sequence[int | str]) -> str:
    """("users", 3, "constrained-str") -> users[3]; ("events", "all", 3, "id") -> events[3].id"""
    text = str(location[0])[:80] if location else "body"
    is_event = text == "events"
    for before, part in pairwise(location):
        if isinstance(part, int):
            text += f"[{part}]"
        elif part == "events" or (is_event and isinstance(before, int)):
            text, is_event = f"{text}.{part[:80]}", True
    return text
