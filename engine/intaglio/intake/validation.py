"""What a request may ask for, checked before any work starts. Every refusal names the field and the fix.

One bad request never touches another: a check raises a RequestError and leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from intaglio.errors import (
    CapacityError,
    EmptyPromptError,
    PromptEncodingError,
    PromptTooLongError,
    RequestError,
    SamplingParamsError,
    TokenRangeError,
)
from intaglio.intake.request import SamplingParams

# Outside of these, fp32 logits overflow or the choice is no different from the bound's.
TEMPERATURE = (1e-5, 1e5)
REPETITION_PENALTY = (1e-3, 1e3)
SEED_LIMIT = 1 << 64
LOGPROBS_LIMIT = 100
STOP_STRINGS_LIMIT = 64
STOP_STRING_CHARACTERS = 1024
STOP_TOKENS_LIMIT = 1024
TENANT_CHARACTERS = 256
# No vocabulary has tokens longer than this, so a longer text cannot fit, whatever its tokens are.
CHARACTERS_PER_TOKEN = 512


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request has to fit into.

    max_model_len   most tokens of prompt and output together
    capacity        most tokens that can be held at once: of the KV pool, or without a cache the token budget
    use_cache       which of the two `capacity` is
    """

    vocab_size: int
    max_model_len: int
    capacity: int
    use_cache: bool


