"""The engine's own explanation of why one sealed request does not hit what another left in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intaglio.errors import IntaglioError
from intaglio.intake.explain_miss import Asked, Decoder, explain
from intaglio.intake.tokenizer import Tokenizer
from intaglio.models import catalogue
from intaglio.state.block_key import CacheIdentity


class IdPieces:
    """Token ids as text, for prompts whose tokenizer is not at hand."""

    def push_all(self, token_ids: Iterable[int]) -> str:
        return "".join(f"[{token}]" for token in token_ids)

    def finish(self) -> str:
        return ""


class IdDecoder:
    """Shows every token as its id and knows none as special."""

    def stream(self, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> IdPieces:
        del prompt_ids, skip_special  # an id looks the same wherever it stands
        return IdPieces()

    def is_special(self, token_id: int) -> bool:
        del token_id
        return False


def decoder_for(model: str, tokenizer_sha256: str) -> tuple[Decoder, str]:
    """The tokenizer that encoded a study's prompts, or ids and the reason why not.

    model              as the plan names it; nothing is fetched
    tokenizer_sha256   as the record's environment holds it: no other tokenizer speaks for it
    """
    if not model or not tokenizer_sha256:
        return IdDecoder(), "the record does not name the model's tokenizer"
    try:
        folder = catalogue.resolve(model, download=False)
        if catalogue.fingerprint(folder)["tokenizer"] != tokenizer_sha256:
            return IdDecoder(), f"the tokenizer of {model} on this machine is not the one of the record"
        return Tokenizer(folder), ""
    except (IntaglioError, OSError) as error:
        return IdDecoder(), f"the model {model} is not on this machine: {error}"


def explain_pair(
    first: Sequence[int], second: Sequence[int], effective: Mapping[str, Any], decoder: Decoder
) -> dict[str, Any]:
    """Why `second`, asked after `first` by the same tenant and engine, does not hit more of its blocks.

    effective   the engine's effective configuration as a run recorded it; of it kv_cache.block_tokens decides

    The result is `intaglio.intake.explain_miss.Explanation` as plain values. Raises ValueError without a block size.
    """
    size = effective.get("kv_cache.block_tokens")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError("the effective configuration has no kv_cache.block_tokens")
    identity = CacheIdentity(
        model=str(effective.get("model", "")),
        rope="",
        dtype=str(effective.get("dtype", "")),
        weights_format=str(effective.get("weights.format", "")),
        kv_format=str(effective.get("kv_cache.format", "")),
        numerics=str(effective.get("numerics.mode", "")),
        parallel="",
        block_tokens=size,
    )
    caches = effective.get("prefix_cache.enabled") is not False
    asked = [Asked(tuple(ids), identity, decoder, caches=caches) for ids in (first, second)]
    return explain(*asked).to_dict()
