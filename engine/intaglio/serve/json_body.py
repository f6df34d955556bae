"""A request's body: read within its limits, and parsed more strictly than JSON libraries do by default."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from intaglio.serve.api_error import ApiError
from intaglio.serve.fields import UNSUPPORTED
from intaglio.serve.limits import ServerLimits

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Below this a body is parsed at once; above, on a thread, so that other clients' tokens go on flowing.
_INLINE_BYTES = 1 << 16

Body = TypeVar("Body", bound=BaseModel)


async def read(request: Request, model: type[Body], limits: ServerLimits) -> Body:
    """The body as `model`. Raises ApiError 400, 408, 413 or 415; ClientDisconnect when the client has left."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send the body as application/json", code="unsupported_media_type")
    raw = await _read_bytes(request, limits)
    if len(raw) <= _INLINE_BYTES:
        return validate(parse(raw), model)
    return await asyncio.to_thread(lambda: validate(parse(raw), model))


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object. Refuses duplicate names, NaN, infinities, lone surrogates and what is too deep (ApiError)."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise _bad("the body is not valid Unicode text (UTF-8, no lone surrogates)") from None
    except RecursionError:
        raise _bad("the body is nested too deeply; send a flat object") from None
    except ValueError as error:
        raise _bad(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise _bad("the body must be a JSON object")
    return value


def validate(value: dict[str, Any], model: type[Body]) -> Body:
    """The object as `model`. Raises ApiError 400 naming the first wrong field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"]] or [""]
    name = place[0]
    if first["type"] == "extra_forbidden" or name in UNSUPPORTED:
        path = ".".join(place) if first["type"] == "extra_forbidden" else name
        raise ApiError(
            400,
            f"{path[:100]} is not supported here; leave it out",
            code="unsupported_parameter",
            param=name[:100],
        )
    field = model.model_fields.get(name)
    hint = f"; give {field.description}" if field is not None and field.description else ""
    where = f"{name}[{place[1]}]" if len(place) > 1 and place[1].isdigit() else name
    raise ApiError(400, f"{where}: {first['msg'].lower()}{hint}", code="invalid_parameter", param=name)


async def _read_bytes(request: Request, limits: ServerLimits) -> bytes:
    most = limits.max_body_bytes
    too_large = ApiError(
        413,
        f"the body is larger than {most} bytes; shorten it",
        code="body_too_large",
        headers={"connection": "close"},
    )
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > most):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {limits.body_timeout_s:g} s",
            code="body_timeout",
            headers={"connection": "close"},
        ) from None
    except ClientDisconnect:
        raise
    return b"".join(parts)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name is given twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _bad(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")
