"""The documents of a load as contexts of an engine: uploaded once, then named by the requests that ask about them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from counterproof.workload.sealed import DocumentRequest, SealedRequest

# A run that is killed leaves its contexts behind; they go when the next one is made after this time.
TTL_S = 3600.0
EVENT = "contexts"


@dataclass(frozen=True)
class Kept:
    """A context that an engine holds. `bytes`: what it occupies on disk."""

    id: str
    tokens: int
    bytes: int


class Keeper(Protocol):
    """Where documents are kept: an engine in this process, or a server."""

    def create(self, tokens: Sequence[int]) -> Kept:
        """Compute and keep a document. Raises ExecutionError when it is refused."""

    def delete(self, name: str) -> None:
        """Let go of a context."""


class Documents:
    """Contexts of one engine whose context cache is on.

    Every upload is an event of kind `contexts`: documents, their tokens, those of them that are kept (full blocks),
    bytes on disk, and the ms that it took.
    """

    def __init__(self, keeper: Keeper, block_tokens: int) -> None:
        self._keeper = keeper
        self._block_tokens = block_tokens
        self._ids: dict[tuple[int, ...], str] = {}
        self._events: list[dict[str, Any]] = []

    def keep(self, requests: Sequence[SealedRequest]) -> int:
        """Upload the requests' documents in the order of their first use, and delete all others.

        Returns how many were uploaded now. Raises ExecutionError when one is refused.
        """
        wanted = {request.document: None for request in requests if isinstance(request, DocumentRequest)}
        for document in [known for known in self._ids if known not in wanted]:
            self._keeper.delete(self._ids.pop(document))
        missing = [document for document in wanted if document not in self._ids]
        self._upload(missing)
        return len(missing)

    def apart(self, request: SealedRequest) -> tuple[list[int], str | None]:
        """What to send: the tokens behind the document and its context's id, or all tokens and None."""
        if not isinstance(request, DocumentRequest) or len(request.token_ids) <= request.document_tokens:
            return list(request.token_ids), None
        if request.document not in self._ids:
            self._upload([request.document])
        return list(request.token_ids[request.document_tokens :]), self._ids[request.document]

    def drain(self) -> list[dict[str, Any]]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Delete every context."""
        while self._ids:
            self._keeper.delete(self._ids.popitem()[1])

    def _upload(self, documents: Sequence[tuple[int, ...]]) -> None:
        if not documents:
            return
        begun = time.perf_counter_ns()
        kept: list[Kept] = []
        for document in documents:
            context = self._keeper.create(document)
            self._ids[document] = context.id
            kept.append(context)
        now = time.perf_counter_ns()
        block = self._block_tokens
        self._events.append(
            {
                "time_ns": now,
                "kind": EVENT,
                "documents": len(kept),
                "tokens": sum(context.tokens for context in kept),
                "kept_tokens": sum(context.tokens // block * block for context in kept),
                "bytes": sum(context.bytes for context in kept),
                "ms": (now - begun) / 1e6,
            }
        )
