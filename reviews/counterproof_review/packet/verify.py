"""`packet verify`: is a packet whole, unchanged, safe to read and closed? Nothing is written, nothing runs.

Order matters: the container first, then the schema, then digests, and only then is content interpreted.
What stands here is what the tool can know alone. A packet that was forged as a whole, manifest included, has
another root; compare the printed root with the one its author gave you by another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from counterproof_review.packet import (
    arms,
    coherence,
    documents,
    inputs,
    layout,
    leaks,
    manifest,
    models,
    one_factor,
    results,
    signature,
)
from counterproof_review.packet.content import check_suffix, read_object
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.labels import OPAQUE
from counterproof_review.packet.manifest import Entry
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.signature import Signature
from counterproof_review.trust import seal
from counterproof_review.trust.errors import TrustError


@dataclass(frozen=True)
class Check:
    """One line of the table: what was checked, `passed`, `warning` or `failed`, and what was seen."""

    name: str
    status: str
    detail: str


@dataclass
class Verification:
    """What has been established about a packet so far; complete when `verify` returned."""

    checks: list[Check] = field(default_factory=list)
    root: str = ""
    packet: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, models.ModelLock] = field(default_factory=dict)
    form: str = layout.OPEN
    signature: Signature | None = None

    @property
    def sealed(self) -> bool:
        """Whether the author's results are encrypted."""
        return self.form == layout.SEALED_FORM

    def passed(self, name: str, detail: str) -> None:
        self.checks.append(Check(name, "passed", detail))

    def warn(self, name: str, detail: str) -> None:
        self.checks.append(Check(name, "warning", detail))


def verify(archive: Archive, report: Verification, *, root: str | None = None) -> None:
    """Run every check; each one's outcome is in `report` also when a later one raises PacketError.

    `root`: the digest that the author gave; another one is E_ROOT.
    """
    _run(report, "container", lambda: _container(archive))
    _run(report, "schema", lambda: _schema(archive, report))
    entries: dict[str, Entry] = {}
    _run(report, "closed world", lambda: _world(archive, report, entries, root))
    _run(report, "digests", lambda: _digests(archive, entries))
    _run(report, "documents", lambda: _documents(archive, report, entries))
    _run(report, "arms", lambda: _arms(archive, report, entries))
    _run(report, "inputs", lambda: _inputs(archive, report, entries))
    _run(report, "leaks", lambda: _leaks(report, entries))
    if report.sealed:
        _run(report, "seal", lambda: _seal(archive, report))
    else:
        _run(report, "author's results", lambda: _results(archive, report))


def _run(report: Verification, name: str, check: Callable[[], str]) -> None:
    try:
        report.passed(name, check())
    except PacketError as error:
        report.checks.append(Check(name, "failed", str(error)))
        raise


def _container(archive: Archive) -> str:
    for path in archive.members:
        check_suffix(path)
    size = sum(member.size for member in archive.members.values())
    return f"{len(archive.members)} files, {size} bytes, stored, in the fixed order and form"


def _schema(archive: Archive, report: Verification) -> str:
    document = read_object(archive, layout.PACKET)
    documents.check_packet_schema(document)
    report.packet, report.form = document, documents.form_of(document)
    return f"{document['schema']}, nothing critical that this reader does not know"


def _world(archive: Archive, report: Verification, entries: dict[str, Entry], expected: str | None) -> str:
    entries.update(manifest.read(archive, report.form))
    report.root = archive.sha256(layout.MANIFEST)
    if expected is not None and expected.lower() != report.root:
        raise PacketError("E_ROOT", f"is {report.root}, not the root you gave", path=layout.MANIFEST)
    return f"the manifest lists exactly what is there; root {report.root}"


def _digests(archive: Archive, entries: dict[str, Entry]) -> str:
    for entry in entries.values():
        manifest.check_member(archive, entry)
    return f"SHA-256 of {len(entries)} files as listed"


def _documents(archive: Archive, report: Verification, entries: dict[str, Entry]) -> str:
    for path in entries:
        if path not in documents.SCHEMAS:
            continue
        document = read_object(archive, path)
        if unknown := documents.check_fields(path, document):
            report.warn("documents", f"{path}: unknown fields kept and ignored: {', '.join(unknown)}")
        report.documents[path] = document
    packet = report.documents[layout.PACKET]
    plan = {report.documents[path]["plan_sha256"] for path in (layout.PREREG, layout.LINEAGE)}
    if plan != {packet["claim_id"]}:
        raise PacketError("E_STUDY", "its parts belong to different plans", path=layout.PACKET)
    blocks = {report.documents[path]["blocks"] for path in (layout.PREREG, layout.SCHEDULE)}
    if blocks != {packet["blocks"]}:
        raise PacketError("E_ROWS", "its parts declare different numbers of blocks", path=layout.PACKET)
    named = (report.documents[layout.RUN_LOCK]["executor"], report.documents[layout.SCHEDULE]["rule"])
    if named != (layout.EXECUTOR, layout.ORDER_RULE):
        raise PacketError("E_SCHEMA_NEWER", f"runs by {' and '.join(named)}", path=layout.RUN_LOCK)
    if packet["blinding_level"] != layout.LEVELS[report.form]:
        how = "are sealed" if report.sealed else "are open"
        raise PacketError(
            "E_SCHEMA",
            f"states the level {packet['blinding_level']} although its results {how}",
            path=layout.PACKET,
        )
    coherence.check_metric(report.documents)
    return f"{len(report.documents)} documents, canonical JSON, every required field"


