"""Reviews as they lie in their folders: the ledgers, verified, and what a signed verdict says. Nothing is opened here.

registry.dsse.json, ledgers/{author,reviewer,steward}.jsonl and, after the reveal, verdict.json are all that is read.
Packets, attempts and keys are never touched, so that the server cannot hold what is sealed; verdict.json counts only
when a verdict that names its SHA-256 was signed after the seal was opened. Bodies of entries leave this module only
as the few words that a step shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError
from counterproof.record.store import Store
from counterproof_dashboard.findings import get, rows, text
from counterproof_dashboard.text import number
from counterproof_review.trust import ledger, registry
from counterproof_review.trust.ledger import WITNESS, Entry

PARTIES = ("author", "reviewer", "steward")
REGISTRY, VERDICT = "registry.dsse.json", "verdict.json"
FREEZE, REVEAL, LOST = "freeze", "reveal", "lost"
FOLDER_VARIABLE = "COUNTERPROOF_REVIEWS"
MOST_BYTES = 1 << 28
_MALFORMED = (CounterproofError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Step:
    """One signed entry. `sha256` of its envelope; `about`: a few words, never a measured value."""

    role: str
    seq: int
    kind: str
    signer: str
    time_utc: str
    sha256: str
    about: str = ""


@dataclass(frozen=True)
class Pair:
    """A frozen estimate of two arms under their opaque names: the ratio with its 95 % interval."""

    numerator: str
    denominator: str
    blocks: int | None
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Outcome:
    """A signed verdict. Gains as ratios, positive direction above 1; intervals are 90 %, `band` and `sesoi` fractions."""

    verdict: str
    reason: str
    author: float | None
    author_interval: tuple[float | None, float | None]
    replay: float | None
    replay_interval: tuple[float | None, float | None]
    difference: tuple[float | None, float | None, float | None]
    band: float | None
    sesoi: float | None
    stall: str
    outputs: str
    challenge: str
    level: str
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Review:
    """A review's public view. `problem`: why it is not believed; then nothing else is known."""

    name: str
    problem: str = ""
    steward: str = ""
    people: tuple[tuple[str, str, str], ...] = ()
    steps: tuple[Step, ...] = ()
    witnessed: int = 0
    opened: bool = False
    pairs: tuple[Pair, ...] = ()
    outcome: Outcome | None = None
    note: str = ""


