"""How a token's keys and values are laid out in each KV format: exact bytes, without torch.

A dense token (fp32, bf16) is [2][kv_heads][head_dim] numbers, keys first. A quantised token is one record of bytes:
the parameters [2][kv_heads] of four bytes each, then the codes [2][kv_heads] of `code_bits` each, padded to whole
words of four bytes. Every (token, kv head) has parameters of its own, for keys and for values, so what is stored of
a token depends on that token alone, and a block of tokens is still one run of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from intaglio.errors import ConfigError

_WORD = 4


@dataclass(frozen=True, slots=True)
class KVFormat:
    """`code_bits` a number; `parameter_bytes` for each head's keys and as many for its values."""

    name: str
    code_bits: int
    parameter_bytes: int

    @property
    def quantised(self) -> bool:
        return self.parameter_bytes > 0

    def code_bytes(self, head_dim: int) -> int:
        """Bytes of the codes of one head's keys (or values) of one token."""
        return -(-head_dim * self.code_bits // 8)

    def token_bytes(self, kv_heads: int, head_dim: int) -> int:
        """Exact bytes of one token's keys and values in one layer."""
        plain = 2 * kv_heads * (self.parameter_bytes + self.code_bytes(head_dim))
        return -(-plain // _WORD) * _WORD if self.quantised else plain


def kv_format(name: str) -> KVFormat:
    """The format called `name`. Raises ConfigError."""
    for known in _FORMATS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in _FORMATS)
    raise ConfigError(f"kv_cache.format must be one of {names}, not {name!r}", field="kv_cache.format")


_FORMATS = (
    KVFormat("fp32", 32, 0),
    KVFormat("bf16", 16, 0),
    KVFormat("fp8", 8, 4),
    KVFormat("int8", 8, 4),
    KVFormat("int4", 4, 4),
)
