"""From what the user gave to what the scheduler takes: check, tokenise, fit, draw a seed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from intaglio.errors import RequestError
from intaglio.intake import validation
from intaglio.intake.request import Prompt, SamplingParams
from intaglio.intake.validation import RequestLimits


class Encoder(Protocol):
    """Text to token ids. add_bos: as in Tokenizer. unencodable: the characters that `encode` has to leave out."""

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]: ...

    def unencodable(self, text: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Admissible:
    """A checked request. tokenized: when tokenising began and ended (ns), None for a prompt of token ids.
    lost: the characters of the prompt that the vocabulary lacks."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    tokenized: tuple[int, int] | None
    lost: str = ""


def prepare(
    prompt: Prompt,
    params: SamplingParams | None,
    encoder: Encoder,
    limits: RequestLimits,
    before: tuple[int, ...] = (),
) -> Admissible:
    """Check everything that can be wrong with a request. Raises a RequestError naming the field and the fix.

    before: a context's tokens, which the prompt continues (so that it gets no BOS token of its own).
    """
    checked = validation.check_params(SamplingParams() if params is None else params, limits)
    ids, tokenized = _prompt_ids(prompt, encoder, limits, add_bos=False if before else None)
    ids = before + ids
    validation.check_fit(len(ids), checked.max_tokens, limits)
    # Drawn even for greedy requests, so that the output always names the seed it would repeat with.
    seed = secrets.randbits(63) if checked.seed is None else checked.seed
    lost = encoder.unencodable(prompt) if isinstance(prompt, str) else ""
    return Admissible(ids, checked, seed, tokenized, lost)


def _prompt_ids(
    prompt: Prompt, encoder: Encoder, limits: RequestLimits, *, add_bos: bool | None
) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    if not isinstance(prompt, str):
        return validation.check_prompt_ids(prompt, limits), None
    validation.check_text(prompt, limits)
    began = time.perf_counter_ns()
    ids = encoder.encode(prompt, add_bos=add_bos)
    ended = time.perf_counter_ns()
    return validation.check_prompt_ids(ids, limits), (began, ended)


def pair(
    prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[tuple[Prompt, SamplingParams | None]]:
    """One (prompt, params) per request. A string or a list of token ids is a single prompt.

    Raises RequestError when prompts or params are no sequences, or differ in number.
    """
    if not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts must be text, a list of token ids or a list of those, not {type(prompts).__name__}",
            field="prompt",
        )
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    each = cast(list[Prompt], [prompts] if single else list(prompts))
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params) for prompt in each]
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise RequestError(
            f"params must be SamplingParams or a list of them, not {type(params).__name__}", field="params"
        )
    if len(params) != len(each):
        raise RequestError(
            f"{len(each)} prompts come with {len(params)} params; give one each", field="params"
        )
    return list(zip(each, params))
