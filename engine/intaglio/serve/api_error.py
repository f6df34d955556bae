"""Errors as the HTTP API shows them: OpenAI's shape, a status, and always the field and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from intaglio import errors
from intaglio.errors import IntaglioError, RequestError

# Which of the engine's errors is more than a bad request.
_STATUS: dict[type[IntaglioError], int] = {
    errors.UnknownContextError: 404,
    errors.ContextExpiredError: 404,
    errors.ContextQuotaError: 429,
    errors.ContextMismatchError: 409,
    errors.ContextDamagedError: 409,
    errors.DuplicateRequestError: 409,
    errors.QueueFullError: 429,
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """What a request is answered with instead of a result. `code` is stable and machine-readable."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document, {"error": {message, type, param, code}}."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        # A message may quote what was sent; what is no Unicode would make the answer itself unsendable.
        message = str(self).encode("utf-8", "backslashreplace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The HTTP answer."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def of_engine(error: IntaglioError, *, prompt_field: str = "prompt", retry_after: int = 1) -> ApiError:
    """The engine's refusal as an API error. prompt_field: what the request calls its prompt."""
    status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), None)
    if error.field == "context_cache.folder":
        status = 507  # the server's disk, not the client's request
    elif type(error) is IntaglioError:
        status = 503  # the engine is closed, or closing
    elif status is None:
        status = 400 if isinstance(error, (RequestError, errors.ConfigError, errors.ModelError)) else 500
    param = prompt_field if error.field in ("prompt", "messages") else error.field or None
    headers = {"retry-after": str(retry_after)} if status == 429 else None
    return ApiError(status, str(error), code=error.code, param=param, headers=headers)
