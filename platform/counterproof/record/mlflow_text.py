"""Texts as long as MLflow takes them. It would refuse a longer one, and with it the whole study, or cut it silently."""

from __future__ import annotations

from counterproof.record import canonical

PARAM_LIMIT = 6000
TAG_LIMIT = 8000


def fitted(text: str, limit: int) -> str:
    """`text`, or its beginning with what was left out: characters in all, and the sha256 of the whole in UTF-8."""
    if len(text) <= limit:
        return text
    whole = text.encode("utf-8", errors="surrogatepass")
    told = f" [cut here: {len(text)} characters, sha256 {canonical.sha256_bytes(whole)}]"
    return text[: limit - len(told)] + told
