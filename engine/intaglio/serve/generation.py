"""The engine's side of one HTTP request: its prompts admitted together, their events, and their end."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from intaglio.errors import IntaglioError
from intaglio.intake.request import Prompt, RequestOutput, SamplingParams
from intaglio.serve.api_error import ApiError, of_engine
from intaglio.serve.channel import Channel, Update
from intaglio.serve.deployment import Deployment
from intaglio.serve.metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be generated. prompt_field: what the request calls its prompt, for errors."""

    prompts: Sequence[Prompt]
    params: SamplingParams
    prompt_field: str
    tenant: str
    context: str | None


class Generation:
    """Requests of one client, used as `async with`: leaving it ends those that have not ended, at once.

    Each prompt takes a place on construction and gives it back when its request ends, or on `close`.
    """

    def __init__(
        self, deployment: Deployment, order: Order, metrics: ServerMetrics, *, timeout_s: float
    ) -> None:
        """Raises ApiError when there are no places."""
        deployment.places.take(len(order.prompts))
        self.id = uuid.uuid4().hex
        self.deployment = deployment
        self.outputs: list[RequestOutput | None] = [None] * len(order.prompts)
        self._order = order
        self._metrics = metrics
        self._channel = Channel()
        self._began = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self._open = {f"{self.id}-{index}": index for index in range(len(order.prompts))}
        self._closed = False
        self._last_token: dict[int, float] = {}

    @property
    def deadline(self) -> float:
        """When the whole answer must be sent, on the loop's clock."""
        return self._deadline

    async def __aenter__(self) -> Generation:
        """Admit all prompts, or none. Raises ApiError."""
        try:
            await asyncio.to_thread(self._submit)
        except IntaglioError as error:
            self.close()
            field, wait = self._order.prompt_field, self.deployment.places.retry_after
            raise of_engine(error, prompt_field=field, retry_after=wait) from error
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """(index of the prompt, update) until all requests have ended. Raises ApiError 500, 503 or 504."""
        while self._open:
            try:
                async with asyncio.timeout_at(self._deadline):
                    update = await self._channel.get()
            except TimeoutError:
                raise self.timed_out() from None
            index = self._open.get(update.event.request_id)
            if index is None:
                continue
            self._observe(index, update)
            if update.event.finish_reason is not None:
                self._end(index, update)
            yield index, update

    def timed_out(self) -> ApiError:
        """The error of an answer that took too long."""
        return ApiError(
            504,
            f"the answer took longer than {self._timeout_s:g} s; ask for fewer tokens",
            code="request_timeout",
        )

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts of the requests that have ended, in OpenAI's shape."""
        done = [output for output in self.outputs if output is not None]
        prompt = sum(len(output.prompt_token_ids) for output in done)
        completion = sum(len(output.token_ids) for output in done)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(output.cached_tokens for output in done)},
        }

    def close(self) -> None:
        """End every request that has not ended, and give its place back. May be called again."""
        self._closed = True
        for name in self._open:
            self.deployment.driver.drop(name)
            self._metrics.finished["dropped"] += 1
        if self._open:
            self.deployment.places.give_back(len(self._open))
            self._open = {}

    def _submit(self) -> None:
        order, driver = self._order, self.deployment.driver
        for name, prompt in zip(list(self._open), order.prompts, strict=True):
            # Every prompt is a request of its own, sampled as it would be alone.
            if self._closed:
                return
            sink, tenant = self._channel, order.tenant
            driver.submit(name, prompt, order.params, sink, tenant=tenant, context=order.context)
            if self._closed:  # the client left meanwhile, and nobody else will end this one
                driver.drop(name)

    def _observe(self, index: int, update: Update) -> None:
        if update.event.token_id is None:
            return
        now = time.monotonic()
        before = self._last_token.get(index)
        if before is None:
            self._metrics.ttft.observe(now - self._began)
        else:
            self._metrics.inter_token.observe(now - before)
        self._last_token[index] = now

    def _end(self, index: int, update: Update) -> None:
        event = update.event
        self._open.pop(event.request_id)
        self.deployment.places.give_back()
        self._metrics.finished[event.finish_reason or ""] += 1
        self._metrics.e2e.observe(time.monotonic() - self._began)
        if event.finish_reason == "error":
            raise ApiError(500, str(event.error), code="generation_failed")
        if event.finish_reason == "abort" or update.output is None:
            raise ApiError(
                503,
                "the server ended this request; send it again",
                code="aborted",
                headers={"retry-after": "1"},
            )
        self.outputs[index] = update.output
