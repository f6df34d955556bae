"""The documents of a load as contexts of the engine: uploaded once, then named by the requests that ask about them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.workload.sealed import DocumentRequest, SealedRequest
from intaglio.errors import RequestError

# A run that is killed leaves its contexts behind; they go when the next one is made after this time.
TTL_S = 3600.0
EVENT = "contexts"


class Documents:
    """Contexts of one engine whose context cache is on.

    Every upload is an event of kind `contexts`: documents, their tokens, those of them that are kept (full blocks),
    bytes on disk, and the ms that it took.
    """

    def __init__(self, engine: Any) -> None:
        self._contexts = engine.contexts
        self._block_tokens = int(engine.effective_config()["kv_cache.block_tokens"])
        self._ids: dict[tuple[int, ...], str] = {}
        self._events: list[dict[str, Any]] = []

    def keep(self, requests: Sequence[SealedRequest]) -> int:
        """Upload the requests' documents in the order of their first use, and delete all others.

        Returns how many were uploaded now. Raises ExecutionError when the engine refuses one.
        """
        wanted = {request.document: None for request in requests if isinstance(request, DocumentRequest)}
        for document in [known for known in self._ids if known not in wanted]:
            self._contexts.delete(self._ids.pop(document))
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
            self._contexts.delete(self._ids.popitem()[1])

    def _upload(self, documents: Sequence[tuple[int, ...]]) -> None:
        if not documents:
            return
        begun = time.perf_counter_ns()
        infos: list[Any] = []
        for document in documents:
            try:
                info = self._contexts.create(list(document), ttl_s=TTL_S)
            except RequestError as error:
                raise ExecutionError(
                    f"a document of {len(document)} tokens cannot be kept: {error.code}: {error}"
                ) from error
            self._ids[document] = info.id
            infos.append(info)
        now = time.perf_counter_ns()
        self._events.append(
            {
                "time_ns": now,
                "kind": EVENT,
                "documents": len(infos),
                "tokens": sum(info.tokens for info in infos),
                "kept_tokens": sum(info.tokens // self._block_tokens * self._block_tokens for info in infos),
                "bytes": sum(info.bytes for info in infos),
                "ms": (now - begun) / 1e6,
            }
        )
