"""Was the client itself the bottleneck, and do the server's token counts agree with the harness's own?

Every timed run records an event `client`: how late requests left, what share of a core the client took, how long it
was away from its sockets. A load that the client could not offer is no load that the server was measured under.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from counterproof.measure.check import Check
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.percentile import PERCENTILES, floor_count, percentile

LATE_MS = 1.0
TTFT_SHARE = 0.05
CPU_SHARE = 0.8
COUNT_TOLERANCE = 0.02
_NOT_APPLICABLE = {"not_applicable": True}


def client_event(run: RunData) -> dict[str, Any] | None:
    """The run's `client` event, None in a record from before there was one."""
    return next((event for event in run.events if event.get("kind") == "client"), None)


def engine_holds_the_client(study: StudyData) -> bool:
    """Whether requests came at their own times to an engine in the client's process."""
    events = [client_event(run) for run in _all(study)]
    return bool(events) and all(e is not None and e["mode"] == "open" and not e["remote"] for e in events)


def check_client(study: StudyData) -> Check:
    """No run was bound by its client: requests left in time, and the client had time to spare."""
    problems, seen, worst_late, worst_cpu = [], 0, 0.0, 0.0
    for run in _all(study):
        event = client_event(run)
        if event is None or (not event["remote"] and event["mode"] == "closed"):
            continue
        seen += 1
        problems += [f"{run.name}: {fault}" for fault in _faults(run, event)]
        worst_late = max(worst_late, (_late(event)[1] or 0.0) / 1e3)
        worst_cpu = max(worst_cpu, event.get("cpu_share") or 0.0)
    facts = {"late_ms": worst_late, "cpu_share": worst_cpu}
    if problems:
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        return Check(
            "client", False, f"the client was the bottleneck: {'; '.join(problems[:2])}{more}", facts
        )
    if not study.complete_blocks:
        return Check("client", None, "no block is complete")
    if not seen:
        return Check("client", None, "a closed loop in the engine's own process", _NOT_APPLICABLE)
    return Check(
        "client",
        True,
        f"requests left at most {worst_late:.3f} ms late, the client took {100 * worst_cpu:.0f} % of a core",
        facts,
    )


def _faults(run: RunData, event: dict[str, Any]) -> Iterator[str]:
    ttft = percentile(run.latencies["ttft_ms"].to_numpy(), 0.5).value
    limit = max(LATE_MS, TTFT_SHARE * (ttft or 0.0))
    (name, late), lag, share = _late(event), event.get("lag_p99_us"), event.get("cpu_share")
    if late is not None and late / 1e3 > limit:
        yield f"requests left {late / 1e3:.2f} ms late at {name}, the limit is {limit:.2f} ms"
    if lag is not None and lag / 1e3 > limit:
        yield f"it was away from its sockets for {lag / 1e3:.2f} ms at p99, the limit is {limit:.2f} ms"
    if share is not None and share > CPU_SHARE:
        yield f"it took {100 * share:.0f} % of a core, the limit is {100 * CPU_SHARE:.0f} %"


def _late(event: dict[str, Any]) -> tuple[str, float | None]:
    """The highest percentile of the lateness that the number of requests resolves."""
    for name in ("p99", "p90"):
        if event["requests"] >= floor_count(PERCENTILES[name]):
            return name, event.get(f"late_{name}_us")
    return "p50", event.get("late_p50_us")


def check_token_counts(study: StudyData) -> Check:
    """A server's counts (usage) agree with the harness's own tokenizer within 2 %, and prompts arrived whole."""
    problems, worst = [], 0.0
    events = [(run, client_event(run)) for run in _all(study) if run.remote]
    if not events:
        detail = (
            "no block is complete"
            if not study.complete_blocks
            else "tokens were counted where they were made"
        )
        return Check("token_counts", None, detail, _NOT_APPLICABLE if study.complete_blocks else {})
    for run, event in events:
        if event is None:
            problems.append(f"{run.name}: no counts were recorded")
            continue
        stated, own = event["stated_tokens"], event["own_tokens"]
        unlike = abs(stated / own - 1) if own else float(stated != own)
        worst = max(worst, unlike)
        if event["unstated"]:
            problems.append(f"{run.name}: the server did not count {event['unstated']} answers")
        elif unlike > COUNT_TOLERANCE:
            problems.append(f"{run.name}: the server counts {stated} output tokens, the own tokenizer {own}")
        if event["prompts_unlike"]:
            problems.append(f"{run.name}: {event['prompts_unlike']} prompts had another length at the server")
    facts = {"largest_difference": worst, "tolerance": COUNT_TOLERANCE}
    if problems:
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        return Check("token_counts", False, f"{'; '.join(problems[:2])}{more}", facts)
    return Check("token_counts", True, f"largest difference {100 * worst:.2f} %", facts)


def _all(study: StudyData) -> list[RunData]:
    return [study.runs[(block, arm)] for block in study.complete_blocks for arm in study.arms]
