"""A client that never finishes its headers holds a connection for a bounded time, and nobody else."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx

from intaglio.serve.limits import ServerLimits

Serve = Callable[..., Any]
HEAD_S = 0.3
SHORT = {"prompt": "abc", "temperature": 0, "max_tokens": 4, "ignore_eos": True}
REQUEST = b"GET /health HTTP/1.1\r\nhost: x\r\n"


def connect(url: str) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=30)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def read_to_end(one: socket.socket) -> bytes:
    parts = []
    try:
        while part := one.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass  # the server closed while bytes of ours were still on their way
    return b"".join(parts)


def read_answer(one: socket.socket) -> bytes:
    """One JSON answer: its head and body may come apart."""
    found = b""
    while not found.endswith(b"}"):
        part = one.recv(65536)
        assert part, found
        found += part
    return found


def dribble(one: socket.socket, seconds: float) -> bytes:
    """Send a header that never ends, a byte at a time, until the server ends the connection."""
    one.sendall(REQUEST + b"x-slow: ")
    one.settimeout(0.02)
    end = time.monotonic() + seconds
    found = b""
    while time.monotonic() < end:
        try:
            one.sendall(b"y")
            part = one.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            return found
        if not part:
            return found
        found += part
    raise AssertionError("the server bears a header that never ends")


def test_headers_that_never_end_are_given_up(serve: Serve, web: ModuleType) -> None:
    service = serve(limits=ServerLimits(head_timeout_s=HEAD_S))
    with web.running(service) as (_, url):
        slow, silent = [connect(url) for _ in range(20)], connect(url)
        for one in slow:
            one.sendall(REQUEST)
        # Meanwhile others are served.
        assert httpx.post(f"{url}/v1/completions", json=SHORT, timeout=30).status_code == 200
        with connect(url) as steady:
            answer = dribble(steady, 30)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
        for one in slow:
            answer = read_to_end(one)
            assert answer.startswith(b"HTTP/1.1 408 ") and b'"head_timeout"' in answer
            one.close()
        assert read_to_end(silent) == b""
        silent.close()
        assert service.metrics.late_heads == 22
        assert "intaglio_late_heads_total 22" in httpx.get(f"{url}/metrics").text
        assert service.http_requests == 0 and service.current.places.taken == 0


def test_a_kept_connection_may_rest_but_its_next_headers_may_not(serve: Serve, web: ModuleType) -> None:
    service = serve(limits=ServerLimits(head_timeout_s=HEAD_S))
    with web.running(service) as (_, url), connect(url) as kept:
        for rest in (0.0, 2 * HEAD_S):  # idle for longer than a head may take
            time.sleep(rest)
            kept.sendall(REQUEST + b"\r\n")
            assert read_answer(kept).startswith(b"HTTP/1.1 200 ")
        assert service.metrics.late_heads == 0
        kept.sendall(REQUEST)
        assert read_to_end(kept).startswith(b"HTTP/1.1 408 ")
    assert service.metrics.late_heads == 1


def test_a_head_that_comes_in_part_behind_a_whole_request_is_bounded_too(
    serve: Serve, web: ModuleType
) -> None:
    service = serve(limits=ServerLimits(head_timeout_s=HEAD_S))
    with web.running(service) as (_, url), connect(url) as kept:
        kept.sendall(REQUEST + b"\r\n" + REQUEST)
        answers = read_to_end(kept)
        assert answers.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in answers


def test_an_answer_and_a_body_may_take_longer_than_a_head(serve: Serve, web: ModuleType) -> None:
    gate = web.Gate()
    service = serve(gate=gate, limits=ServerLimits(head_timeout_s=HEAD_S))
    body = b'{"prompt": "abc", "max_tokens": 4}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with web.running(service) as (_, url), connect(url) as one:
        gate.shut()
        one.sendall(head % len(body) + body[:5])
        time.sleep(2 * HEAD_S)
        one.sendall(body[5:])
        gate.wait_entered()
        time.sleep(2 * HEAD_S)
        gate.open()
        assert read_answer(one).startswith(b"HTTP/1.1 200 ")
    assert service.metrics.late_heads == 0
