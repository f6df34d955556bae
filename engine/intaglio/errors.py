"""Typed errors of the engine. Each names the field at fault and what to do about it."""

from __future__ import annotations


class IntaglioError(Exception):
    """Base of every error the engine raises on purpose.

    `code` is a stable machine-readable name, `field` the configuration path or request field at fault
    (empty if none applies), and the message ends in what to do next.
    """

    code: str = "error"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ConfigError(IntaglioError):
    """A configuration value is of the wrong type, out of range, unknown, or contradicts another."""

    code = "config"


class ModelError(IntaglioError):
    """A model folder is missing, incomplete, of an unsupported architecture, or fails its hash."""

    code = "model"


class NumericsError(IntaglioError):
    """Invariant mode's start-up self-test failed on this machine, so the mode is refused."""

    code = "numerics"


class TraceError(IntaglioError):
    """A recorded trace cannot be read, or is not what it has to be."""

    code = "trace"


class WorkerError(IntaglioError):
    """A worker broke its contract or died; the requests of the step are failed or replayed."""

    code = "worker"


class RequestError(IntaglioError):
    """Base of everything that is wrong with one request. It never touches another request."""

    code = "request"


class EmptyPromptError(RequestError):
    code = "empty_prompt"


class PromptTooLongError(RequestError):
    code = "prompt_too_long"


class TokenRangeError(RequestError):
    code = "token_out_of_range"


class PromptEncodingError(RequestError):
    code = "prompt_encoding"


class SamplingParamsError(RequestError):
    code = "sampling_params"


class CapacityError(RequestError):
    """The request can never fit the KV pool (or the recompute budget), however long it waits."""

    code = "kv_capacity"


class QueueFullError(RequestError):
    """As many requests wait as may wait: nothing is wrong with this one, send it again later (HTTP 429)."""

    code = "queue_full"


class UnknownRequestError(RequestError):
    code = "unknown_request"


class DuplicateRequestError(RequestError):
    code = "duplicate_request"


class ContextError(RequestError):
    """A context cannot be made or used as asked."""

    code = "context"


class UnknownContextError(ContextError):
    """There is no context of this id for this tenant; whether another tenant has one is not told."""

    code = "unknown_context"


class ContextExpiredError(ContextError):
    """The context's time to live is over."""

    code = "context_expired"


class ContextQuotaError(ContextError):
    """The tenant's contexts would take more bytes than its quota."""

    code = "context_quota"


class ContextMismatchError(ContextError):
    """The context was computed by another model, number format, block size or kernel path, or file version."""

    code = "context_mismatch"


class ContextDamagedError(ContextError):
    """The context's files are incomplete or do not match their checksums."""

    code = "context_damaged"
