"""Single requests to a server outside the measured load: health, models, configuration, metrics, documents."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.run.targets.http.pool import Address

SECONDS = 10.0
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")


def get(
    address: Address, path: str, headers: Mapping[str, str], timeout_s: float = SECONDS
) -> tuple[int, bytes]:
    """Status and body. Raises OSError or http.client.HTTPException when there is no answer."""
    return send(address, "GET", path, headers, timeout_s=timeout_s)


def send(
    address: Address,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout_s: float = SECONDS,
) -> tuple[int, bytes]:
    """Status and body of a request. Raises OSError (TimeoutError: no byte for so long) or http.client.HTTPException."""
    if address.tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.name, address.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(address.name, address.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get_json(address: Address, path: str, headers: Mapping[str, str]) -> Any:
    """The JSON document at `path`. Raises ExecutionError that names the path and what came instead."""
    try:
        status, body = get(address, path, headers)
        if status == 200:
            return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise ExecutionError(f"{path} of the server gives no JSON: {error}") from None
    raise ExecutionError(f"{path} of the server answers HTTP {status}: {body[:120]!r}")


def metrics(address: Address, path: str, headers: Mapping[str, str]) -> dict[str, float]:
    """Prometheus' text format as sums by metric name over all labels; {} when the server shows none."""
    try:
        status, body = get(address, path, headers, 2.0)
    except (OSError, http.client.HTTPException):
        return {}
    return parse_metrics(body.decode("utf-8", "replace")) if status == 200 else {}


def parse_metrics(text: str) -> dict[str, float]:
    """`{name: sum over labels}`; lines that are no samples are passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            found[match[1]] = found.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
    return found
