"""OpenAI's streamed answers: from server-sent events to chunks of text, token counts and errors.

Only a chunk with content counts as one: the first event of a chat names the role and says nothing, and a clock
that it stopped would show a time to first token of almost nothing. An `error` event is an error, whatever the
status was. A stream that ends without saying why it ended is not whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Content:
    """One chunk: its text, and its token ids where the server shows them."""

    text: str
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True)
class Usage:
    """What the server counted; None where it does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Stream:
    """One answer while it arrives."""

    def __init__(self) -> None:
        self._buffer = b""
        self.text: list[str] = []
        self.token_ids: list[int] | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.ended = False

    def feed(self, body: bytes) -> list[Content]:
        """Take body bytes; returns the chunks with content that they complete."""
        self._buffer += body
        if b"\r" in self._buffer:  # a lone one at the end may be half of a line's end
            self._buffer = self._buffer.replace(b"\r\n", b"\n")
        found: list[Content] = []
        while True:
            event, end, rest = self._buffer.partition(b"\n\n")
            if not end:
                return found
            self._buffer = rest
            content = self._event(event)
            if content is not None:
                self.text.append(content.text)
                if content.token_ids is not None:
                    self.token_ids = [*(self.token_ids or []), *content.token_ids]
                found.append(content)

    def close(self) -> None:
        """The body has ended; what is missing becomes the error."""
        if self.error is None and self.finish_reason is None:
            self.error = "the stream ended without a finish reason"

    def refuse(self, status: int, body: bytes) -> None:
        """The answer is no stream but a refusal."""
        self.error = f"HTTP {status}: {_message(body)}"

    def _event(self, event: bytes) -> Content | None:
        lines = event.split(b"\n")
        kinds = [line[6:].strip() for line in lines if line.startswith(b"event:")]
        data = b"\n".join(line[5:].lstrip() for line in lines if line.startswith(b"data:"))
        if not data:
            return None
        if data == b"[DONE]":
            self.ended = True
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            self.error = f"an event is no JSON: {data[:80]!r}"
            return None
        if b"error" in kinds or not isinstance(value, dict) or value.get("error"):
            self.error = f"the server reports: {_message(data)}"
            return None
        return self._value(value)

    def _value(self, value: dict[str, Any]) -> Content | None:
        if isinstance(value.get("usage"), dict):
            self.usage = usage_of(value["usage"])
        choices = value.get("choices") or []
        if not choices:
            return None
        choice = choices[0]
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        ids = choice.get("token_ids")
        shown = tuple(ids) if isinstance(ids, list) else None
        return Content(text, shown) if text or shown else None


def usage_of(value: dict[str, Any]) -> Usage:
    """The counts in a `usage` object."""
    details = value.get("prompt_tokens_details") or {}
    return Usage(
        _count(value.get("prompt_tokens")),
        _count(value.get("completion_tokens")),
        _count(details.get("cached_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text[:200]
    inner = value.get("error", value) if isinstance(value, dict) else value
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(message)[:200]
