"""What the harness asks of a target. A target runs inside the measured process; a planner never starts one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from counterproof.plan.schema import ServerConfig
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig


@dataclass(frozen=True)
class Token:
    """One emitted token, or (token_id None) a request's end without one. `time_ns`: perf_counter_ns.

    A server's chunk has `characters` instead of a token, and `tokens` where the server says how many it holds.
    """

    request_id: str
    index: int
    token_id: int | None
    time_ns: int
    logprob: float | None = None
    margin: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    characters: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Output:
    """A finished request.

    output_tokens, prompt_tokens  as the server counts them; None where it does not say, or where the ids say it
    sent_ns                       when the request had left, where that is not when it was handed over
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    done_ns: int
    tokens_computed: int | None
    cached_tokens: int | None
    error: str | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    sent_ns: int | None = None


@dataclass
class Readings:
    """What a target recorded since it was last asked: rows of `stages.parquet` (with `request_id` instead of
    `request_index`), engine rows of `resources.parquet`, and counted events."""

    stages: list[dict[str, Any]] = field(default_factory=list)
    gauges: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Logits:
    """One request's outcome in the equivalence phase.

    rows       fp32 logits as a matrix, one row an output token
    times_ns   when each token was emitted; `logprobs` and `margins` belong to the same tokens
    """

    output: Output
    enqueued_ns: int
    times_ns: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    rows: Any

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.output.token_ids

    @property
    def error(self) -> str | None:
        return self.output.error


class RefusedRequestError(Exception):
    """The target refuses a request; the text says why. Other requests are unaffected."""


class Target(Protocol):
    """A running engine. Requests are told apart by the id that the harness gives them."""

    def add(self, request_id: str, request: SealedRequest) -> None:
        """Hand a request over. Raises RefusedRequestError."""

    def step(self) -> list[Token]:
        """Advance all running requests once."""

    def output(self, request_id: str) -> Output:
        """The finished request, forgotten afterwards."""

    def abort(self, request_id: str) -> None:
        """End a request; its terminal token follows from `step`."""

    def compute_logits(self, requests: Sequence[SealedRequest]) -> list[Logits]:
        """Run all requests together and return their tokens and logits."""

    def effective_config(self) -> dict[str, Any]:
        """What the engine says it really runs, flat."""

    def identity(self) -> dict[str, Any]:
        """Identity fields that only this process knows: threads, libraries' builds, kernels, devices."""

    def counters(self) -> dict[str, int]:
        """Work done since the start."""

    def drain(self) -> Readings:
        """Everything recorded since the last call."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class DocumentTarget(Protocol):
    """A target that can keep documents, so that requests name them instead of carrying their text."""

    def keep_documents(self, requests: Sequence[SealedRequest]) -> int:
        """Keep the documents of these requests, once each, and let go of all others; nothing where this is off.

        Returns how many were uploaded now.
        """


@runtime_checkable
class RemoteTarget(Target, Protocol):
    """A server: the client waits for bytes instead of computing, and an answer comes in chunks."""

    stamps: str

    def prepare(self, requests: Sequence[SealedRequest]) -> None:
        """Whatever can be made before the load."""

    def step_within(self, wait_s: float) -> list[Token]:
        """Everything that arrived, waiting at most so long for it."""

    def complete(self, request: SealedRequest, output: Output) -> Output:
        """What is left to do for an output when the load is over."""

    def client_facts(self) -> dict[str, Any]:
        """How the client itself did."""


class Planner(Protocol):
    """What a plan needs to know of a target's model without starting it."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def model_identity(self) -> dict[str, str]:
        """sha256 of everything that identifies the model."""

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one token occupies."""


class TargetKind(Protocol):
    """How to plan for and how to start one kind of target."""

    def planner(self, engine: EngineConfig) -> Planner:
        """Raises SetupError when the model is not there."""

    def start(self, engine: EngineConfig) -> Target:
        """Start the engine in this process. Raises SetupError or ExecutionError."""


Tell = Callable[[int, int], None]


@runtime_checkable
class QualityKind(Protocol):
    """A kind of target that can compare the predictions of two of its configurations."""

    def quality(
        self,
        reference: EngineConfig,
        candidate: EngineConfig,
        requests: Sequence[SealedRequest],
        outputs: Sequence[Sequence[int]],
        tell: Tell,
    ) -> list[dict[str, Any]]:
        """Teacher forcing over the requests with these outputs, and over held-out text.

        One dict of facts a scope ("all", "held_out", "request" with its request_index): positions, kl_mean, kl_p99,
        top1_agreement, max_dlogit, perplexities and their ratio. `tell`: (predictions made, in all).
        """


@runtime_checkable
class ServerKind(Protocol):
    """A kind of target that is a server."""

    def connect(self, engine: EngineConfig, server: ServerConfig, folder: Path) -> RemoteTarget:
        """Start the server if there is a command, wait for its health, and connect. `folder`: for its log."""
