"""Requests in OpenAI's form: what is asked of a server for one sealed request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from counterproof.plan.schema import ServerConfig
from counterproof.workload.sealed import SealedRequest

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
OPENAI, EXTENDED = "openai", "extended"


def body_of(
    request: SealedRequest,
    server: ServerConfig,
    model: str,
    decode: Callable[[Sequence[int]], str],
    *,
    prompt: Sequence[int] | None = None,
    context: str | None = None,
) -> bytes:
    """The JSON body. The request's tokens, or `prompt`, those of them behind the document that `context` names, go as
    token ids, or as the text that the ids stand for.

    The dialect `extended` also sends what OpenAI's API does not have: end-of-sequence ignored, top_k, min_p,
    repetition penalty, token ids in the answer.
    """
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = request.token_ids if prompt is None else prompt
    if context is not None:
        body["context"] = context
    if request.stop:
        body["stop"] = list(request.stop)
    if server.dialect == EXTENDED:
        body |= _extended(request)
    if server.api == "chat":
        body["messages"] = [{"role": "user", "content": decode(sent)}]
    else:
        body["prompt"] = list(sent) if server.prompts == "tokens" else decode(sent)
    return json.dumps(body).encode()


def _extended(request: SealedRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"return_token_ids": True}
    neutral = {"ignore_eos": False, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    found |= {
        name: getattr(request, name) for name, plain in neutral.items() if getattr(request, name) != plain
    }
    if request.stop_token_ids:
        found["stop_token_ids"] = list(request.stop_token_ids)
    return found
