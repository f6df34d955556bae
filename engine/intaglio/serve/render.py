"""Answers in the shapes of the OpenAI API: choices, chunks, log probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from intaglio.intake.request import RequestOutput, TokenEvent


class TokenText(Protocol):
    """What rendering needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(slots=True)
class Style:
    """How one request wants its answer.

    chat           chat completion or plain completion
    logprobs       whether to show log probabilities
    token_ids      whether to show token ids
    """

    chat: bool
    logprobs: bool
    token_ids: bool
    tokenizer: TokenText
    model: str
    fingerprint: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """The object around the choices."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": f"{kind}.chunk" if chunk and self.chat else kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """A whole answer."""
        made: dict[str, Any] = {"index": index, "finish_reason": output.finish_reason}
        if self.chat:
            made["message"] = {"role": "assistant", "content": output.text, "refusal": None}
        else:
            made["text"] = output.text
        tops: Sequence[dict[int, float]] = output.top_logprobs
        made["logprobs"] = self._logprobs(output.token_ids, output.logprobs, tops) if self.logprobs else None
        if self.token_ids:
            made["token_ids"] = output.token_ids
            made["prompt_token_ids"] = output.prompt_token_ids
        return made

    def opening(self, index: int) -> dict[str, Any]:
        """The first chunk of a chat answer, which names the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, event: TokenEvent) -> dict[str, Any] | None:
        """One event's chunk, or None when there is nothing in it to show."""
        shown = event.token_id is not None and (self.logprobs or self.token_ids)
        if not (event.text or event.finish_reason or shown):
            return None
        made: dict[str, Any] = {"index": index, "finish_reason": event.finish_reason, "logprobs": None}
        if self.chat:
            made["delta"] = {"content": event.text} if event.text else {}
        else:
            made["text"] = event.text
        if event.token_id is not None:
            if self.logprobs:
                own = [] if event.logprob is None else [event.logprob]
                made["logprobs"] = self._logprobs([event.token_id], own, [event.top_logprobs or {}])
            if self.token_ids:
                made["token_ids"] = [event.token_id]
        return made

    def _logprobs(
        self, ids: Sequence[int], own: Sequence[float], tops: Sequence[dict[int, float]]
    ) -> dict[str, Any]:
        tops = tops or [{}] * len(ids)
        if self.chat:
            return {
                "content": [
                    {
                        **self._token(token, logprob),
                        "top_logprobs": [self._token(other, value) for other, value in _best(top)],
                    }
                    for token, logprob, top in zip(ids, own, tops)
                ],
                "refusal": None,
            }
        return {
            "tokens": [self._text(token) for token in ids],
            "token_logprobs": list(own),
            "top_logprobs": [{self._text(other): value for other, value in _best(top)} for top in tops],
            "text_offset": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": logprob}

    def _text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def _best(top: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(top.items(), key=lambda item: (-item[1], item[0]))
