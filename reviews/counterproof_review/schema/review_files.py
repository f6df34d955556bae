"""Shapes of a review's files: signed envelopes, what is in them by kind, and the results that they name."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType

from counterproof.measure import bottleneck
from counterproof_review.packet import agreement, layout
from counterproof_review.packet.shape import HEX64, OPAQUE, Number, Shape, Table, Text
from counterproof_review.protocol import attempts, author_steps, events, machine, outcome
from counterproof_review.schema.kinds import Choice, Closed, Const, Either, Open, Several
from counterproof_review.schema.packet_files import BASE64, COMMITMENT, PACKET_ID, REAL
from counterproof_review.trust import dsse, keys, ledger, registry
from counterproof_review.verdict import rule

_COUNT = Number(0, float(1 << 53), whole=True)
_PLACE = Number(1, 9999, whole=True)
_LEVEL = Choice((machine.FULL_LEVEL, machine.UNBLINDED_LEVEL))
_PRIMARY = {"metric": str, "statistic": str, "sesoi": REAL}
_STARTS = {
    "head": HEX64,
    "count": _COUNT,
    "of_experiment": _COUNT,
    "vanished": _COUNT,
    "vanished_of_experiment": _COUNT,
}
_RUN = {
    "arm": OPAQUE,
    "block": _COUNT,
    "value": REAL,
    "samples": _COUNT,
    "failed_requests": _COUNT,
    "output_tokens": _COUNT,
    "step_ms": REAL,
    "effective_sha256": HEX64,
    "manifest_sha256": HEX64,
}
# In attempts since they are recorded: what bound a run (null where the machine's roofs were not measured), and where its
# outputs part from those of the other arms of its block.
_AGAINST = Table(Closed({"compared": _COUNT, "identical": _COUNT, "margin": REAL}))
_SINCE = {"bound_by": Choice(bottleneck.KINDS, null=True), "against": _AGAINST}
_ROUNDING = Table(
    Closed({"threshold": REAL, "invariant_sha256": Text(r"[0-9a-f]{64}", null=True), "reason": str})
)
_ESTIMATED = {**_SINCE, "kernel_path": (str, NoneType), "seconds": float}
_STATUS = Choice((attempts.COMPLETED, attempts.CRASHED))
_ATTEMPT = {
    "attempt": _PLACE,
    "status": _STATUS,
    "blocks": _COUNT,
    "failed_runs": _COUNT,
    "reason": str,
}
_INTERVAL = Either((Several((int, float), 2, 2), Const(None)))
_PAIR = {
    "numerator": OPAQUE,
    "denominator": OPAQUE,
    "n": _COUNT,
    "mean": REAL,
    "sd": REAL,
    "ratio": REAL,
    "ratio_ci": _INTERVAL,
}
# What is left of the claim's box without a counterexample; null where nothing is.
_SIDE = Several(_COUNT, 2, 2)
_LEFT = Either((Closed({"prompt_tokens": _SIDE, "output_tokens": _SIDE, "concurrency": _COUNT}), Const(None)))
_SEARCHED = {
    "cells_tried": _COUNT,
    "corners_not_tried": _COUNT,
    "says": str,
    "left_of_scope": [_LEFT],
    "report_sha256": HEX64,
}
_COUNTEREXAMPLES = Open({"searched": bool, "reason": str, "inside": _COUNT, "outside": _COUNT}, _SEARCHED)
# Blocks of a lossless change by what candidate and baseline gave.
_OUTPUTS = Closed({"identical": _COUNT, "near_ties": _COUNT, "wrong": _COUNT})
_GUESS = Open({"arm": OPAQUE, "confidence": Number(0.0, 1.0)}, {"right": bool})

# What an entry of each kind says in its `body`.
BODIES: Mapping[str, Shape] = {
    ledger.WITNESS: {"ledger": Choice(events.PARTIES), "seq": _COUNT, "sha256": HEX64},
    events.PREREG: {
        "plan_sha256": HEX64,
        "runs": _COUNT,
        "primary": _PRIMARY,
        "blocks": _PLACE,
        "consistency_band": Number(0.001, layout.CONSISTENCY_BAND),
        "starts": _STARTS,
    },
    events.COMMIT: {"nonce_sha256": HEX64, "kept_as": Text(r"[0-9a-f]{16}")},
    events.ISSUE: {
        "packet_id": PACKET_ID,
        "root": HEX64,
        "claim_id": HEX64,
        "commitment": COMMITMENT,
        "escrow": [HEX64],
        "challenge_sha256": HEX64,
        "supersedes": Text(r"[0-9a-f]{16}", null=True),
        "gate": Const(author_steps.REPLAYED),
        "deadline_days": Number(0.0, 1e5),
        "people": [HEX64],
        "starts": _STARTS,
    },
    events.ACCEPT: {
        "packet_id": PACKET_ID,
        "root": HEX64,
        "nonce": HEX64,
        "hardware": str,
        "independent": Const(True),
        "person": [HEX64],
    },
    events.START: {"attempt": _PLACE, "root": HEX64, "blocks": _PLACE},
    events.END: Open(
        {
            "attempt": _PLACE,
            "status": _STATUS,
            "reason": str,
            "runs": [Open({**_RUN, "outputs_sha256": HEX64}, _SINCE)],
            "failed_runs": _COUNT,
            "estimates_sha256": Text(r"[0-9a-f]{64}", null=True),
            "hardware": (str, NoneType),
            "network": (str, NoneType),
        },
        {"rounding": _ROUNDING},
    ),
    events.UNBLIND: {"arm": OPAQUE},
    events.QUESTION: {
        "packet_id": PACKET_ID,
        "text": str,
        "nonce_sha256": HEX64,
        "kept_as": Text(r"[0-9a-f]{16}"),
    },
    events.FREEZE: {
        "packet_id": PACKET_ID,
        "root": HEX64,
        "attempts": [_ATTEMPT],
        "pairs": [_PAIR],
        "exclusions": Several(str, 0, 0),
        "deviations": [str],
        "cause": (str, NoneType),
        "guess": _GUESS,
        "level": _LEVEL,
    },
    events.REVEAL: {"keys": Table(Closed({"key": HEX64, "salt": HEX64}))},
    events.LOST: {"reason": str},
    events.CHALLENGE: _COUNTEREXAMPLES,
    events.VERDICT: {"verdict": Choice(rule.VERDICTS), "sha256": HEX64},
}
ENVELOPE = Closed(
    {
        "payload": BASE64,
        "payloadType": Const(dsse.PAYLOAD_TYPE),
        "signatures": Several(Closed({"keyid": HEX64, "sig": BASE64}), 1, dsse.MAX_SIGNATURES),
    }
)
STATEMENT = Closed(
    {
        "_type": Const(dsse.STATEMENT_TYPE),
        "predicate": dict,
        "predicateType": str,
        "subject": [Closed({"name": str, "digest": Closed({"sha256": HEX64})})],
    }
)
_PUBLIC = {"keyid": HEX64, "name": str, "sign": HEX64, "seal": HEX64}
_REGISTERED = {**_PUBLIC, "role": Choice(registry.ROLES), "revoked_at": (int, NoneType)}
VERDICT = Open(
    {
        "schema": Const(outcome.SCHEMA),
        "verdict": Choice(rule.VERDICTS),
        "grows": bool,
        "reason": str,
        "claim_id": HEX64,
        "packet_id": PACKET_ID,
        "root": HEX64,
        "theta_author": REAL,
        "theta_replay": REAL,
        "bounds": Several(REAL, 2, 2),
        "author_bounds": Either((Several(REAL, 2, 2), Const(None))),
        "difference": Either((Several(REAL, 3, 3), Const(None))),
        "band": float,
        "sesoi": float,
        "stall_bound": REAL,
        "stall_sentence": str,
        "outputs": Either((_OUTPUTS, Const(None))),
        "outputs_sentence": str,
        "trace": [Several((str, bool), 2, 2)],
        "scope": dict,
        "replay_hardware": [str],
        "level": _LEVEL,
        "guess": Either((_GUESS, Const(None))),
        "questions": _COUNT,
        "packets": [PACKET_ID],
        "attempts": [_ATTEMPT],
        "deviations": [str],
        "counterexamples": Either((_COUNTEREXAMPLES, Const(None))),
        "starts": Either((_STARTS, Const(None))),
        "faults": [str],
    }
)
_FAILED = {"block": _COUNT, "arm": OPAQUE, "attempt": _PLACE, "reason": str}
_SAID = (
    agreement.CONSISTENT,
    agreement.NOT_CONSISTENT,
    agreement.INCONCLUSIVE,
    agreement.INVALID,
    agreement.BLIND,
)
REPLAY = Open(
    {
        "schema": Const("replication-replay/1"),
        "packet_id": PACKET_ID,
        "root": HEX64,
        "blocks": _PLACE,
        "metric": dict,
        "per_block": Table([REAL]),
        "pairs": [{**_PAIR, "log_ratios": [REAL]}],
        "failed_attempts": [_FAILED],
        "verdict": Choice(_SAID),
        "reason": str,
        "note": str,
        "nonce": HEX64,
        "network": {"in_process": str, "namespace": str, "probe": str},
        "estimates_sha256": HEX64,
    }
)
_CELL = {"cell": Table((str, int, float))}
# Of a cell that was measured afresh; `found_at` is where it was found, before it was shrunk.
_CONFIRMED = {
    "inside": bool,
    "needed": [str],
    "why": str,
    "gain": REAL,
    "wrong": _COUNT,
    "blocks": _COUNT,
    "p": REAL,
    "found_at": Table((str, int, float)),
    "left_of_scope": _LEFT,
    "untested": [str],
}

FILES: Mapping[str, tuple[str, Shape]] = {
    "envelope": ("registry.dsse.json, SIGNATURES/author.dsse.json, each line of ledgers/*.jsonl", ENVELOPE),
    "statement": ("the payload of every envelope", STATEMENT),
    "packet-signature": (
        "the predicate of SIGNATURES/author.dsse.json",
        Closed(
            {
                "packet_id": PACKET_ID,
                "author": HEX64,
                "sign": HEX64,
                "commitment": COMMITMENT,
                "escrow": [HEX64],
            }
        ),
    ),
    "registry": (
        "the predicate of registry.dsse.json",
        Closed(
            {
                "version": Number(1, 1e9, whole=True),
                "previous": Text(r"[0-9a-f]{64}", null=True),
                "entries": [Closed(_REGISTERED)],
            }
        ),
    ),
    "ledger-entry": (
        "the predicate of each line of ledgers/*.jsonl; its body follows ledger-<kind>",
        Closed(
            {
                "seq": _COUNT,
                "prev": HEX64,
                "kind": Choice(tuple(BODIES)),
                "role": Choice(registry.ROLES),
                "time_utc": str,
                "body": dict,
            }
        ),
    ),
    "verdict": ("verdict.json", VERDICT),
    "search-report": (
        "challenge.json",
        Open(
            {
                "cells_tried": _COUNT,
                "corners_not_tried": _COUNT,
                "says": str,
                "confirmed": [Open({**_CELL, "flip": bool}, _CONFIRMED)],
            }
        ),
    ),
    "attempt": (
        "attempts/<n>/estimates.json",
        Open(
            {"runs": [Open({**_RUN, "outputs_sha256": [(str, NoneType)]}, _ESTIMATED)], "failed": [_FAILED]},
            {"rounding": _ROUNDING},
        ),
    ),
    "replay": ("replay.json of `packet replay`", REPLAY),
    "public-key": ("what `keys show` prints", Closed(_PUBLIC)),
    "private-key": (
        "<name>.key.json in the key folder; never handed out",
        Closed({"schema": Const(keys.SCHEMA), "name": str, "created_utc": str, "sign": HEX64, "seal": HEX64}),
    ),
}


def shapes() -> dict[str, tuple[str, Shape]]:
    """Every schema of a review: name -> (what it describes, shape)."""
    bodies = {
        f"ledger-{kind}": (f"the body of a ledger entry of kind '{kind}'", shape)
        for kind, shape in BODIES.items()
    }
    return {**FILES, **bodies}
