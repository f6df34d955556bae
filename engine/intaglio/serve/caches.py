"""The routes /v1/caches: documents computed once and used by id. A tenant sees its own and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from intaglio.contexts import ContextInfo
from intaglio.errors import IntaglioError
from intaglio.serve import json_body
from intaglio.serve.api_error import of_engine
from intaglio.serve.fields import CacheBody, RefreshBody
from intaglio.serve.keys import Caller
from intaglio.serve.service import Service

Result = TypeVar("Result")


async def create(service: Service, request: Request, caller: Caller) -> Response:
    """POST /v1/caches."""
    body = await json_body.read(request, CacheBody, service.limits)
    service.check_model(body.model)
    contexts = service.current.engine.contexts
    places = service.current.places
    places.take(1)
    try:
        # A client that leaves meanwhile does not end this: it finds the context in its list.
        info = await service.in_background(
            lambda: contexts.create(body.prompt, tenant=caller.tenant, ttl_s=body.ttl_s, name=body.name)
        )
    except IntaglioError as error:
        raise of_engine(error) from error
    finally:
        places.give_back()
    return JSONResponse(_document(info), 201)


async def list_all(service: Service, _: Request, caller: Caller) -> Response:
    """GET /v1/caches."""
    infos = await _call(lambda: service.current.engine.contexts.list(caller.tenant))
    return JSONResponse({"object": "list", "data": [_document(info) for info in infos]})


async def get(service: Service, request: Request, caller: Caller) -> Response:
    """GET /v1/caches/{id}."""
    name = request.path_params["id"]
    return JSONResponse(
        _document(await _call(lambda: service.current.engine.contexts.get(name, caller.tenant)))
    )


async def refresh(service: Service, request: Request, caller: Caller) -> Response:
    """POST /v1/caches/{id}."""
    body = await json_body.read(request, RefreshBody, service.limits)
    name = request.path_params["id"]
    info = await _call(lambda: service.current.engine.contexts.refresh(name, caller.tenant, body.ttl_s))
    return JSONResponse(_document(info))


async def delete(service: Service, request: Request, caller: Caller) -> Response:
    """DELETE /v1/caches/{id}."""
    name = request.path_params["id"]
    await _call(lambda: service.current.engine.contexts.delete(name, caller.tenant))
    return JSONResponse({"id": name, "object": "cache", "deleted": True})


async def _call(work: Callable[[], Result]) -> Result:
    try:
        return await asyncio.to_thread(work)
    except IntaglioError as error:
        raise of_engine(error) from error


def _document(info: ContextInfo) -> dict[str, Any]:
    # The tenant is left out: a caller has no business with names of tenants, its own included.
    return {
        "id": info.id,
        "object": "cache",
        "name": info.name,
        "tokens": info.tokens,
        "bytes": info.bytes,
        "created_utc": info.created_utc,
        "expires_utc": info.expires_utc,
        "version": info.version,
        "sha256": info.sha256,
    }
