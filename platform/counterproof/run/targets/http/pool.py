"""Connections of one thread: requests leave at once, answers are stamped when their bytes arrive.

No event loop's bookkeeping stands between the clock and the socket. The wait is a `select` on the epoll descriptor,
because epoll itself rounds its time-out up to whole milliseconds. How long the thread was away from the sockets
between two waits is recorded: it bounds how late any stamp can be.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from counterproof.errors import SetupError
from counterproof.run.targets.http.wire import Answer, WireError

RECEIVE = 1 << 18
_WAITING = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Address:
    """Where a server listens. `host` is what the Host header says."""

    name: str
    port: int
    tls: bool = False

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True)
class Piece:
    """Body bytes of one request's answer; with `done` or `error` the last one."""

    request_id: str
    time_ns: int
    status: int | None
    body: bytes
    done: bool = False
    error: str | None = None


@dataclass
class _Call:
    request_id: str
    data: bytes
    answer: Answer = field(default_factory=Answer)
    tries: int = 1


@dataclass
class _Link:
    socket: socket.socket
    ready: bool = False
    used: bool = False
    call: _Call | None = None
    unsent: bytes = b""


class Pool:
    """Keep-alive connections to one server.

    opened, reconnects  connections made; requests sent again because a kept connection had been closed meanwhile
    away_ns             time between two waits, one entry each
    """

    def __init__(self, address: Address, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Raises SetupError when the name cannot be resolved."""
        self._address = address
        self._clock = clock
        try:
            found = socket.getaddrinfo(address.name, address.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise SetupError(f"{address.name} cannot be resolved: {error}") from None
        self._family, self._where = found[0], found[4]
        self._tls = ssl.create_default_context() if address.tls else None
        self._epoll = select.epoll()
        self._links: dict[int, _Link] = {}
        self._idle: list[_Link] = []
        self._calls: dict[str, _Link] = {}
        self._pieces: list[Piece] = []
        self._left_ns = 0
        self.away_ns = array("q")
        self.opened = 0
        self.reconnects = 0

    def send(self, request_id: str, data: bytes) -> None:
        """Send a whole request over a kept connection, or a new one. Faults come as pieces."""
        self._start(_Call(request_id, data))

    def cancel(self, request_id: str) -> None:
        """Forget a request; its connection is closed, which tells the server."""
        link = self._calls.pop(request_id, None)
        if link is not None:
            self._drop(link)

    def poll(self, wait_s: float) -> list[Piece]:
        """What arrived, waiting at most `wait_s` for it."""
        if self._left_ns:
            self.away_ns.append(self._clock() - self._left_ns)
        if wait_s > 0 and not self._pieces:
            select.select([self._epoll], [], [], wait_s)
        events = self._epoll.poll(0)
        self._left_ns = self._clock()
        for descriptor, mask in events:
            link = self._links.get(descriptor)
            if link is not None:
                self._handle(link, mask)
        pieces, self._pieces = self._pieces, []
        return pieces

    def forget_times(self) -> None:
        """Begin the record of `away_ns` anew."""
        self.away_ns = array("q")
        self._left_ns = 0

    def close(self) -> None:
        """Close every connection."""
        for link in list(self._links.values()):
            self._drop(link)
        self._calls.clear()
        self._epoll.close()

    def _start(self, call: _Call) -> None:
        try:
            link = self._idle.pop() if self._idle else self._open()
        except OSError as error:
            self._pieces.append(Piece(call.request_id, self._clock(), None, b"", error=_cannot(error)))
            return
        link.call, link.unsent = call, call.data
        self._calls[call.request_id] = link
        if link.ready:
            self._write(link)

    def _open(self) -> _Link:
        plain = socket.socket(self._family, socket.SOCK_STREAM)
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = plain.connect_ex(self._where)
        if code not in (0, errno.EINPROGRESS):
            plain.close()
            raise OSError(code, os.strerror(code))
        self.opened += 1
        link = _Link(plain)
        self._links[plain.fileno()] = link
        self._epoll.register(plain.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return link

    def _handle(self, link: _Link, mask: int) -> None:
        try:
            if not link.ready and not self._finish_opening(link):
                return
            if mask & select.EPOLLOUT and link.unsent:
                self._write(link)
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._read(link)
        except (OSError, WireError) as error:
            self._fail(link, _cannot(error) if not link.ready else f"the connection broke: {error}")

    def _finish_opening(self, link: _Link) -> bool:
        if code := link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        try:
            if self._tls is not None:
                if not isinstance(link.socket, ssl.SSLSocket):
                    link.socket = self._tls.wrap_socket(
                        link.socket, server_hostname=self._address.name, do_handshake_on_connect=False
                    )
                link.socket.do_handshake()
        except _WAITING:
            return False
        link.ready = True
        return True

    def _write(self, link: _Link) -> None:
        try:
            while link.unsent:
                link.unsent = link.unsent[link.socket.send(link.unsent) :]
        except _WAITING:
            self._watch(link, writing=True)
            return
        except OSError as error:
            self._fail(link, f"the connection broke: {error}")
            return
        self._watch(link, writing=False)

    def _watch(self, link: _Link, *, writing: bool) -> None:
        self._epoll.modify(link.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def _read(self, link: _Link) -> None:
        while True:
            try:
                data = link.socket.recv(RECEIVE)
            except _WAITING:
                return
            now = self._clock()
            call = link.call
            if call is None:  # closed by the server while idle, or bytes that nobody asked for
                self._drop(link)
                return
            if not data:
                if call.answer.closed():
                    self._deliver(link, call, now, b"")
                else:
                    self._fail(link, "the server closed the connection before the answer was whole")
                return
            body = call.answer.feed(data)
            if body or call.answer.done:
                self._deliver(link, call, now, body)
            if call.answer.done or (self._tls is None and len(data) < RECEIVE):
                return

    def _deliver(self, link: _Link, call: _Call, now: int, body: bytes) -> None:
        answer = call.answer
        self._pieces.append(Piece(call.request_id, now, answer.status, body, answer.done))
        if not answer.done:
            return
        del self._calls[call.request_id]
        link.call, link.used = None, True
        if answer.keep_alive:
            self._idle.append(link)
        else:
            self._drop(link)

    def _fail(self, link: _Link, text: str) -> None:
        call, kept = link.call, link.used
        self._drop(link)
        if call is None:
            return
        self._calls.pop(call.request_id, None)
        # A kept connection may have been closed before it carried a byte of this answer: that is no failure.
        if kept and not call.answer.started and call.tries == 1:
            self.reconnects += 1
            self._start(_Call(call.request_id, call.data, tries=2))
            return
        self._pieces.append(Piece(call.request_id, self._clock(), call.answer.status, b"", error=text))

    def _drop(self, link: _Link) -> None:
        descriptor = link.socket.fileno()
        if descriptor >= 0 and self._links.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        if link in self._idle:
            self._idle.remove(link)
        link.socket.close()


def _cannot(error: Exception) -> str:
    return f"the server cannot be reached: {error}"
