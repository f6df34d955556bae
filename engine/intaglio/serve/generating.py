"""The routes /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from intaglio.errors import IntaglioError
from intaglio.serve import json_body
from intaglio.serve.api_error import ApiError, of_engine
from intaglio.serve.departure import unless_gone
from intaglio.serve.deployment import Deployment
from intaglio.serve.event_stream import EventStream
from intaglio.serve.fields import ChatBody, CompletionBody, GenerationFields
from intaglio.serve.generation import Generation, Order
from intaglio.serve.keys import Caller
from intaglio.serve.render import Style
from intaglio.serve.service import Service

# What the OpenAI API takes when a completion names no limit.
COMPLETION_TOKENS = 16


async def complete(service: Service, request: Request, caller: Caller) -> Response:
    """POST /v1/completions."""
    body = await json_body.read(request, CompletionBody, service.limits)
    service.check_model(body.model)
    prompts = body.prompts
    if len(prompts) > service.limits.max_prompts:
        raise ApiError(
            400,
            f"{len(prompts)} prompts are more than {service.limits.max_prompts}; send several requests",
            code="too_many_prompts",
            param="prompt",
        )
    most = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = body.sampling(max_tokens=most, logprobs=body.logprobs)
    order = Order(prompts, params, "prompt", caller.tenant, body.context)
    return await _answer(service, service.current, request, body, order, body.logprobs is not None)


async def chat(service: Service, request: Request, caller: Caller) -> Response:
    """POST /v1/chat/completions."""
    body = await json_body.read(request, ChatBody, service.limits)
    service.check_model(body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400,
            "top_logprobs needs logprobs=true; add it, or leave top_logprobs out",
            code="invalid_parameter",
            param="top_logprobs",
        )
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(
            400,
            "max_tokens and max_completion_tokens say the same; give one of them",
            code="invalid_parameter",
            param="max_completion_tokens",
        )
    while True:
        deployment = service.current
        order = await _chat_order(service, deployment, body, caller)
        if deployment is service.current:
            break  # else another model may have taken over meanwhile, with another template
    return await _answer(service, deployment, request, body, order, bool(body.logprobs))


async def _chat_order(service: Service, deployment: Deployment, body: ChatBody, caller: Caller) -> Order:
    """The chat as token ids, with a limit on its output."""
    messages = [message.plain() for message in body.messages]
    tokenizer = deployment.engine.tokenizer
    try:
        ids: list[int] = await asyncio.to_thread(tokenizer.apply_chat_template, messages)
    except IntaglioError as error:
        refused = of_engine(error, prompt_field="messages")
        raise ApiError(400, str(error), code=refused.code, param="messages") from error
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if most is None:
        most = await _room(service, deployment, len(ids), body.context, caller)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = body.sampling(max_tokens=most, logprobs=logprobs)
    return Order([ids], params, "messages", caller.tenant, body.context)


async def _room(
    service: Service, deployment: Deployment, used: int, context: str | None, caller: Caller
) -> int:
    """Output tokens for a chat that names no limit: the default, or what the model's context leaves."""
    if context is not None:
        contexts = deployment.engine.contexts
        try:
            used += (await asyncio.to_thread(contexts.get, context, caller.tenant)).tokens
        except IntaglioError as error:
            raise of_engine(error) from error
    return max(1, min(service.limits.default_max_tokens, deployment.engine.max_model_len - used))


async def _answer(
    service: Service,
    deployment: Deployment,
    request: Request,
    body: GenerationFields,
    order: Order,
    logprobs: bool,
) -> Response:
    # Nothing is awaited before the generation has its places, so a swap cannot come between.
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            400,
            "stream_options needs stream=true; add it, or leave stream_options out",
            code="invalid_parameter",
            param="stream_options",
        )
    generation = service.generation(deployment, order)
    style = Style(
        chat=isinstance(body, ChatBody),
        logprobs=logprobs,
        token_ids=bool(body.return_token_ids),
        tokenizer=deployment.engine.tokenizer,
        model=service.served_name,
        fingerprint=deployment.fingerprint,
        id=generation.id,
    )
    if body.stream:
        await generation.__aenter__()
        documents = _documents(generation, style, count=len(order.prompts), usage=body.include_usage)
        return EventStream(generation, documents, service.metrics.departed)
    try:
        return JSONResponse(await unless_gone(request.receive, _whole(generation, style)))
    finally:
        generation.close()  # also when the client left before the work had begun


async def _whole(generation: Generation, style: Style) -> dict[str, Any]:
    async with generation:
        async for _ in generation.updates():
            pass
    done = [output for output in generation.outputs if output is not None]
    choices = [style.choice(index, output) for index, output in enumerate(done)]
    return {**style.envelope(choices, chunk=False), "usage": generation.usage}


async def _documents(
    generation: Generation, style: Style, *, count: int, usage: bool
) -> AsyncIterator[dict[str, Any]]:
    if style.chat:
        for index in range(count):
            yield _chunk(style, [style.opening(index)], usage)
    async for index, update in generation.updates():
        piece = style.piece(index, update.event)
        if piece is not None:
            yield _chunk(style, [piece], usage)
    if usage:
        yield {**style.envelope([], chunk=True), "usage": generation.usage}


def _chunk(style: Style, choices: list[dict[str, Any]], usage: bool) -> dict[str, Any]:
    made = style.envelope(choices, chunk=True)
    return {**made, "usage": None} if usage else made
