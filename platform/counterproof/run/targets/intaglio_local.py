"""The engine of this project, inside the measured process."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

from counterproof.errors import ExecutionError, InputError, SetupError
from counterproof.run.targets import intaglio_quality
from counterproof.run.targets.documents import Documents
from counterproof.run.targets.intaglio_documents import EngineKeeper
from counterproof.run.targets.protocol import Logits, Output, Readings, RefusedRequestError, Tell, Token
from counterproof.workload.sealed import SealedRequest
from intaglio.compute.native import build
from intaglio.config import EngineConfig
from intaglio.errors import ConfigError, IntaglioError, ModelError, NumericsError, RequestError
from intaglio.models import catalogue
from intaglio.state.kv_format import kv_format

# The engine's columns of resources.parquet; what else an engine gauges is not recorded.
_GAUGES = (
    *("running", "waiting", "kv_blocks_used", "kv_blocks_total", "kv_bytes_used"),
    *("gpu_allocated_bytes", "gpu_reserved_bytes"),
)


class IntaglioLocal:
    """How to plan for and start the engine."""

    def planner(self, engine: EngineConfig) -> IntaglioPlanner:
        """Raises SetupError when the model is not there. Compiles the engine's kernels where they are not kept yet,
        so that no run's start-up pays for it."""
        planner = IntaglioPlanner(engine)
        if engine.device == "cpu" and engine.numerics.mode != "fast":
            # Without a compiler the engine itself tells what it falls back to.
            with contextlib.suppress(build.BuildError):
                build.build()
        return planner

    def start(self, engine: EngineConfig) -> IntaglioTarget:
        """Load the model in this process. Raises InputError or SetupError."""
        return IntaglioTarget(engine)

    def quality(
        self,
        reference: EngineConfig,
        candidate: EngineConfig,
        requests: Sequence[SealedRequest],
        outputs: Sequence[Sequence[int]],
        tell: Tell,
    ) -> list[dict[str, Any]]:
        """See QualityKind.quality."""
        return intaglio_quality.measure(reference, candidate, requests, outputs, tell)


class IntaglioPlanner:
    """Reads a model's tokenizer, configuration and hashes without torch."""

    def __init__(self, engine: EngineConfig) -> None:
        from intaglio.intake.tokenizer import Tokenizer

        self._engine = engine
        try:
            self._folder = catalogue.resolve(engine.model)
            self._tokenizer = Tokenizer(self._folder)
        except ModelError as error:
            raise SetupError(str(error)) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the model's own rule for the first token."""
        return self._tokenizer.encode(text)

    def model_identity(self) -> dict[str, str]:
        """sha256 of weights, configuration, tokenizer and chat template."""
        return {
            f"{part}_sha256": digest for part, digest in sorted(catalogue.fingerprint(self._folder).items())
        }

    def kv_bytes_per_token(self) -> int:
        """Layers x bytes of a token's keys and values in the format (see kv_format.py). Raises SetupError."""
        config = catalogue.read_json(self._folder / catalogue.CONFIG)
        try:
            heads = int(config["num_attention_heads"])
            kv_heads = int(config.get("num_key_value_heads") or heads)
            head = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
            layers = int(config["num_hidden_layers"])
        except (KeyError, TypeError, ValueError) as error:
            raise SetupError(f"the model's config.json does not state its shape: {error!r}") from error
        stored = self._engine.kv_cache.format
        form = kv_format(self._engine.dtype if stored == "auto" else stored)
        return layers * form.token_bytes(kv_heads, head)