def _arms(archive: Archive, report: Verification, entries: dict[str, Entry]) -> str:
    report.models = models.from_document(report.documents[layout.MODELS_LOCK])
    references = frozenset(report.models)
    written: dict[str, dict[str, Any]] = {}
    sizes: set[int] = set()
    for path, entry in entries.items():
        if entry.role == "arm":
            name = arms.opaque_of(path)
            document = read_object(archive, path)
            report.arms[name] = dict(arms.check(path, document, references))
            written[name] = document["engine"]
            sizes.add(entry.size)
    arms.check_equal_keys(written)
    coherence.check_models(report.arms, references)
    if len(report.arms) != report.packet["arms"]:
        raise PacketError("E_ARMS", f"{len(report.arms)} arms, declared {report.packet['arms']}")
    if len(report.arms) < layout.LEAST_ARMS[report.form]:
        raise PacketError(
            "E_ARMS", f"{len(report.arms)} arms; its level needs {layout.LEAST_ARMS[report.form]}"
        )
    if report.sealed and len(sizes) != 1:
        raise PacketError("E_LEAK", "the sizes of the arm files tell them apart", path=layout.ARMS)
    keys = len(next(iter(report.arms.values())))
    return f"{len(report.arms)} arms under opaque names, {keys} equal keys, models by digest"


def _inputs(archive: Archive, report: Verification, entries: dict[str, Entry]) -> str:
    blocks, counts = report.packet["blocks"], report.packet["requests"]
    wanted = {layout.input_path(block) for block in range(blocks)}
    present = {path for path, entry in entries.items() if entry.role == "input"} - {layout.WARMUP}
    if len(counts) != blocks or not all(type(count) is int and count > 0 for count in counts) or not blocks:
        raise PacketError("E_ROWS", "does not declare its requests block by block", path=layout.PACKET)
    if missing := sorted(wanted - present):
        raise PacketError("E_MISSING", "the requests of a block are absent", path=missing[0])
    if extra := sorted(present - wanted):
        raise PacketError("E_EXTRA", "belongs to no declared block", path=extra[0])
    expected = {layout.WARMUP: report.packet["warmup_requests"]}
    expected |= {layout.input_path(block): count for block, count in enumerate(counts)}
    extent = inputs.Extent()
    for path, count in expected.items():
        found = 0
        for request in inputs.read(archive, path):
            found += 1
            if path != layout.WARMUP:
                extent.add(request)
        if found != count:
            raise PacketError("E_ROWS", f"has {found} requests, declared {count}", path=path)
    coherence.check_scope(report.documents, report.arms, extent.spans())
    return f"{blocks} blocks, {sum(counts)} requests as token ids, as declared"


def _leaks(report: Verification, entries: dict[str, Entry]) -> str:
    known = leaks.vocabulary([*report.documents[layout.ENVIRONMENT_LOCK]["packages"]])
    lint = leaks.Lint(known=known)
    public = {path: value for path, value in report.documents.items() if leaks.is_public(path)}
    found = leaks.scan(lint, public)
    found += lint.names(path for path in entries if leaks.is_public(path))
    found += [leak for name, value in report.arms.items() for leak in lint.document(name, value)]
    if found:
        raise PacketError(
            "E_LEAK", f"the public part tells {found[0]}", details=[str(leak) for leak in found[1:]]
        )
    return "the public part names no arm, person, machine, place or time"


def _seal(archive: Archive, report: Verification) -> str:
    _check_opaque(report)
    data = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
    packet_id = report.packet["packet_id"]
    try:
        context = seal.context_of(data)
    except TrustError as error:
        raise PacketError("E_SCHEMA", str(error), path=layout.SEALED) from None
    if context != packet_id:
        raise PacketError("E_STUDY", f"was sealed for packet {context}", path=layout.SEALED)
    digests = {layout.PACKET: archive.sha256(layout.PACKET), layout.MANIFEST: report.root}
    report.signature = signature.check(archive, packet_id, digests, data)
    held = ", ".join(name[:16] for name in report.signature.escrow)
    return f"signed by {report.signature.author[:16]}, escrow for {held}; nothing was opened"


def _check_opaque(report: Verification) -> None:
    if not all(OPAQUE.fullmatch(name) for name in report.arms):
        raise PacketError("E_ARMS", "an arm has no opaque name")


def _results(archive: Archive, report: Verification) -> str:
    _check_opaque(report)
    document = report.documents[layout.RESULTS]
    found = results.check(archive, document, report.packet, set(report.arms))
    return f"{found}; {one_factor.check(report.arms, document)}"
