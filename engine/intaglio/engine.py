"""The engine: requests in, tokens out. Everything else in this package is a part of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from intaglio import assembly, config_corner, config_sabotage, loading
from intaglio.compute import resident
from intaglio.config import EngineConfig, Scalar
from intaglio.contexts import Capture, Contexts, Host
from intaglio.errors import ConfigError, DuplicateRequestError, IntaglioError, RequestError
from intaglio.intake import admission, validation
from intaglio.intake.request import Prompt, RequestOutput, SamplingParams, TokenEvent
from intaglio.intake.scheduler import Scheduler
from intaglio.output.stream import OutputHub
from intaglio.output.token_stream import TokenStream
from intaglio.state.block_pools import BlockPools
from intaglio.state.context_files import ContextFiles
from intaglio.stepping import Stepper
from intaglio.telemetry import Telemetry
from intaglio.trace import StageSpan, Trace


class Engine:
    """One model behind a queue. One thread drives `step` (or generate, stream); any thread may add or abort.

    `loaded` replaces what `config.model` would load: a stand-in for tests, or a runner built elsewhere.
    Raises ConfigError, ModelError, or NumericsError when invariant mode fails its self-test here.
    """

    def __init__(self, config: EngineConfig, *, loaded: loading.Loaded | None = None) -> None:
        if not isinstance(config, EngineConfig):
            raise ConfigError(
                f"config must be an EngineConfig, not {type(config).__name__}; e.g. EngineConfig(model='tiny')"
            )
        self._config = config = config_sabotage.in_force(config.validate())
        self._loaded = loaded or loading.load(config)
        self.tokenizer: Any = self._loaded.codec
        self._telemetry = Telemetry()
        self.trace = Trace(self._telemetry.counters, enabled=config.trace.enabled)
        try:
            self._pools = assembly.make_pools(config, self._loaded)
            self._traffic = assembly.make_traffic(config, self._pools, self._telemetry)
            self._limits = assembly.request_limits(config, self._loaded.facts, self._pools)
        except BaseException:
            self._loaded.runner.close()
            raise
        self._scheduler = Scheduler(
            assembly.scheduler_limits(config, self._loaded),
            self._pools,
            self._telemetry,
            assembly.make_reuse(config, self._loaded, self._pools, self._telemetry),
            self._traffic,
        )
        self._hub = OutputHub(self._loaded.codec, self._telemetry)
        self._lock = threading.RLock()  # guards all state; never held while a step computes
        self._stepping = threading.Lock()  # one step at a time
        self._stepper = Stepper(
            self._scheduler,
            self._hub,
            self._telemetry,
            self.trace,
            self._lock,
            self._loaded.runner.execute,
            self.gauges,
            delay_us=config.inject.step_delay_us,
            corner=config_corner.parse(config.inject.corner),
        )
        self._made_ids = 0
        self._dropped: deque[str] = (
            deque()
        )  # requests whose stream was dropped unread; aborted at the next step
        self._closed = False
        self.contexts = self._make_contexts()
        for fields in assembly.fallbacks(config, self._loaded):
            self._telemetry.event("fallback", **fields)
        if loaded is None:
            resident.settle()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Requests

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        return_logits: bool = False,
        enqueued_ns: int | None = None,
        tenant: str = "",
        context: str | None = None,
    ) -> str:
        """Admit a request and return its id. Raises a RequestError, and leaves nothing behind, if it is bad.

        enqueued_ns: when it was ready to be sent, if it waited before this call (time.perf_counter_ns).
        tenant: whose request it is; tenants share no cached state. It must come from an authenticated source.
        context: id of a context of this tenant (see `contexts`): its tokens come before the prompt's.
        """
        enqueued = time.perf_counter_ns() if enqueued_ns is None else enqueued_ns
        return self._admit(prompt, params, request_id, return_logits, enqueued, None, tenant, context)

    def abort(self, request_id: str) -> bool:
        """End a request now, whatever it is doing. False if it is not live (it may just have ended)."""
        with self._lock:
            sequence = self._scheduler.get(request_id) if isinstance(request_id, str) else None
            if sequence is None:
                return False
            step, phase = sequence.in_flight, sequence.phase
            self._hub.aborted(sequence)
            self._scheduler.abort(request_id)
            now = time.perf_counter_ns()
            self._hub.seal(now)
            self.trace.closed(request_id, now, step=step, step_start=self._stepper.started, phase=phase)
            return True

    def output(self, request_id: str) -> RequestOutput:
        """A finished request's output, once. Raises UnknownRequestError."""
        with self._lock:
            return self._hub.take(request_id)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to report."""
        self._abort_dropped()
        with self._lock:
            return self._scheduler.has_work or self._hub.undelivered

    # Driving

    def step(self) -> list[TokenEvent]:
        """Compute one step. Returns the new events of requests that no stream() or generate() is reading."""
        self._advance()
        with self._lock:
            return self._hub.collect()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        tenant: str = "",
        context: str | None = None,
    ) -> TokenStream:
        """Admit a request and iterate over its events, driving the engine. Closing the stream, or dropping it,
        aborts the request.

        The request is admitted (or refused) by this call, not by the first iteration.
        """
        queue: deque[TokenEvent] = deque()
        request_id = self._admit(prompt, params, None, False, time.perf_counter_ns(), queue, tenant, context)
        return TokenStream(request_id, queue, self._advance, self.abort, self._dropped.append)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        return_logits: bool = False,
        on_error: str = "return",
        tenant: str = "",
        context: str | None = None,
    ) -> list[RequestOutput]:
        """Run prompts to their end, together, and return their outputs in order.

        params: one for all, or one each. A bad request's output carries its typed `error` and the others are
        unaffected; with on_error="raise" the first error is raised instead and the others are aborted.
        """
        if on_error not in ("return", "raise"):
            raise RequestError(f"on_error must be 'return' or 'raise', not {on_error!r}", field="on_error")
        pairs = admission.pair(prompts, params)
        outputs: dict[int, RequestOutput] = {}
        pending: dict[str, int] = {}
        queue: deque[TokenEvent] = deque()
        try:
            for index, (prompt, own) in enumerate(pairs):
                try:
                    now = time.perf_counter_ns()
                    name = self._admit(prompt, own, None, return_logits, now, queue, tenant, context)
                    pending[name] = index
                except RequestError as error:
                    if on_error == "raise":
                        raise
                    outputs[index] = RequestOutput("", [], finish_reason="error", error=error)
            while pending:
                event = queue.popleft() if queue else None
                if event is None:
                    self._advance(queue)
                elif event.finish_reason is not None:
                    if event.error is not None and on_error == "raise":
                        raise event.error
                    outputs[pending.pop(event.request_id)] = self.output(event.request_id)
        finally:
            for name in pending:
                self.abort(name)
                self._hub.discard(name)
        return [outputs[index] for index in range(len(pairs))]

    # What it is and does

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its output together."""
        return self._limits.max_model_len

    def effective_config(self) -> dict[str, Scalar]:
        """What really runs: every configuration path with its value in force, and what follows from them."""
        return loading.effective(self._config, self._loaded, self._pools.total if self._pools else 0)

    def counters(self) -> dict[str, int]:
        """Work done since the start (names: intaglio.telemetry.COUNTERS)."""
        with self._lock:
            values = self._telemetry.counters.snapshot()
            values["blocks_allocated"] = self._pools.allocated if self._pools else 0
            values["blocks_freed"] = self._pools.freed if self._pools else 0
            return values

    def gauges(self) -> dict[str, int]:
        """What is held now. kv_blocks_unaccounted: blocks in use that nobody names, counted while no request is live
        (else 0): a leak or a double free shows as a number and ends nothing."""
        with self._lock:
            pools, running, waiting = self._pools, self._scheduler.running, self._scheduler.waiting
            idle = pools is not None and not running and not waiting
            return {
                "running": running,
                "waiting": waiting,
                **(pools.gauges() if pools else dict.fromkeys(BlockPools.GAUGES, 0)),
                "kv_blocks_unaccounted": pools.unaccounted(self._scheduler.tables()) if pools and idle else 0,
                **self._loaded.device_memory(),
            }

    def drain_gauges(self) -> list[tuple[int, dict[str, int]]]:
        """(time_ns, gauges) of every step since the last call, and of every moment the engine fell idle."""
        with self._lock:
            return self._telemetry.drain_gauges()

    def drain_events(self) -> list[dict[str, Any]]:
        """What went another way than usual since the last call: {"time_ns", "kind", ...}."""
        with self._lock:
            return self._telemetry.drain_events()

    def drain_spans(self) -> list[StageSpan]:
        """The trace since the last call (`trace.drain`, safe from any thread)."""
        with self._lock:
            return self.trace.drain()

    def check_integrity(self) -> None:
        """Raise BlockPoolError unless every KV block is accounted for by the live requests."""
        with self._lock:
            if self._pools:
                self._pools.check_integrity(self._scheduler.tables())

    def close(self) -> None:
        """Abort what is live and let the workers go. Further requests and steps are refused."""
        with self._stepping, self._lock:
            if self._closed:
                return
            for request_id in self._scheduler.live_ids():
                self.abort(request_id)
            self._closed = True
            self._loaded.runner.close()

    def _abort_dropped(self) -> None:
        while self._dropped:
            self.abort(self._dropped.popleft())

    def _advance(self, queue: deque[TokenEvent] | None = None) -> None:
        """One step. A reader whose queue was filled by closing the engine meanwhile reads on instead."""
        with self._stepping:
            if queue and self._closed:
                return
            self._check_open()
            self._abort_dropped()
            self._stepper.step()

    def _admit(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str | None,
        return_logits: bool,
        enqueued_ns: int,
        queue: deque[TokenEvent] | None,
        tenant: str,
        context: str | None = None,
        capture: Capture | None = None,
    ) -> str:
        try:
            validation.check_options(return_logits, enqueued_ns, time.perf_counter_ns())
            validation.check_tenant(tenant)
            entry = None if context is None else self.contexts.resolve(context, tenant)
            before = entry.record.tokens if entry else ()
            ready = admission.prepare(prompt, params, self._loaded.codec, self._limits, before)
            with self._lock:
                self._check_open()
                self._scheduler.check_room()
                self.contexts.check(entry)
                name = self._claim_id(request_id)
                self._hub.open(
                    name,
                    ready.prompt,
                    ready.params,
                    ready.seed,
                    enqueued_ns=enqueued_ns,
                    want_logits=return_logits,
                )
                if queue is not None:
                    self._hub.subscribe(name, queue)
                sequence = self._scheduler.add(
                    name,
                    ready.prompt,
                    ready.params,
                    ready.seed,
                    want_logits=return_logits,
                    tenant=tenant,
                )
                sequence.capture = capture
                self.contexts.use(sequence, entry)
                self._telemetry.counters.add("requests_admitted")
                if ready.lost:
                    self._telemetry.event("characters_lost", request_id=name, characters=ascii(ready.lost))
                self.trace.opened(name, enqueued_ns, ready.tokenized, len(ready.prompt))
                return name
        except RequestError as error:
            with self._lock:
                self._telemetry.counters.add("requests_rejected")
                self._telemetry.event("rejected", code=error.code, field=error.field, message=str(error))
            raise

    def _claim_id(self, request_id: str | None) -> str:
        if request_id is not None:
            validation.check_request_id(request_id)
            if self._hub.knows(request_id):
                raise DuplicateRequestError(
                    f"request id '{request_id}' is in use; choose another, or take its output first",
                    field="request_id",
                )
            return request_id
        while True:
            self._made_ids += 1
            name = f"request-{self._made_ids:012d}"
            if not self._hub.knows(name):
                return name

    def _check_open(self) -> None:
        if self._closed:
            raise IntaglioError("the engine is closed; make a new one")

    # For the contexts

    def _admit_document(
        self, tokens: list[int], tenant: str, capture: Capture, queue: deque[TokenEvent]
    ) -> str:
        params, now = SamplingParams(max_tokens=1, ignore_eos=True), time.perf_counter_ns()
        return self._admit(tokens, params, None, False, now, queue, tenant, capture=capture)

    def _withdraw(self, request_id: str) -> None:
        self.abort(request_id)
        self._hub.discard(request_id)

    def _make_contexts(self) -> Contexts:
        config, loaded = self._config, self._loaded
        host = Host(
            prepare=lambda document: (
                admission.prepare(document, SamplingParams(max_tokens=1), loaded.codec, self._limits).prompt
            ),
            admit=self._admit_document,
            advance=self._advance,
            withdraw=self._withdraw,
            identity=lambda: loading.cache_identity(config, loaded),
        )
        files = ContextFiles(loading.contexts_folder(config))
        return Contexts(
            config.context_cache, files, self._traffic, self._pools, self._telemetry, self._lock, host
        )
