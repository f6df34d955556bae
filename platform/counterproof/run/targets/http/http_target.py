"""A server behind the harness's protocol: requests leave on time, chunks are stamped, counts are cross-checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from counterproof.errors import ExecutionError
from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.documents import Documents
from counterproof.run.targets.http import bodies, chunks
from counterproof.run.targets.http.held_back import HeldBack
from counterproof.run.targets.http.pool import Address, Piece, Pool
from counterproof.run.targets.http.wire import request_bytes
from counterproof.run.targets.protocol import Logits, Output, Readings, Token
from counterproof.workload.sealed import SealedRequest

IDLE_S = 0.05


class TextCodec(Protocol):
    """The harness's own tokenizer of the server's model."""

    def encode_text(self, text: str) -> list[int]:
        """Token ids of an answer, nothing put before it."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt."""


class Facts(Protocol):
    """What the server says of itself."""

    def effective(self) -> dict[str, Any]: ...

    def identity(self) -> dict[str, Any]: ...

    def counters(self) -> dict[str, int]: ...


@dataclass
class _Answer:
    request: SealedRequest
    sent_ns: int
    stream: chunks.Stream = field(default_factory=chunks.Stream)
    refusal: bytes = b""
    chunks: int = 0


@dataclass
class Counts:
    """Tokens of all finished requests: as the server states them, and by the harness's own tokenizer.

    unstated         answers without a usage
    prompts_unlike   requests whose prompt the server counts otherwise
    """

    stated: int = 0
    own: int = 0
    unstated: int = 0
    prompts_unlike: int = 0