def folder_of(store: Store) -> Path:
    """Where reviews lie: $COUNTERPROOF_REVIEWS, else `reviews` in the store."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else store.root / "reviews"


def review_names(folder: Path) -> list[str]:
    """Folders that have a registry or ledgers, in name order; `.` where `folder` is itself one review."""
    if (folder / REGISTRY).is_file():
        return ["."]
    try:
        found = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(
        e.name for e in found if (Path(e.path) / REGISTRY).is_file() or (Path(e.path) / "ledgers").is_dir()
    )


def fingerprint(root: Path) -> str:
    """A key that changes with any file that is read here."""
    paths = [root / REGISTRY, root / VERDICT, *(_ledger(root, role) for role in PARTIES)]
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}\n".encode())
        except OSError:
            digest.update(b"absent\n")
    return digest.hexdigest()


def read(root: Path) -> Review:
    """The public view of a review, or why it is not believed. Never raises for what is in the folder."""
    try:
        return _read(root)
    except _MALFORMED as error:
        return Review(root.name, problem=str(error) or type(error).__name__)


def _read(root: Path) -> Review:
    data = _bytes(root / REGISTRY)
    steward = str(json.loads(data)["signatures"][0]["keyid"])
    known = registry.read(data, steward)
    ledgers = {
        role: ledger.verify(_bytes(_ledger(root, role)), known) if _ledger(root, role).is_file() else []
        for role in PARTIES
    }
    for role in PARTIES:
        if any(entry.role != role for entry in ledgers[role]):
            raise ValueError(f"the ledger of the {role} holds an entry of another role")
        ledger.check_witnessed(ledgers[role], role, [ledgers[other] for other in PARTIES if other != role])
    ordered = _in_order(ledgers)
    opened = any(entry.kind in (REVEAL, LOST) for entry in ordered)
    outcome, note = _outcome(root, ordered) if opened else (None, "")
    return Review(
        root.name,
        steward=known.steward,
        people=tuple((entry.name, entry.role, entry.keyid) for entry in known.entries),
        steps=tuple(_step(entry) for entry in ordered if entry.kind != WITNESS),
        witnessed=sum(entry.kind == WITNESS for entry in ordered),
        opened=opened,
        pairs=_pairs(ordered),
        outcome=outcome,
        note=note,
    )


def _ledger(root: Path, role: str) -> Path:
    return root / "ledgers" / f"{role}.jsonl"


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} is too large to be read")
    return path.read_bytes()


def _in_order(ledgers: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """Causes before effects: an entry follows all that its ledger had witnessed. Raises ValueError for a circle."""
    done = dict.fromkeys(PARTIES, 0)
    seen = {role: dict.fromkeys(PARTIES, 0) for role in PARTIES}
    found: list[Entry] = []
    while any(done[role] < len(ledgers[role]) for role in PARTIES):
        for role in PARTIES:
            if done[role] == len(ledgers[role]):
                continue
            entry = ledgers[role][done[role]]
            needs = dict(seen[role])
            if entry.kind == WITNESS and entry.body.get("ledger") in needs:
                needs[str(entry.body["ledger"])] = int(entry.body["seq"]) + 1
            if all(done[other] >= count for other, count in needs.items()):
                found.append(entry)
                done[role] += 1
                seen[role] = needs
                break
        else:
            raise ValueError("a ledger witnessed entries that are not there")
    return found


def _step(entry: Entry) -> Step:
    return Step(
        entry.role,
        entry.seq,
        entry.kind,
        entry.signer,
        entry.time_utc,
        entry.sha256,
        _about(entry.kind, entry.body),
    )


def _about(kind: str, body: Mapping[str, Any]) -> str:
    """What a step may say: identities and counts, by a list of what is allowed."""
    allowed = {
        "issue": ("packet_id", "deadline_days"),
        "accept": ("root",),
        "start": ("attempt", "blocks"),
        "end": ("attempt", "status", "failed_runs"),
        "freeze": ("level",),
        "challenge": ("searched", "cells_tried", "inside", "outside"),
        "verdict": ("verdict",),
    }
    parts = [
        f"{name} {body[name]}" for name in allowed.get(kind, ()) if isinstance(body.get(name), str | int)
    ]
    return ", ".join(part if len(part) <= 40 else f"{part[:37]}…" for part in parts)


def _pairs(ordered: Sequence[Entry]) -> tuple[Pair, ...]:
    frozen = next((entry.body for entry in ordered if entry.kind == FREEZE), {})
    found = []
    for row in rows(frozen.get("pairs")):
        ends = row.get("ratio_ci")
        low, high = (
            (number(end) for end in ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
        )
        blocks = number(row.get("n"))
        found.append(
            Pair(
                text(row.get("numerator")),
                text(row.get("denominator")),
                None if blocks is None else int(blocks),
                number(row.get("ratio")),
                low,
                high,
            )
        )
    return tuple(found)


def _outcome(root: Path, ordered: Sequence[Entry]) -> tuple[Outcome | None, str]:
    """The verdict whose SHA-256 was signed, or why there is none to show."""
    signed = {text(entry.body.get("sha256")) for entry in ordered if entry.kind == "verdict"}
    path = root / VERDICT
    if not signed:
        return None, "The seal is open; no verdict was signed yet."
    if not path.is_file():
        return None, "A verdict was signed, but its file is not here."
    data = _bytes(path)
    if signed != {hashlib.sha256(data).hexdigest()}:
        return None, "verdict.json is not the one that was signed: it is not shown."
    found = json.loads(data)
    faults = found.get("faults")
    return (
        Outcome(
            verdict=text(found.get("verdict")),
            reason=text(found.get("reason")),
            author=number(found.get("theta_author")),
            author_interval=_ends(found.get("author_bounds")),
            replay=number(found.get("theta_replay")),
            replay_interval=_ends(found.get("bounds")),
            difference=_three(found.get("difference")),
            band=number(get(found, "band")),
            sesoi=number(get(found, "sesoi")),
            stall=text(found.get("stall_sentence")),
            outputs=text(found.get("outputs_sentence")),
            challenge=_challenge(found.get("counterexamples")),
            level=text(found.get("level")),
            faults=tuple(text(fault) for fault in faults) if isinstance(faults, list) else (),
        ),
        "",
    )


def _challenge(found: object) -> str:
    """What the verdict says of the search for counterexamples."""
    if not isinstance(found, dict):
        return "counterexamples: none were searched for"
    if found.get("searched") is not True:
        return f"counterexamples: none were searched for ({text(found.get('reason'))})"
    inside, outside = (f"{found.get(side)}" for side in ("inside", "outside"))
    words = f"counterexamples: {text(found.get('says'))}; inside the scope {inside}, outside {outside}"
    left = found.get("left_of_scope")
    boxes = [_box(one) for one in left] if isinstance(left, list) else []
    return f"{words}; left of the scope: {'; or '.join(boxes)}" if boxes else words


def _box(left: object) -> str:
    if not isinstance(left, dict):
        return "nothing"
    sides = ((name, value if isinstance(value, list) else [1, value]) for name, value in left.items())
    return ", ".join(f"{text(name)} {' to '.join(map(str, side))}" for name, side in sides)


def _ends(value: object) -> tuple[float | None, float | None]:
    if isinstance(value, list) and len(value) == 2:
        return number(value[0]), number(value[1])
    return None, None


def _three(value: object) -> tuple[float | None, float | None, float | None]:
    if isinstance(value, list) and len(value) == 3:
        return number(value[0]), number(value[1]), number(value[2])
    return None, None, None