class IntaglioTarget:
    """A running engine behind the harness's protocol."""

    def __init__(self, config: EngineConfig) -> None:
        from intaglio.engine import Engine

        try:
            self._engine = Engine(config)
        except ConfigError as error:
            raise InputError(f"engine.{error}") from error
        except (ModelError, NumericsError) as error:
            raise SetupError(str(error)) from error
        except IntaglioError as error:
            raise ExecutionError(str(error)) from error
        # What really runs decides: a feature that is off under the hood gets its documents inlined.
        effective = self._engine.effective_config()
        self._documents: Documents | None = None
        if effective.get("context_cache.enabled") is True:
            self._documents = Documents(
                EngineKeeper(self._engine), int(effective["kv_cache.block_tokens"] or 0)
            )

    def keep_documents(self, requests: Sequence[SealedRequest]) -> int:
        """Upload the documents of these requests where the context cache is on; returns how many were not there.

        Raises ExecutionError.
        """
        return 0 if self._documents is None else self._documents.keep(requests)

    def add(self, request_id: str, request: SealedRequest) -> None:
        """Hand a request over. Raises RefusedRequestError with the engine's typed code."""
        prompt, context = self._apart(request)
        try:
            self._engine.add(prompt, _params(request), request_id=request_id, context=context)
        except RequestError as error:
            raise RefusedRequestError(f"{error.code}: {error}") from error

    def add_text(self, request_id: str, text: str, request: SealedRequest) -> None:
        """Hand a text over with a request's parameters. Raises RefusedRequestError as `add` does."""
        try:
            self._engine.add(text, _params(request), request_id=request_id)
        except RequestError as error:
            raise RefusedRequestError(f"{error.code}: {error}") from error

    def end_token_ids(self) -> tuple[int, ...]:
        """The model's end-of-sequence tokens."""
        return tuple(self._engine.tokenizer.eos_token_ids)

    def step(self) -> list[Token]:
        """One engine step."""
        return [
            Token(
                event.request_id,
                event.index,
                event.token_id,
                event.time_ns,
                event.logprob,
                event.margin,
                event.finish_reason,
                str(event.error) if event.error else None,
            )
            for event in self._engine.step()
        ]

    def output(self, request_id: str) -> Output:
        """The finished request, forgotten by the engine afterwards."""
        return _output(self._engine.output(request_id))

    def abort(self, request_id: str) -> None:
        """End a request."""
        self._engine.abort(request_id)

    def compute_logits(self, requests: Sequence[SealedRequest]) -> list[Logits]:
        """Run all requests together; fp32 logits of every output token."""
        import numpy as np

        self.keep_documents(requests)
        result = []
        for out in self._together(requests):
            rows = [np.ravel(row) for row in out.logits or []]
            if out.error is None and len(rows) != len(out.token_ids):
                raise ExecutionError(
                    f"the engine returned {len(rows)} logit rows for {len(out.token_ids)} tokens"
                )
            matrix = np.stack(rows).astype(np.float32, copy=False) if rows else np.zeros((0, 0), np.float32)
            stamps = (tuple(out.token_times_ns), tuple(out.logprobs), tuple(out.margins))
            result.append(Logits(_output(out), out.enqueued_ns, *stamps, matrix))
        return result

    def effective_config(self) -> dict[str, Any]:
        """What the engine says it really runs."""
        return dict(self._engine.effective_config())

    def identity(self) -> dict[str, Any]:
        """Threads, torch's build and libraries, devices, and the kernels that were taken."""
        import torch

        effective = self._engine.effective_config()
        fields: dict[str, Any] = {
            "threads.count": torch.get_num_threads(),
            "threads.interop": torch.get_num_interop_threads(),
            "threads.wait_policy": effective.get("threads.wait_policy"),
            "torch.version": torch.__version__,
            "torch.git": str(torch.version.git_version),
            "torch.build_sha256": hashlib.sha256(torch.__config__.show().encode()).hexdigest(),
            "torch.cuda": str(torch.version.cuda),
            "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
            "torch.matmul_precision": torch.get_float32_matmul_precision(),
            "torch.cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "kernel_path": effective.get("kernel_path"),
        }
        if effective.get("device") == "cuda":
            fields["torch.cudnn"] = str(torch.backends.cudnn.version())
            fields["gpu.count"] = torch.cuda.device_count()
        return fields

    def counters(self) -> dict[str, int]:
        """Work done since the start."""
        return dict(self._engine.counters())

    def drain(self) -> Readings:
        """Spans, gauges and events since the last call."""
        spans = [
            {
                "request_id": span.request_id,
                "step": span.step,
                "stage": span.stage,
                "phase": span.phase,
                "start_ns": span.start_ns,
                "wall_ns": span.wall_ns,
                "share_ns": span.share_ns,
                "tokens": span.tokens,
                "bytes": span.bytes,
                "flops": span.flops,
            }
            for span in self._engine.trace.drain()
        ]
        gauges = [
            {"time_ns": time_ns, "source": "engine", **{name: values.get(name) for name in _GAUGES}}
            for time_ns, values in self._engine.drain_gauges()
        ]
        own = self._documents.drain() if self._documents is not None else []
        return Readings(spans, gauges, [*self._engine.drain_events(), *own])

    def close(self) -> None:
        """Free everything."""
        if self._documents is not None:
            self._documents.close()
        self._engine.close()

    def _apart(self, request: SealedRequest) -> tuple[list[int], str | None]:
        if self._documents is None:
            return list(request.token_ids), None
        return self._documents.apart(request)

    def _together(self, requests: Sequence[SealedRequest]) -> list[Any]:
        """Every request's output, in order. Raises ExecutionError for one that is refused."""
        names = []
        for request in requests:
            prompt, context = self._apart(request)
            try:
                name = self._engine.add(prompt, _params(request), return_logits=True, context=context)
            except RequestError as error:
                raise ExecutionError(f"request {request.request_index} is refused: {error}") from error
            names.append(name)
        while self._engine.has_work:
            self._engine.step()
        return [self._engine.output(name) for name in names]


def _output(out: Any) -> Output:
    return Output(
        out.request_id,
        tuple(out.token_ids),
        out.text,
        out.finish_reason,
        out.done_ns,
        out.tokens_computed,
        out.cached_tokens,
        f"{out.error.code}: {out.error}" if out.error else None,
    )


def _params(request: SealedRequest) -> Any:
    from intaglio.intake.request import SamplingParams

    return SamplingParams(
        max_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        logprobs=0,
    )
