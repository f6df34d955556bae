"""The HTTP application: routes, and one way from any failure to an answer in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from intaglio import __version__
from intaglio.errors import IntaglioError
from intaglio.serve import caches, generating, status
from intaglio.serve.api_error import ApiError, of_engine
from intaglio.serve.fields import CacheBody, ChatBody, CompletionBody, RefreshBody
from intaglio.serve.keys import Caller
from intaglio.serve.service import Service

_log = logging.getLogger("intaglio.serve")

Handler = Callable[[Service, Request, Caller], Awaitable[Response]]
Call = Callable[[Request], Awaitable[Response]]


def build(service: Service) -> FastAPI:
    """The application over a service. Its OpenAPI document stands at /openapi.json."""
    app = FastAPI(title="intaglio", version=__version__, docs_url=None, redoc_url=None)
    routes = _Routes(app, service)
    routes.add("POST", "/v1/completions", generating.complete, body=CompletionBody, works=True)
    routes.add("POST", "/v1/chat/completions", generating.chat, body=ChatBody, works=True)
    routes.add("POST", "/v1/caches", caches.create, body=CacheBody, works=True, status_code=201)
    routes.add("GET", "/v1/caches", caches.list_all)
    routes.add("GET", "/v1/caches/{id}", caches.get)
    routes.add("POST", "/v1/caches/{id}", caches.refresh, body=RefreshBody)
    routes.add("DELETE", "/v1/caches/{id}", caches.delete)
    routes.add("GET", "/v1/models", status.models)
    routes.add("GET", "/v1/models/{id:path}", status.model)
    routes.add("GET", "/health", status.health, access="open")
    routes.add("GET", "/metrics", status.prometheus, access="admin")
    routes.add("GET", "/intaglio/effective", status.effective, access="admin")
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)
    return app


class _Routes:
    """Adds handlers to an application, each behind the same gate."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self._app = app
        self._service = service

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        body: type[BaseModel] | None = None,
        access: str = "key",
        works: bool = False,
        status_code: int = 200,
    ) -> None:
        """access: open, key or admin. works: makes the engine work, so it is refused while draining."""
        extra: dict[str, Any] = {}
        if body is not None:
            schema = _self_contained(body)
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if "{id" in path:
            extra["parameters"] = [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            ]
        self._app.add_api_route(
            path,
            self._gate(f"{method} {path}", handler, access, works),
            methods=[method],
            response_model=None,
            status_code=status_code,
            openapi_extra=extra,
            responses={"4XX": {"description": "A typed error."}, "503": {"description": "Not now."}},
            operation_id=f"{handler.__module__.rsplit('.', 1)[-1]}_{handler.__name__}",
            summary=(handler.__doc__ or "").split(":")[0].strip("."),
        )

    def _gate(self, route: str, handler: Handler, access: str, works: bool) -> Call:
        service = self._service

        async def call(request: Request) -> Response:
            service.http_requests += 1
            try:
                response = await _guarded(service, request, handler, access, works)
            finally:
                service.http_requests -= 1
            service.metrics.http[route, response.status_code] += 1
            response.headers["x-intaglio-config"] = service.current.fingerprint
            return response

        return call


async def _guarded(
    service: Service, request: Request, handler: Handler, access: str, works: bool
) -> Response:
    try:
        caller = Caller("", admin=False) if access == "open" else service.caller(request)
        if access == "admin" and not caller.admin:
            raise ApiError(403, "this needs the key of an admin", code="not_admin")
        if service.http_requests > service.limits.max_http_requests:
            raise ApiError(
                429,
                "too many requests are being read or answered; send again in 1 s",
                code="too_many_requests",
                headers={"retry-after": "1"},
            )
        if works:
            service.check_serving()
        return await handler(service, request, caller)
    except ApiError as error:
        return error.response()
    except IntaglioError as error:
        return of_engine(error).response()
    except ClientDisconnect:
        service.metrics.departed()
        return Response(status_code=499)
    except asyncio.CancelledError:
        # A server that ends waits no longer for the rest of a body, but still says so.
        if not service.draining:
            raise
        return ApiError(503, "the server ends; the request had not arrived", code="draining").response()
    except Exception:
        _log.exception("a request failed")
        return ApiError(500, "the server failed on this request", code="internal").response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework refuses itself: unknown paths and methods."""
    code = error.status_code if isinstance(error, HTTPException) else 500
    headers = getattr(error, "headers", None)
    text = {
        404: f"there is no {request.url.path[:100]} here",
        405: f"{request.method} does not apply to {request.url.path[:100]}",
    }
    name = {404: "not_found", 405: "method_not_allowed"}.get(code, "http_error")
    return ApiError(code, text.get(code, str(error)), code=name, headers=headers).response()


async def _unforeseen(_: Request, __: Exception) -> Response:
    return ApiError(500, "the server failed on this request", code="internal").response()


def _self_contained(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema without references, so that it can stand inside an operation."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inline(definitions[node["$ref"].rsplit("/", 1)[-1]])
            return {key: inline(value) for key, value in node.items()}
        return [inline(item) for item in node] if isinstance(node, list) else node

    inlined: dict[str, Any] = inline(schema)
    return inlined
