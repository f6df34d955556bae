"""A request as the user states it, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from intaglio.errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop. temperature 0 is greedy.

    max_tokens          most output tokens (>= 1)
    temperature         >= 0; 0 is greedy (ties: the lowest token id)
    top_k               keep the k best tokens; 0 keeps all
    top_p               keep the smallest set of best tokens whose probability reaches p, in (0, 1]
    min_p               drop tokens below min_p times the best token's probability, in [0, 1)
    repetition_penalty  > 0; divides positive and multiplies negative logits of tokens already seen
                        (Keskar et al. 2019, CTRL), prompt included
    seed                same seed, same text; None draws one and reports it in the output
    stop                strings that end the text (not included in it)
    stop_token_ids      token ids that end the text, besides the model's own end tokens
    ignore_eos          do not stop at the model's own end tokens
    logprobs            None, or how many best tokens to report with each output token (0: only its own)
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None


Prompt = str | list[int] | tuple[int, ...]


@dataclass(slots=True)
class TokenEvent:
    """One committed token, or (token_id None) the terminal event of a request that ends without one.

    Every admitted request yields exactly one event whose finish_reason is set:
    "stop" (end token, stop token or stop string), "length", "abort" or "error".
    """

    request_id: str
    index: int
    token_id: int | None
    text: str
    time_ns: int
    logprob: float | None = None
    margin: float | None = None
    finish_reason: str | None = None
    error: RequestError | None = None
    top_logprobs: dict[int, float] | None = None


@dataclass(slots=True)
class RequestOutput:
    """The whole of one finished request. Times are time.perf_counter_ns stamps."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    seed: int | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logits: list[np.ndarray] | None = None
    enqueued_ns: int = 0
    token_times_ns: list[int] = field(default_factory=list)
    done_ns: int = 0
    tokens_computed: int = 0
    cached_tokens: int = 0
    error: RequestError | None = None
