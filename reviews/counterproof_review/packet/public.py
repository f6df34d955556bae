"""The public part of a packet, document by document, each by allow-list from the plan.

Nothing here reads a result except the one scalar of the noise: two studies that differ only in their results
have the same public part but for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from counterproof.workload.sealed import SealedRequest
from counterproof_review.challenge import declared
from counterproof_review.packet import code_lock, layout, models, surroundings
from counterproof_review.packet.documents import SCHEMAS
from counterproof_review.packet.models import ModelLock

_HOW = (
    "every block runs every arm once; within a block arms stand in the order of "
    "SHA-256(seed, block as 4 bytes big-endian, opaque name), seed = SHA-256(root, nonce of whoever replays)"
)
_LEVEL_NOTE = (
    "L0, open: the author's results stand unsealed under results/. Whoever reads them before measuring is not "
    "blind. The replay tool lets no run see them and shows them after its own estimates are frozen. Arm files show what they configure."
)
_SEALED_NOTE = (
    "L3, sealed: numbers, direction, mechanism, arm map and the known delay are encrypted under sealed/ "
    "until estimates are frozen; two arms test the machine itself. Arm files show what they configure, so execution is not "
    "blind, analysis is; reading one through the tool is recorded and lowers the level."
)
_EXCLUSIONS = "none: every block counts, a failed run is repeated as a whole and reported"
# Sentences that stand in every packet: their words tell nothing, even where a user or host is called so.
SENTENCES = (_HOW, _LEVEL_NOTE, _SEALED_NOTE, _EXCLUSIONS)
_PRIMARY = ("metric", "statistic", "sesoi")
_GUARDRAIL = ("metric", "statistic", "kind", "margin")
# What the client does, as far as it is the same in every arm; names of files stay with the author.
_CLIENT = {"concurrency": 1, "request_timeout_s": 300.0}


def packet(
    packet_id: str,
    plan_sha256: str,
    arms: int,
    inputs: Sequence[int],
    warmup: int,
    form: str = layout.OPEN,
    supersedes: str | None = None,
) -> dict[str, Any]:
    """PACKET.json. `inputs`: requests per block; `supersedes`: the packet that this one answers a question about."""
    return _document(
        layout.PACKET,
        packet_id=packet_id,
        claim_id=plan_sha256,
        supersedes=supersedes,
        blinding_level=layout.LEVELS[form],
        blinding_note=_LEVEL_NOTE if form == layout.OPEN else _SEALED_NOTE,
        critical=[form],
        limits=dict(layout.LIMITS),
        arms=arms,
        blocks=len(inputs),
        requests=list(inputs),
        warmup_requests=warmup,
    )


def prereg(plan: Mapping[str, Any], plan_sha256: str, unit: str, blocks: int) -> dict[str, Any]:
    """protocol/prereg.json: how the answer is judged, without the direction that is hoped for.

    blocks  those of the study with the reserve blocks it called up, which tells the noise of its baseline only
    """
    return _document(
        layout.PREREG,
        plan_sha256=plan_sha256,
        unit="block",
        blocks=blocks,
        min_blocks=layout.MIN_BLOCKS,
        primary={**_only(plan["primary"], _PRIMARY), "unit": unit},
        guardrails=[_only(rail, _GUARDRAIL) for rail in plan["guardrails"]],
        consistency_band=layout.CONSISTENCY_BAND,
        exclusions=_EXCLUSIONS,
        decision_rule=str(plan["rule"]),
        exploratory=bool(plan["exploratory"]),
    )


def scope(
    plan: Mapping[str, Any],
    engine: Mapping[str, Any],
    lock: ModelLock,
    inputs: Sequence[Sequence[SealedRequest]],
) -> dict[str, Any]:
    """protocol/scope.json: the box in which the claim is made. `engine`: any arm's configuration."""
    prompts = [len(request.token_ids) for block in inputs for request in block]
    outputs = [request.max_new_tokens for block in inputs for request in block]
    return _document(
        layout.SCOPE,
        model=lock.reference,
        device=engine["device"],
        dtype=engine["dtype"],
        hardware=surroundings.hardware_class(plan.get("environment") or {}),
        prompt_tokens=[min(prompts), max(prompts)],
        output_tokens=[min(outputs), max(outputs)],
        concurrency=int(plan["workload"].get("concurrency", 1)),
    )


def challenge_space(scope_document: Mapping[str, Any]) -> dict[str, Any]:
    """protocol/challenge_space.json: where counterexamples may be searched; the seed comes from the reviewer."""
    return _document(layout.CHALLENGE, **declared.challenge_space(scope_document))


def schedule(blocks: int) -> dict[str, Any]:
    """replay/schedule.json: a rule, not an order, so that the author cannot choose the order of a replay."""
    return _document(layout.SCHEDULE, blocks=blocks, rule=layout.ORDER_RULE, how=_HOW)


def run_lock(plan: Mapping[str, Any]) -> dict[str, Any]:
    """replay/run.lock.json: which executor, which kind of target, which client. Names and numbers only."""
    return _document(
        layout.RUN_LOCK,
        executor=layout.EXECUTOR,
        target=str(plan.get("target", "intaglio_local")),
        workload={**_CLIENT, **_only(plan["workload"], tuple(_CLIENT))},
        run_deadline_s=plan.get("run_deadline_s", 900.0),
    )


def libraries(plan: Mapping[str, Any]) -> dict[str, Any]:
    """replay/env/env.lock.json."""
    identity = plan.get("environment") or {}
    return _document(
        layout.ENVIRONMENT_LOCK,
        python=str(identity.get("python.version", "not recorded")),
        packages=surroundings.libraries(identity),
    )


def code(plan: Mapping[str, Any]) -> dict[str, Any]:
    """replay/code/code.lock.json."""
    return _document(layout.CODE_LOCK, **code_lock.lock(plan))


def models_lock(locks: Sequence[ModelLock]) -> dict[str, Any]:
    """replay/models/models.lock.json."""
    return models.to_document(locks)


def noise(plan: Mapping[str, Any], log_ratios: Sequence[float | None]) -> dict[str, Any]:
    """noise/noise.json: the standard deviation of equal runs and how many, no level that would name an arm."""
    present = [value for value in log_ratios if value is not None]
    mean = math.fsum(present) / len(present) if present else 0.0
    squares = math.fsum((value - mean) ** 2 for value in present)
    return _document(
        layout.NOISE,
        metric=plan["primary"]["metric"],
        statistic=plan["primary"]["statistic"],
        sd_log_ratio=math.sqrt(squares / (len(present) - 1)) if len(present) > 1 else None,
        n=len(present),
    )


def environment(plan: Mapping[str, Any], kernel_paths: Sequence[str]) -> dict[str, Any]:
    """provenance/environment.json. `kernel_paths`: of all arms together, so that none is told from another."""
    identity = surroundings.public_environment(plan.get("environment") or {})
    return _document(layout.ENVIRONMENT, id=identity | surroundings.kernels(kernel_paths))


def lineage(plan_sha256: str) -> dict[str, Any]:
    """provenance/lineage.json."""
    return _document(
        layout.LINEAGE, plan_sha256=plan_sha256, built_by={"tool": "counterproof packet build", "format": 1}
    )


def _document(path: str, **fields: Any) -> dict[str, Any]:
    return {"schema": SCHEMAS[path], **fields}


def _only(source: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: source[name] for name in names if name in source}
