"""How a study ends: views, packet, the summary screen and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.commands import console, listing, plugins
from counterproof.decide.words import check_words
from counterproof.errors import EXIT_AGAINST, EXIT_EXECUTION, EXIT_INVALID, EXIT_OK
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_plan
from counterproof.run.judge import Judgement

REPLAY_BLOCKS = 1


@dataclass(frozen=True)
class PacketOutcome:
    """What `--packet` did: the packet's file (None if it could not be built), the exit code of the step that
    failed (0 if none did), and a remark. A replay whose own controls fail with so few blocks is no failure."""

    path: Path | None
    code: int
    note: str


def refresh_views(store: Store, paths: StudyPaths) -> None:
    """Bring DuckDB and MLflow up to date. A view that fails is told and journalled, and changes no evidence."""
    from counterproof.record import views  # slow to import

    for problem in views.refresh(store, paths):
        console.note(f"warning: {problem}")
    listing.keep(paths)


def make_packet(paths: StudyPaths) -> PacketOutcome:
    """Build, verify and replay a packet with the commands of the review package.

    The packet gets its default name, its id alone: a file called after its study would tell the experiment.
    """
    console.note("packet build ...")
    before = _packets(paths)
    code = plugins.call(["packet", "build", paths.name])
    made = sorted(_packets(paths) - before)
    if code != EXIT_OK or not made:
        code = code or EXIT_EXECUTION
        return PacketOutcome(None, code, f"not built (exit code {code})")
    packet = made[0]
    steps = (
        ("verified", ["packet", "verify", str(packet)]),
        ("replayed", ["packet", "replay", str(packet), "--blocks", str(REPLAY_BLOCKS)]),
    )
    for done, arguments in steps:
        console.note(f"packet {arguments[1]} ...")
        code = plugins.call(arguments)
        if code == EXIT_INVALID and done == "replayed":
            return PacketOutcome(
                packet, EXIT_OK, "built and verified; the replay's own controls did not hold"
            )
        if code != EXIT_OK:
            return PacketOutcome(packet, code, f"not {done} (exit code {code})")
    return PacketOutcome(packet, EXIT_OK, f"built, verified, and replayed with {REPLAY_BLOCKS} block")


def _packets(paths: StudyPaths) -> set[Path]:
    return set((paths.folder / "packets").glob("*.rep.zip"))


def exit_code(found: Judgement, *, gate: bool, packet: PacketOutcome | None = None) -> int:
    """0 for valid evidence; with `gate` by the decision: 0 only for PROMOTE, 1 for ROLLBACK, else 5."""
    if not found.comparison["valid"]:
        return EXIT_INVALID
    if gate and found.decision["decision"] != "PROMOTE":
        return EXIT_AGAINST if found.decision["decision"] == "ROLLBACK" else EXIT_INVALID
    return EXIT_OK if packet is None else packet.code


def summary(paths: StudyPaths, found: Judgement, packet: PacketOutcome | None) -> str:
    """The screen at the end: effect, noise, stage, memory, decision, and where everything is."""
    plan = verify_plan(paths)[0]
    comparison, decision = found.comparison, found.decision
    lines = [
        ("study", f"{paths.name} ({len(comparison['blocks'])} of {comparison['blocks_planned']} blocks)"),
        ("evidence", "valid" if comparison["valid"] else f"INVALID: {_invalid(comparison)}"),
        *_effect(plan, comparison, decision),
        ("stage", decision["answers"]["gain_from"]["text"]),
        ("memory", _memory(comparison)),
        ("decision", f"{decision['decision']}: {decision['because']}"),
        ("report", str(paths.folder / "report.html")),
    ]
    if packet is not None:
        lines.append(("packet", f"{packet.path or 'none'} ({packet.note})"))
    lines.append(("next", _next(paths, decision, packet)))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in lines)


def _effect(
    plan: dict[str, Any], comparison: Mapping[str, Any], decision: Mapping[str, Any]
) -> list[tuple[str, str]]:
    from counterproof.decide.words import detectable
    from counterproof.measure.compare import primary_key  # slow to import

    entry = comparison["metrics"].get(primary_key(plan))
    name = f"{plan['primary']['metric']} {plan['primary']['statistic']}"
    if entry is None:
        return [("effect", f"{name} was not compared")]
    floor = entry["noise_floor"]
    noise = "not measured" if floor is None else f"±{100 * floor:.1f} % (two runs of the very same baseline)"
    effect = entry["effects"].get("candidate")
    if effect is None:
        return [("noise floor", noise)]
    base, other = (_mean(entry["arms"][arm]["per_block"]) for arm in ("baseline", "candidate"))
    unit = entry["unit"]
    interval = "no interval"
    if effect["ci_low"] is not None:
        interval = (
            f"95 % interval {console.percent(effect['ci_low'])} to {console.percent(effect['ci_high'])}"
        )
    change = f"{console.percent(effect['ratio'])} ({interval})"
    text = f"{name}: {console.number(base, unit)} -> {console.number(other, unit)}, {change}"
    verdict = decision["primary"]["verdict"]
    reason = decision["primary"]["reason"]
    return [
        ("effect", text),
        ("noise floor", noise),
        ("detectable", f"{detectable(entry)} ({entry.get('mde_words') or 'without a reason'})"),
        ("verdict", f"{verdict}{f': {reason}' if reason else ''}"),
    ]


def _memory(comparison: Mapping[str, Any]) -> str:
    entry = comparison["metrics"].get("kv_bytes_peak")
    if entry is None or "candidate" not in entry["arms"]:
        return "no candidate"
    values = {
        arm: [v for v in entry["arms"][arm]["per_block"] if v is not None]
        for arm in ("baseline", "candidate")
    }
    registered = comparison["memory"].get("registered_bytes")
    peaks = [f"{max(v):,.0f} bytes" if v else "not measured" for v in values.values()]
    price = "" if registered is None else f" (registered beforehand: {registered:,} bytes)"
    return f"KV peak {peaks[0]} -> {peaks[1]}{price}"


def _next(paths: StudyPaths, decision: Mapping[str, Any], packet: PacketOutcome | None) -> str:
    if decision["decision"] == "CONTINUE":
        return f"counterproof resume {paths.name}"
    if packet is None:
        return f"counterproof packet build {paths.name}   (hand it to somebody who took no part)"
    return f"counterproof dashboard   (or: counterproof show {paths.name})"


def _invalid(comparison: Mapping[str, Any]) -> str:
    failed = [
        f"{check_words(c['check'])}: {c['detail']}" for c in comparison["validity"] if c["passed"] is False
    ]
    unknown = [
        f"{check_words(c['check'])}: {c['detail']}" for c in comparison["validity"] if c["passed"] is None
    ]
    return "; ".join(failed or unknown) or "no check passed"


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
