"""A server that answers at once, for tests of the client: `python -m counterproof.run.targets.http.null_server`.

It speaks as much of OpenAI's streaming API as the harness uses. Every answer has as many tokens as were asked for
(the ids 1, 2, 3 ...), one a chunk, `--delay-s` after the request and `--gap-s` apart. `--refuse-every N` answers
every N-th request with an error. It prints one line of JSON when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from functools import lru_cache

from counterproof.run import orphan

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


class NullServer(asyncio.Protocol):
    """One connection."""

    def __init__(self, options: argparse.Namespace, counts: dict[str, int]) -> None:
        self._options = options
        self._counts = counts
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every whole request in the buffer."""
        self._buffer += data
        while True:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = 0
            for line in head.split(b"\r\n"):
                if line[:15].lower() == b"content-length:":
                    length = int(line[15:])
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._answer(head.split(b" ", 2)[1], rest[:length])

    def _answer(self, path: bytes, body: bytes) -> None:
        if not path.startswith(b"/v1/") or path == b"/v1/models":
            self._send(_plain(json.dumps(self._facts(path)).encode()))
            return
        self._counts["requests"] += 1
        every = self._options.refuse_every
        if every and self._counts["requests"] % every == 0:
            self._send(_plain(b'{"error": {"message": "refused on demand"}}', b"503 Service Unavailable"))
            return
        asked = json.loads(body)
        prompt = asked.get("prompt") or asked.get("messages") or []
        parts = _parts(int(asked["max_tokens"]), len(prompt), bool(asked.get("return_token_ids")))
        if self._options.delay_s == 0 and self._options.gap_s == 0:
            self._send(b"".join(parts))
            return
        loop = asyncio.get_running_loop()
        for number, part in enumerate(parts):
            loop.call_later(self._options.delay_s + number * self._options.gap_s, self._send, part)

    def _facts(self, path: bytes) -> dict[str, object]:
        if path == b"/v1/models":
            return {"object": "list", "data": [{"id": "null", "object": "model"}]}
        return {"status": "ok", "pid": os.getpid(), **self._counts}

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


@lru_cache(maxsize=256)
def _parts(tokens: int, prompt: int, ids: bool) -> tuple[bytes, ...]:
    """The answer: its head with the first chunk, then one part a token, then the counts and the end."""
    parts = []
    for number in range(tokens):
        last = "length" if number == tokens - 1 else None
        choice: dict[str, object] = {"index": 0, "text": f"w{number + 1} ", "finish_reason": last}
        if ids:
            choice["token_ids"] = [number + 1]
        parts.append(_event({"choices": [choice]}))
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    parts[-1] += _event({"choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + _END
    parts[0] = _HEAD + parts[0]
    return tuple(parts)


def _event(value: dict[str, object]) -> bytes:
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    counts = {"requests": 0}
    server = await loop.create_server(lambda: NullServer(options, counts), "127.0.0.1", options.port)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    print(json.dumps({"ready": True, "port": server.sockets[0].getsockname()[1]}), flush=True)
    await ended.wait()
    server.close()


def main(arguments: list[str]) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description="A server that answers at once, for tests of the client.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--gap-s", type=float, default=0.0)
    parser.add_argument("--refuse-every", type=int, default=0)
    parser.add_argument("--parent", type=int, default=0, help="end when this process, its parent, ends")
    options = parser.parse_args(arguments)
    if options.parent:
        orphan.die_with_parent(options.parent)
    asyncio.run(_serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
