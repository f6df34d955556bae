"""What goes into a crate: the files of a packet, a review or a study, and what is said about them.

Everything is verified as its own reader verifies it before a word about it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.record import canonical
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_plan
from counterproof_review.packet import layout
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.protocol import bundle, folder, outcome
from counterproof_review.schema import packet_files
from counterproof_review.verdict import rule

PACKET, REVIEW, STUDY = "packet", "review", "study"
_MEDIA: Mapping[str, str] = {
    ".json": layout.JSON,
    ".jsonl": layout.JSONL,
    ".parquet": layout.PARQUET,
    ".yaml": "application/yaml",
    ".html": "text/html",
    ".md": "text/markdown",
    ".txt": "text/plain",
    ".zip": "application/zip",
}
_LEFT_OUT = ("packets", "review")  # with keys beside them, or with a crate of their own


@dataclass(frozen=True)
class Part:
    """One file: its content, media type, and the name of its schema, None for files that have none."""

    content: bytes | Path
    media_type: str
    schema: str | None = None


@dataclass(frozen=True)
class Source:
    """What a crate is about. `people`: (name, role, key id); `claim`: property -> value; `date`: None where none is known."""

    kind: str
    name: str
    description: str
    identifier: str
    parts: Mapping[str, Part]
    claim: Mapping[str, Any]
    verdict: str
    reason: str
    people: tuple[tuple[str, str, str], ...] = ()
    date: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> Source:
    """A packet file, the folder of a review, or the folder of a study.

    Raises InputError for anything else, and what verifying raises.
    """
    if path.is_file():
        return of_packet(path)
    if (path / folder.REGISTRY).is_file():
        return of_review(path)
    if (path / "plan.json").is_file():
        return of_study(path)
    raise InputError(f"{path} is no packet, no folder of a review and no folder of a study")


def of_packet(path: Path) -> Source:
    """Every member of a verified packet as a file of its own."""
    report = Verification()
    with Archive.open(path) as archive:
        verify(archive, report)
        parts = {
            name: Part(archive.read(name, layout.MAX_MEMBER_BYTES), _media(name), _packet_schema(name))
            for name in sorted(archive.members)
        }
    none = rule.no_review()
    return Source(
        PACKET,
        f"Replication packet {report.packet['packet_id']}",
        "A study of one change to an inference engine, as arms that can be run again.",
        f"sha256:{report.root}",
        parts,
        _claim(report),
        none.verdict,
        none.reason,
    )


def of_review(path: Path) -> Source:
    """Registry, ledgers, packets and results of a review that holds."""
    review = folder.read(path)
    state = review.state
    if state.issue is None:
        raise InputError("no packet was issued in this review yet, so there is nothing to describe")
    report = outcome.packet_of(review, state.issue.body["packet_id"])
    names = [one.relative_to(path).as_posix() for one in sorted(path.rglob("*")) if one.is_file()]
    parts = {
        name: Part(path / name, _media(name), _review_schema(name)) for name in names if bundle.allowed(name)
    }
    judged = bool(state.verdicts)
    found = outcome.compute(review) if judged else None
    none = rule.no_review()
    times = [entry.time_utc for entries in review.ledgers.values() for entry in entries]
    keep = ("theta_author", "theta_replay", "bounds", "level", "stall_bound")
    return Source(
        REVIEW,
        f"Review of replication packet {report.packet['packet_id']}",
        "A blind replication: who did what in signed ledgers, the packet, and the verdict that follows from them.",
        f"sha256:{report.root}",
        parts,
        _claim(report),
        found["verdict"] if found else none.verdict,
        found["reason"] if found else none.reason,
        tuple((entry.name, entry.role, entry.keyid) for entry in review.registry.entries),
        max(times)[:10],
        {name: found[name] for name in keep} if found else {},
    )


def of_study(path: Path) -> Source:
    """Every file of a study but packets, which have crates of their own, and their keys, which stay."""
    plan, digest, _ = verify_plan(StudyPaths(path))
    files = [one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink()]
    names = [one.relative_to(path).as_posix() for one in files]
    parts = {
        name: Part(path / name, _media(name))
        for name in names
        if name.split("/")[0] not in _LEFT_OUT and not Path(name).name.startswith(".")
    }
    decision = path / "decision.json"
    decided = canonical.read_json(decision) if decision.is_file() else {}
    none = rule.no_review()
    return Source(
        STUDY,
        f"Study {path.name}",
        str(plan.get("question") or f"What does {plan['factor']['path']} change?"),
        f"sha256:{digest}",
        parts,
        {"plan_sha256": digest, **_primary(plan["primary"])},
        none.verdict,
        none.reason,
        numbers={"decision": decided["decision"]} if isinstance(decided.get("decision"), str) else {},
    )


def _claim(report: Verification) -> dict[str, Any]:
    prereg, scope = report.documents[layout.PREREG], report.documents[layout.SCOPE]
    box = {f"scope {name}": value for name, value in scope.items() if name != "schema"}
    return {
        "plan_sha256": report.packet["claim_id"],
        **_primary(prereg["primary"]),
        "consistency_band": prereg["consistency_band"],
        "blocks": prereg["blocks"],
        **box,
    }


def _primary(primary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: primary[name] for name in ("metric", "statistic", "sesoi")}


def _media(name: str) -> str:
    return _MEDIA.get(Path(name).suffix, "application/octet-stream")


def _packet_schema(name: str) -> str | None:
    return "envelope" if name == layout.SIGNATURE else packet_files.name_of(name)


def _review_schema(name: str) -> str | None:
    if name == folder.REGISTRY or name.startswith("ledgers/"):
        return "envelope"
    return {folder.CHALLENGE: "search-report", folder.VERDICT: "verdict"}.get(name)