def check_params(params: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The parameters with plain value types. Raises SamplingParamsError for the first one that is wrong."""
    if not isinstance(params, SamplingParams):
        raise SamplingParamsError(
            f"params must be SamplingParams, not {type(params).__name__}", field="params"
        )
    most = limits.max_model_len
    _integer("max_tokens", params.max_tokens, 1, most, f"give 1 to {most}, the model's context")
    _integer("top_k", params.top_k, 0, 1 << 31, "give 0 to keep every token")
    if params.seed is not None:
        _integer("seed", params.seed, 0, SEED_LIMIT - 1, "give a 64-bit whole number, or None")
    if params.logprobs is not None:
        most = min(LOGPROBS_LIMIT, limits.vocab_size)
        _integer("logprobs", params.logprobs, 0, most, f"give 0 to {most}, or None")
    if type(params.ignore_eos) is not bool:
        raise _wrong("ignore_eos", params.ignore_eos, "give True or False")
    return dataclasses.replace(
        params,
        temperature=_temperature(params.temperature),
        top_p=_number("top_p", params.top_p, lambda p: 0 < p <= 1, "give more than 0 and at most 1"),
        min_p=_number("min_p", params.min_p, lambda p: 0 <= p < 1, "give 0 to less than 1"),
        repetition_penalty=_number(
            "repetition_penalty",
            params.repetition_penalty,
            lambda p: REPETITION_PENALTY[0] <= p <= REPETITION_PENALTY[1],
            f"give {REPETITION_PENALTY[0]} to {REPETITION_PENALTY[1]:g}; 1 does nothing",
        ),
        stop=_stop_strings(params.stop),
        stop_token_ids=_stop_tokens(params.stop_token_ids, limits.vocab_size),
    )


def check_text(prompt: str, limits: RequestLimits) -> None:
    """Check a prompt given as text, before it is tokenised."""
    if not prompt:
        raise EmptyPromptError("the prompt is empty; give at least one character", field="prompt")
    if len(prompt) > CHARACTERS_PER_TOKEN * limits.max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} characters and cannot fit {limits.max_model_len} tokens; shorten it",
            field="prompt",
        )
    at = _surrogate(prompt)
    if at is not None:
        raise PromptEncodingError(
            f"the prompt has a lone surrogate at character {at}; send valid Unicode", field="prompt"
        )


def check_prompt_ids(prompt: Sequence[int], limits: RequestLimits) -> tuple[int, ...]:
    """The prompt's token ids, checked one by one. Raises a RequestError of the kind that applies."""
    if not isinstance(prompt, (list, tuple)):
        raise RequestError(
            f"the prompt must be text or a list of token ids, not {type(prompt).__name__}", field="prompt"
        )
    if not prompt:
        raise EmptyPromptError("the prompt has no tokens; give at least one", field="prompt")
    for position, token in enumerate(prompt):
        if type(token) is not int:
            raise TokenRangeError(
                f"token {position} of the prompt is {type(token).__name__} {_show(token)}; give whole numbers",
                field="prompt",
            )
        if not 0 <= token < limits.vocab_size:
            raise TokenRangeError(
                f"token {position} of the prompt is {_show(token)}; ids go from 0 to {limits.vocab_size - 1}",
                field="prompt",
            )
    return tuple(prompt)


def check_fit(prompt_len: int, max_tokens: int, limits: RequestLimits) -> None:
    """Check that the request can run to its end in the model's context, and start in the pool."""
    if prompt_len + max_tokens > limits.max_model_len:
        raise PromptTooLongError(
            f"{prompt_len} prompt tokens and max_tokens={max_tokens} exceed the context of "
            f"{limits.max_model_len}; shorten the prompt or lower max_tokens",
            field="prompt" if prompt_len >= limits.max_model_len else "max_tokens",
        )
    if prompt_len > limits.capacity:
        room, path = (
            ("the KV pool holds", "kv_cache.blocks or kv_cache.memory_mib")
            if limits.use_cache
            else ("one step without a KV cache computes", "scheduler.token_budget")
        )
        raise CapacityError(
            f"{prompt_len} prompt tokens can never fit: {room} {limits.capacity}; shorten it or raise {path}",
            field="prompt",
        )


def check_request_id(request_id: str) -> None:
    """Check an id chosen by the user."""
    if type(request_id) is not str or not request_id or _surrogate(request_id) is not None:
        raise RequestError(f"request_id must be non-empty text, not {_show(request_id)}", field="request_id")


def check_tenant(tenant: str) -> None:
    """Check whose request it is said to be ("" where there is only one tenant)."""
    if type(tenant) is not str or len(tenant) > TENANT_CHARACTERS or _surrogate(tenant) is not None:
        raise RequestError(
            f"tenant is {_show(tenant)}: give valid Unicode of at most {TENANT_CHARACTERS} characters",
            field="tenant",
        )


def check_options(return_logits: bool, enqueued_ns: int, now_ns: int) -> None:
    """Check what a request is sent with. A stamp that is none, or lies ahead, would spoil every latency."""
    if type(return_logits) is not bool:
        raise RequestError(
            f"return_logits is {_show(return_logits)}: give True or False", field="return_logits"
        )
    if type(enqueued_ns) is not int or not 0 <= enqueued_ns <= now_ns:
        raise RequestError(
            f"enqueued_ns is {_show(enqueued_ns)}: give a stamp of time.perf_counter_ns() that has passed",
            field="enqueued_ns",
        )


def _temperature(value: Any) -> float:
    low, high = TEMPERATURE
    fix = f"give 0 for greedy, or {low:g} to {high:g}"
    return _number("temperature", value, lambda t: t == 0 or low <= t <= high, fix)


def _stop_strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong("stop", value, "give a tuple of strings")
    if len(value) > STOP_STRINGS_LIMIT:
        raise SamplingParamsError(
            f"stop has {len(value)} strings; give at most {STOP_STRINGS_LIMIT}", field="stop"
        )
    for text in value:
        if type(text) is not str or not text:
            raise _wrong("stop", text, "every stop string needs at least one character")
        if len(text) > STOP_STRING_CHARACTERS or _surrogate(text) is not None:
            raise _wrong("stop", text, f"give valid Unicode of at most {STOP_STRING_CHARACTERS} characters")
    return tuple(value)


def _stop_tokens(value: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > STOP_TOKENS_LIMIT:
        raise _wrong("stop_token_ids", value, f"give a tuple of at most {STOP_TOKENS_LIMIT} token ids")
    for token in value:
        _integer("stop_token_ids", token, 0, vocab_size - 1, f"ids go from 0 to {vocab_size - 1}")
    return tuple(value)


def _integer(field: str, value: Any, low: int, high: int, fix: str) -> None:
    if type(value) is not int or not low <= value <= high:
        raise _wrong(field, value, fix)


def _number(field: str, value: Any, allowed: Callable[[float], bool], fix: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(field, value, fix)
    try:
        number = float(value)
    except OverflowError:
        raise _wrong(field, value, fix) from None
    if not math.isfinite(number) or not allowed(number):
        raise _wrong(field, value, fix)
    return number


def _wrong(field: str, value: Any, fix: str) -> SamplingParamsError:
    return SamplingParamsError(f"{field} is {_show(value)}: {fix}", field=field)


def _show(value: Any) -> str:
    """The value for a message: short, printable everywhere, and whatever the value is."""
    try:
        return ascii(value)[:60]
    except Exception:  # a number of too many digits, or an object that cannot show itself
        return f"a {type(value).__name__} that cannot be shown"


def _surrogate(text: str) -> int | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
