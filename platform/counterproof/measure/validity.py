"""Is the evidence fit to conclude from? Every check of the design, each with its verdict and the facts behind it.

A check is true (shown), false (refuted, or not shown when the study is over) or null (does not apply, or the study
has blocks left). A study with a false check is invalid, which is evidence for neither side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterproof.measure.check import Check
from counterproof.measure.client import check_client, check_token_counts, engine_holds_the_client
from counterproof.measure.divergence import Divergence
from counterproof.measure.equivalence import Equivalence
from counterproof.measure.flagcheck import Differences
from counterproof.measure.invariants import check_cold_cache, check_tokens
from counterproof.measure.latency import clock_faults, sample_of
from counterproof.measure.littles_law import TOLERANCE as LITTLE_TOLERANCE
from counterproof.measure.littles_law import littles_law
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.noise import Gate
from counterproof.measure.percentile import PERCENTILES, percentile
from counterproof.measure.slowed import recovered_delay

LENGTH_TOLERANCE = 0.02
CLIENT_QUEUE_SHARE = 0.05


def check_validity(
    study: StudyData,
    gate: Gate,
    equivalence: Equivalence,
    divergences: dict[str, Divergence],
    differences: Differences,
) -> list[Check]:
    """All checks over the complete blocks. `gate`: the A/A gate of the primary metric."""
    checks = [
        check_samples(study),
        check_clock(study),
        check_workload(study),
        check_differences(differences),
        check_flag(study, differences),
        Check("a_a", gate.passed, gate.detail, {"imprecise": gate.imprecise}),
        check_slowed(study),
        check_output_length(study),
        check_little(study),
        check_client_queue(study),
        check_client(study),
        check_token_counts(study),
        check_tokens(study),
        check_cold_cache(study),
        check_outputs(divergences),
        check_equivalence(study, equivalence),
    ]
    return [closed(study, check) for check in checks]


def closed(study: StudyData, check: Check) -> Check:
    """Once the study is over, what was not shown counts as refuted; what does not apply stays null."""
    if check.passed is None and study.final and not check.facts.get("not_applicable"):
        return Check(check.check, False, f"not shown: {check.detail}", check.facts)
    return check


def is_valid(checks: Sequence[Check]) -> bool:
    """Whether no check is refuted."""
    return bool(checks) and all(check.passed is not False for check in checks)


def check_samples(study: StudyData) -> Check:
    """Every planned run sealed, every request of it recorded, no successful request without its times."""
    problems: list[str] = []
    wanted = int(study.plan["workload"]["requests"])
    last = max((block for block, _ in study.runs), default=-1)
    for block in range(last):
        missing = [arm for arm in study.arms if (block, arm) not in study.runs]
        problems += [f"block {block}: no sealed run of {arm}" for arm in missing]
    for run in _all(study):
        indices = run.requests["request_index"].tolist()
        if sorted(indices) != list(range(wanted)):
            problems.append(f"{run.name}: {len(indices)} of {wanted} requests recorded")
        if not (run.requests["status"] == "ok").any():
            problems.append(f"{run.name}: no request succeeded")
    done = len(study.complete_blocks)
    facts = {"complete_blocks": done, "planned_blocks": study.planned_blocks, "requests_per_run": wanted}
    if problems:
        return Check("samples", False, _few(problems), facts)
    if done == 0:
        return Check("samples", None, "no block is complete", facts)
    return Check(
        "samples", True, f"{done} of {study.planned_blocks} blocks, {wanted} requests in every run", facts
    )


def check_clock(study: StudyData) -> Check:
    """Stamps in order, all there, and as many token stamps as tokens."""
    problems = [
        f"{run.name}: {fault}"
        for run in _all(study)
        for fault in clock_faults(run.requests, run.tokens, run.chunks)
    ]
    if problems:
        return Check("clock", False, _few(problems), {"faults": len(problems)})
    return Check("clock", True if study.complete_blocks else None, "all stamps are there and in order")


def check_workload(study: StudyData) -> Check:
    """All arms of a block got the same prompts, by hash."""
    problems = []
    for block in study.complete_blocks:
        base = study.runs[(block, "baseline")].requests["prompt_sha256"].tolist()
        for arm in study.arms[1:]:
            if study.runs[(block, arm)].requests["prompt_sha256"].tolist() != base:
                problems.append(f"block {block}: {arm} got other prompts")
    if problems:
        return Check("workload", False, _few(problems))
    return Check(
        "workload", True if study.complete_blocks else None, "every arm of a block got the same requests"
    )


def check_differences(differences: Differences) -> Check:
    """Effective configurations and environments differ in what the factor declared and in nothing else."""
    if differences.undeclared:
        return Check(
            "one_variable", False, _few(differences.undeclared), {"undeclared": differences.undeclared[:20]}
        )
    listed = ", ".join(differences.excepted) or "nothing"
    return Check("one_variable", True, f"only the factor differs; it declared to move: {listed}")


def check_flag(study: StudyData, differences: Differences) -> Check:
    """The candidate's flag changed the work, by effective configuration and counters."""
    if "candidate" not in study.arms:
        return Check("arms_differ", None, "a calibration study has no candidate", {"not_applicable": True})
    return Check("arms_differ", differences.flag_acted, differences.detail or "no block is complete")


def check_slowed(study: StudyData) -> Check:
    """The injected delay was seen, and as large as it was."""
    recovery = recovered_delay(study.of("baseline"), study.of("slowed"), study.plan.get("slowed_delay_us"))
    return Check("slowed_recovered", recovery.passed, recovery.detail, recovery.facts())


