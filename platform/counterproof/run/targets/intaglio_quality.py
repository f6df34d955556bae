"""Teacher forcing with the engine of this project: both arms read the same tokens, and their logits are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterproof.errors import ExecutionError, InputError, SetupError
from counterproof.run.targets.protocol import Tell
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig
from intaglio.errors import ConfigError, IntaglioError, ModelError, NumericsError
from intaglio.models import catalogue

HELD_OUT_TOKENS = 1024
HELD_OUT_WINDOW = 256


def measure(
    reference: EngineConfig,
    candidate: EngineConfig,
    requests: Sequence[SealedRequest],
    outputs: Sequence[Sequence[int]],
    tell: Tell,
) -> list[dict[str, Any]]:
    """What `QualityKind.quality` returns. Raises InputError, SetupError or ExecutionError."""
    from intaglio.quality.comparison import compare

    asked = [[*r.token_ids, *out] for r, out in zip(requests, outputs, strict=True)]
    try:
        held_out = _held_out(reference)
        skip = [*(len(request.token_ids) - 1 for request in requests), *(0 for _ in held_out)]
        found = compare(reference, candidate, [*asked, *held_out], skip=skip, tell=tell)
        facts = [
            {"scope": "all", **found.total.facts()},
            {"scope": "held_out", **found.over(range(len(asked), len(skip))).facts()},
        ]
        for request, quality in zip(requests, found.each, strict=False):
            facts.append({"scope": "request", "request_index": request.request_index, **quality.facts()})
    except ConfigError as error:
        raise InputError(f"engine.{error}") from error
    except (ModelError, NumericsError) as error:
        raise SetupError(str(error)) from error
    except IntaglioError as error:
        raise ExecutionError(str(error)) from error
    return facts


def _held_out(engine: EngineConfig) -> list[tuple[int, ...]]:
    """Windows of text that no workload uses, in the model's tokens."""
    from intaglio.intake.tokenizer import Tokenizer
    from intaglio.quality.text import held_out_text, windows

    folder = catalogue.resolve(engine.model)
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode(held_out_text(), add_bos=False)
    head = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    longest = int(
        catalogue.read_json(folder / catalogue.CONFIG).get("max_position_embeddings") or HELD_OUT_WINDOW
    )
    return windows(ids, min(HELD_OUT_WINDOW, longest), HELD_OUT_TOKENS, head)
