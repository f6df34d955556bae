"""HTTP/1.1 as far as a load generator needs it: requests as bytes, answers parsed piece by piece (RFC 9112)."""

from __future__ import annotations

from collections.abc import Mapping

LIMIT = 1 << 16
_NO_BODY = (204, 304)


class WireError(Exception):
    """The peer does not speak HTTP/1.1."""


def request_bytes(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A whole request with its length."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


class Answer:
    """One answer, fed with what the socket gave.

    status      None until the head is there
    done        the body has ended
    keep_alive  the connection may carry another request afterwards
    started     at least one byte came
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.done = False
        self.keep_alive = True
        self.started = False
        self._buffer = b""
        self._left: int | None = None
        self._chunked = False
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the socket; returns the body bytes in them. Raises WireError."""
        self.started = True
        self._buffer += data
        while self.status is None:
            if not self._read_head():
                return b""
        if self._chunked:
            return self._read_chunks()
        if self._left is None:
            data, self._buffer = self._buffer, b""
            return data
        data, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(data)
        self.done = self._left == 0
        return data

    def closed(self) -> bool:
        """The peer closed; whether the answer is whole (a body without a length ends so)."""
        self.keep_alive = False
        if self.status is not None and not self._chunked and self._left is None:
            self.done = True
        return self.done

    def _read_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self._buffer) > LIMIT:
                raise WireError("the head of the answer does not end")
            return False
        self._buffer = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
            raise WireError(f"no HTTP/1 status line: {first[:60]!r}")
        if 100 <= int(parts[1]) < 200:  # an interim answer; the real one follows
            return True
        self.status = int(parts[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._measure(parts[0])
        return True

    def _measure(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = connection != "close" and not (version == "HTTP/1.0" and connection != "keep-alive")
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self._chunked:
            return
        if length is not None:
            if not length.isdigit():
                raise WireError(f"no Content-Length: {length!r}")
            self._left = int(length)
        elif self.status in _NO_BODY:
            self._left = 0
        self.done = self._left == 0

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while not self.done:
            if self._left is None:
                line, found, rest = self._buffer.partition(b"\r\n")
                if not found:
                    if len(self._buffer) > LIMIT:
                        raise WireError("a chunk has no length")
                    break
                self._buffer = rest
                if self._trailer:
                    self.done = not line
                    continue
                self._left = _hex(line)
                if self._left == 0:
                    self._trailer, self._left = True, None
                continue
            if len(self._buffer) < self._left + 2:
                break
            if self._buffer[self._left : self._left + 2] != b"\r\n":
                raise WireError("a chunk does not end where its length says")
            parts.append(self._buffer[: self._left])
            self._buffer = self._buffer[self._left + 2 :]
            self._left = None
        return b"".join(parts)


def _hex(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise WireError(f"no chunk length: {line[:20]!r}") from None