class HttpTarget:
    """One server. `facts` gives the effective configuration, counters and identity; `documents` are the contexts of a
    server that keeps any.

    ready_ns  when the server was healthy: what the client does afterwards is no start-up of the server's
    """

    stamps = "chunk"

    def __init__(
        self,
        address: Address,
        server: ServerConfig,
        model: str,
        headers: Mapping[str, str],
        codec: TextCodec,
        *,
        delay_us: int,
        facts: Facts,
        documents: Documents | None = None,
    ) -> None:
        self._address = address
        self._server = server
        self._model = model
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        self._codec = codec
        self._facts = facts
        self._documents = documents
        self._on_close: Callable[[], None] = lambda: None
        self._pool = Pool(address)
        self._held = HeldBack(delay_us * 1000)
        self._live: dict[str, _Answer] = {}
        self._done: dict[str, Output] = {}
        self._ending: list[Token] = []
        self._prepared: dict[int, bytes] = {}
        self.counts = Counts()
        self.ready_ns: int | None = None

    def on_close(self, end: Callable[[], None]) -> None:
        """What ends the server, if the harness started it."""
        self._on_close = end

    def keep_documents(self, requests: Sequence[SealedRequest]) -> int:
        """Upload the documents of these requests to a server that keeps them; returns how many were not there.

        Raises ExecutionError.
        """
        return 0 if self._documents is None else self._documents.keep(requests)

    def prepare(self, requests: Sequence[SealedRequest]) -> None:
        """Make every request's bytes before the load, so that sending is nothing but sending."""
        self._prepared = {request.request_index: self._bytes(request) for request in requests}
        self._pool.forget_times()
        self.counts = Counts()

    def add(self, request_id: str, request: SealedRequest) -> None:
        """Send a request now."""
        data = self._prepared.pop(request.request_index, None) or self._bytes(request)
        self._pool.send(request_id, data)
        self._live[request_id] = _Answer(request, time.perf_counter_ns())

    def step(self) -> list[Token]:
        """Everything that arrived; waits a moment if nothing did."""
        return self.step_within(IDLE_S)

    def step_within(self, wait_s: float) -> list[Token]:
        """Everything that arrived, waiting at most `wait_s` for it."""
        if self._ending:
            wait_s = 0.0
        pieces = self._pool.poll(self._held.wait_s(time.perf_counter_ns(), wait_s))
        tokens, self._ending = self._ending, []
        for piece in self._held.take(pieces, time.perf_counter_ns()):
            tokens += self._take(piece)
        return tokens

    def output(self, request_id: str) -> Output:
        """The finished request, forgotten afterwards."""
        return self._done.pop(request_id)

    def complete(self, request: SealedRequest, output: Output) -> Output:
        """After the load: token ids by the own tokenizer where the server showed none, and the cross-check."""
        if output.error is not None:
            return output
        ids = output.token_ids or tuple(self._codec.encode_text(output.text))
        own = len(self._codec.encode_text(output.text))
        stated = output.output_tokens
        self.counts.unstated += stated is None
        self.counts.stated += stated or 0
        self.counts.own += len(output.token_ids) if output.token_ids else own
        prompt = output.prompt_tokens
        if self._server.api == "completions" and prompt is not None and prompt != len(request.token_ids):
            self.counts.prompts_unlike += 1
        return replace(output, token_ids=ids, output_tokens=len(ids) if stated is None else stated)

    def abort(self, request_id: str) -> None:
        """End a request by closing its connection."""
        answer = self._live.pop(request_id, None)
        if answer is None:
            return
        self._pool.cancel(request_id)
        now = time.perf_counter_ns()
        self._done[request_id] = self._output(request_id, answer, "abort", now, "ended by the client")
        self._ending.append(Token(request_id, answer.chunks, None, now, finish_reason="abort"))

    def compute_logits(self, requests: Sequence[SealedRequest]) -> list[Logits]:
        """Raises ExecutionError: a server shows no logits."""
        raise ExecutionError(
            f"a server shows no logits, so {len(requests)} requests cannot be compared bitwise",
            details=["set study.equivalence_requests=0, or take the target intaglio_local"],
        )

    def effective_config(self) -> dict[str, Any]:
        """What the server says it runs."""
        return self._facts.effective()

    def identity(self) -> dict[str, Any]:
        """What tells this server from another."""
        return self._facts.identity()

    def counters(self) -> dict[str, int]:
        """The engine's counters where the server shows them, else none."""
        return self._facts.counters()

    def drain(self) -> Readings:
        """The documents that were uploaded; a server's stages and gauges are not the client's to see."""
        return Readings(events=[] if self._documents is None else self._documents.drain())

    def client_facts(self) -> dict[str, Any]:
        """How the connections did: for the run's `client` event."""
        away = sorted(self._pool.away_ns)
        return {
            "polls": len(away),
            "lag_p99_us": away[max(0, -(-99 * len(away) // 100) - 1)] / 1e3 if away else None,
            "lag_max_us": away[-1] / 1e3 if away else None,
            "connections": self._pool.opened,
            "reconnects": self._pool.reconnects,
            "stated_tokens": self.counts.stated,
            "own_tokens": self.counts.own,
            "unstated": self.counts.unstated,
            "prompts_unlike": self.counts.prompts_unlike,
        }

    def close(self) -> None:
        """Close every connection, delete the documents, and end the server if the harness started it."""
        self._pool.close()
        if self._documents is not None:
            self._documents.close()
        self._on_close()

    def _bytes(self, request: SealedRequest) -> bytes:
        prompt, context = list(request.token_ids), None
        if self._documents is not None:
            prompt, context = self._documents.apart(request)
        codec = self._codec.decode
        body = bodies.body_of(request, self._server, self._model, codec, prompt=prompt, context=context)
        return request_bytes("POST", bodies.PATHS[self._server.api], self._address.host, self._headers, body)

    def _take(self, piece: Piece) -> list[Token]:
        answer = self._live.get(piece.request_id)
        if answer is None:
            return []
        tokens: list[Token] = []
        if piece.status == 200:
            for content in answer.stream.feed(piece.body):
                count = None if content.token_ids is None else len(content.token_ids)
                tokens.append(
                    Token(
                        piece.request_id,
                        answer.chunks,
                        None,
                        piece.time_ns,
                        characters=len(content.text),
                        tokens=count,
                    )
                )
                answer.chunks += 1
        elif piece.status is not None:
            answer.refusal += piece.body
        if piece.done or piece.error is not None:
            tokens.append(self._finish(piece, answer))
        return tokens

    def _finish(self, piece: Piece, answer: _Answer) -> Token:
        del self._live[piece.request_id]
        stream = answer.stream
        if piece.status is not None and piece.status != 200:
            stream.refuse(piece.status, answer.refusal)
        elif piece.error is not None:
            stream.error = stream.error or piece.error
        else:
            stream.close()
        reason = "error" if stream.error else stream.finish_reason
        self._done[piece.request_id] = self._output(
            piece.request_id, answer, reason, piece.time_ns, stream.error
        )
        return Token(
            piece.request_id, answer.chunks, None, piece.time_ns, finish_reason=reason, error=stream.error
        )

    def _output(
        self, request_id: str, answer: _Answer, reason: str | None, now: int, error: str | None
    ) -> Output:
        usage = answer.stream.usage or chunks.Usage()
        return Output(
            request_id,
            tuple(answer.stream.token_ids or ()),
            "".join(answer.stream.text),
            reason,
            now,
            tokens_computed=None,
            cached_tokens=usage.cached_tokens,
            error=error,
            output_tokens=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
            sent_ns=answer.sent_ns,
        )
