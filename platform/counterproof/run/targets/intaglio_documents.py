"""Documents kept by an engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.run.targets.documents import TTL_S, Kept
from intaglio.errors import RequestError


class EngineKeeper:
    """The contexts of one engine whose context cache is on."""

    def __init__(self, engine: Any) -> None:
        self._contexts = engine.contexts

    def create(self, tokens: Sequence[int]) -> Kept:
        """Compute and keep a document. Raises ExecutionError when the engine refuses it."""
        try:
            info = self._contexts.create(list(tokens), ttl_s=TTL_S)
        except RequestError as error:
            text = f"a document of {len(tokens)} tokens cannot be kept: {error.code}: {error}"
            raise ExecutionError(text) from error
        return Kept(info.id, info.tokens, info.bytes)

    def delete(self, name: str) -> None:
        """Let go of a context."""
        self._contexts.delete(name)