def check_output_length(study: StudyData) -> Check:
    """Total output tokens of every arm within 2 % of the baseline's, block by block."""
    worst, where = 0.0, ""
    for block in study.complete_blocks:
        base = float(study.runs[(block, "baseline")].requests["output_tokens"].fillna(0).sum())
        for arm in study.arms[1:]:
            other = float(study.runs[(block, arm)].requests["output_tokens"].fillna(0).sum())
            ratio = abs(other / base - 1) if base > 0 else float(other > 0)
            if ratio > worst or not where:
                worst, where = ratio, f"{arm} in block {block}: {other:.0f} tokens, baseline {base:.0f}"
    if not where:
        return Check("output_length", None, "no block is complete")
    facts = {"largest_difference": worst, "tolerance": LENGTH_TOLERANCE}
    return Check(
        "output_length", worst <= LENGTH_TOLERANCE, f"largest difference {100 * worst:.2f} % ({where})", facts
    )


def check_little(study: StudyData) -> Check:
    """L of the engine's gauge equals lambda W of the stamps within 5 % in every run."""
    worst, where = -1.0, ""
    for run in _all(study):
        if run.remote and run.arm == "slowed":
            continue  # a foreign server's delay is injected at the client, where no gauge of the server's sees it
        balance = littles_law(run)
        if balance.error is None:
            silent = {"not_applicable": True} if run.remote else {}
            return Check("littles_law", None, f"{run.name}: {balance.reason}", silent)
        if balance.error - balance.sampling > worst:
            worst = balance.error - balance.sampling
            where = f"{run.name}: L {balance.gauge:.3f} by gauge, {balance.stamps:.3f} by stamps"
    if not where:
        return Check("littles_law", None, "no block is complete")
    facts = {"largest_error": worst, "tolerance": LITTLE_TOLERANCE}
    return Check(
        "littles_law", worst <= LITTLE_TOLERANCE, f"largest error {100 * worst:.2f} % ({where})", facts
    )


def check_client_queue(study: StudyData) -> Check:
    """The client's own wait stays under 5 % of the TTFT p50: the highest percentile that the arm's requests of all
    blocks together allow. (Latencies count from the scheduled moment, so a wait is never hidden by this.)"""
    if engine_holds_the_client(study):
        detail = (
            "the engine takes requests between its steps, in the client's process; see the check 'client'"
        )
        return Check("client_queue", None, detail, {"not_applicable": True})
    worst, where = -1.0, ""
    for arm in study.arms if study.complete_blocks else ():
        runs = study.of(arm)
        queue = np.concatenate([sample_of(run.latencies, "client_queue_ms") for run in runs])
        ttft = percentile(np.concatenate([sample_of(run.latencies, "ttft_ms") for run in runs]), 0.5).value
        found = {name: percentile(queue, p).value for name, p in PERCENTILES.items()}
        highest = max(
            (name for name, value in found.items() if value is not None),
            key=lambda name: PERCENTILES[name],
            default="",
        )
        high = found.get(highest)
        if high is None or ttft is None:
            return Check("client_queue", None, f"{arm}: no client queue or no TTFT p50 to compare with")
        share = high / ttft if ttft > 0 else float("inf")
        if share > worst:
            worst, where = share, f"{arm}: {highest} {high:.3f} ms, TTFT p50 {ttft:.1f} ms"
    if not where:
        return Check("client_queue", None, "no block is complete")
    facts = {"largest_share": worst, "limit": CLIENT_QUEUE_SHARE}
    return Check(
        "client_queue",
        worst < CLIENT_QUEUE_SHARE,
        f"{100 * worst:.2f} % of TTFT p50, limit {100 * CLIENT_QUEUE_SHARE:g} % ({where})",
        facts,
    )


def check_outputs(divergences: dict[str, Divergence]) -> Check:
    """Outputs were compared token by token, and the controls, which change nothing, produced the same."""
    compared = {arm: d.compared for arm, d in divergences.items()}
    if not compared or min(compared.values()) == 0:
        return Check("outputs", None, "no outputs of every arm to compare", {"compared": compared})
    controls = {arm: d.wrong for arm, d in divergences.items() if arm != "candidate" and d.wrong}
    if controls:
        listed = ", ".join(f"{arm} {n}" for arm, n in controls.items())
        return Check(
            "outputs",
            False,
            f"controls differ from the baseline beyond near ties: {listed}",
            {"compared": compared},
        )
    total = sum(compared.values())
    return Check("outputs", True, f"{total} outputs compared token by token", {"compared": compared})


def check_equivalence(study: StudyData, equivalence: Equivalence) -> Check:
    """A change that should be lossless was checked bitwise in invariant mode; whether it held is a guardrail."""
    if not (study.plan.get("factor") or {}).get("lossless") or "candidate" not in study.arms:
        return Check("equivalence", None, "the change is not declared lossless", {"not_applicable": True})
    if equivalence.equal is None:
        return Check("equivalence", None, equivalence.reason)
    verdict = "bitwise equal" if equivalence.equal else f"NOT equal: {equivalence.reason}"
    return Check(
        "equivalence", True, f"{equivalence.requests} requests compared in invariant mode: {verdict}"
    )


def _all(study: StudyData) -> list[RunData]:
    return [study.runs[(block, arm)] for block in study.complete_blocks for arm in study.arms]


def _few(problems: list[str], limit: int = 3) -> str:
    more = f" (and {len(problems) - limit} more)" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more
