"""What a cached block is the cache of: chained keys over everything that its contents depend on.

A block of keys and values depends on all tokens up to its end and on the arithmetic that computed it. Its key is
therefore a sha256 over the previous block's key and the block's own tokens, and the first key hangs on a root: the
sha256 of the model, the number formats, the parallel layout and the tenant, each field with its name and length,
so that no two different identities have the same bytes. Equal in every process; nothing random enters.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intaglio.state.prefix_cache import CachedBlock

Hasher = Callable[[bytes], bytes]

_ROOT = b"intaglio/block-root/1"
_BLOCK = b"intaglio/block-key/1"


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Everything besides tokens and tenant that keys and values depend on.

    model          sha256 of the model's files (weights, configuration, tokenizer)
    rope           sha256 of the model's configuration, which fixes how positions are encoded
    dtype, weights_format, kv_format   number formats of activations, weights and cache
    numerics       mode and kernel path: two paths may round differently
    parallel       the layout that decides which part of a token's KV lies where
    block_tokens   tokens per block
    """

    model: str
    rope: str
    dtype: str
    weights_format: str
    kv_format: str
    numerics: str
    parallel: str
    block_tokens: int

    def root(self, tenant: str) -> bytes:
        """The canonical bytes of this identity and a tenant (the full content, not a hash of it)."""
        parts = [_ROOT]
        values = [(f.name, str(getattr(self, f.name))) for f in fields(self)]
        for name, value in (*values, ("tenant", tenant)):
            encoded = value.encode("utf-8", "surrogatepass")
            parts.append(f"{name}:{len(encoded)}:".encode() + encoded)
        return b"\0".join(parts)


def sha256(data: bytes) -> bytes:
    """The 32 bytes of sha256."""
    return hashlib.sha256(data).digest()


class KeyChain:
    """The keys of one request's full blocks, hashed once each as the request grows.

    root        the identity that the first block hangs on (CacheIdentity.root)
    keys        key of each full block seen so far
    committed   how many leading blocks stand in the cache's tree (PrefixCache keeps this and `node`)
    """

    __slots__ = ("_block_tokens", "_hasher", "_pieces", "committed", "keys", "node", "promised", "root")

    def __init__(self, root: bytes, block_tokens: int, hasher: Hasher = sha256) -> None:
        self.root = root
        self.keys: list[bytes] = []
        self.committed = 0
        self.node: CachedBlock | None = None
        self.promised = 0
        self._pieces: list[bytes] = []
        self._block_tokens = block_tokens
        self._hasher = hasher

    def extend(self, tokens: Sequence[int], blocks: int) -> None:
        """Hash on until `blocks` full blocks of `tokens` are keyed. `tokens` only ever grows between calls."""
        known, size = len(self.keys), self._block_tokens
        if blocks <= known:
            return
        data = array("i", tokens[known * size : blocks * size]).tobytes()
        width = 4 * size
        hasher, keys, pieces = self._hasher, self.keys, self._pieces
        key = keys[-1] if keys else hasher(self.root)
        for start in range(0, len(data), width):
            piece = data[start : start + width]
            key = hasher(_BLOCK + key + piece)
            pieces.append(piece)
            keys.append(key)

    def piece(self, index: int) -> bytes:
        """The tokens of block `index`, as bytes."""
        return self._pieces[index]
