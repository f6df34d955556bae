"""What must be true of every run's tokens, whatever was changed: counts and hashes agree, nothing follows an end
token, and no run found a cache that an earlier one had warmed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from counterproof.measure.check import Check
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.probes import CACHES, end_tokens

WARM_SHARE = 0.2
WARM_TOKENS = 64


def check_tokens(study: StudyData) -> Check:
    """No answer is longer than asked, its recorded tokens are those that were hashed, and nothing follows an end
    token unless the workload says to go on."""
    runs = [*_timed(study), *study.probes.values()]
    if not study.complete_blocks:
        return Check("token_invariants", None, "no block is complete")
    ends = end_tokens(study)
    stops = study.plan["workload"].get("ignore_eos") is False
    problems = [f"{run.name}: {fault}" for run in runs for fault in _faults(run, ends if stops else None)]
    facts = {"end_tokens": None if ends is None else sorted(ends), "ignore_eos": not stops}
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        return Check("token_invariants", False, f"{'; '.join(problems[:3])}{more}", facts)
    rest = "end tokens are ignored" if not stops else "nothing follows an end token"
    if stops and ends is None:
        rest = "which tokens end a text was not recorded"
    return Check("token_invariants", True, f"counts and hashes of {len(runs)} runs agree; {rest}", facts)


def check_cold_cache(study: StudyData) -> Check:
    """Where no cache of prompts is declared nothing may hit one, and where one is, two runs of the very same
    baseline hit alike: a cache that was warm from an earlier run would serve the later one better."""
    problems, seen = [], False
    for block in study.complete_blocks:
        for arm in study.arms:
            run = study.runs[(block, arm)]
            hit = _cached(run)
            seen |= hit is not None
            if hit and not any(run.effective.get(path) is True for path in CACHES):
                problems.append(f"{run.name}: {hit} prompt tokens came from a cache that nothing declares")
        if "again" in study.arms:
            problems += _unlike(study.runs[(block, "baseline")], study.runs[(block, "again")])
    if problems:
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        return Check("cold_cache", False, f"the cache was warm: {'; '.join(problems[:2])}{more}")
    if not study.complete_blocks:
        return Check("cold_cache", None, "no block is complete")
    if not seen:
        return Check("cold_cache", None, "the target does not tell what it cached", {"not_applicable": True})
    return Check("cold_cache", True, "every run began without the cache of another")


def _faults(run: RunData, ends: set[int] | None) -> Iterator[str]:
    ok = run.requests[run.requests["status"] == "ok"]
    long = ok[ok["output_tokens"] > ok["max_new_tokens"]]
    for index in long["request_index"]:
        yield f"request {index} has more tokens than were asked for"
    tokens = run.tokens
    if tokens.empty:
        return
    index, ids = tokens["request_index"].to_numpy(), tokens["token_id"].to_numpy()
    cuts = np.flatnonzero(np.diff(index)) + 1
    hashes = dict(zip(ok["request_index"].tolist(), ok["output_sha256"].tolist(), strict=True))
    for at, answer in zip([0, *cuts.tolist()], np.split(ids, cuts), strict=True):
        request = int(index[at])
        if request not in hashes:
            continue
        if hashlib.sha256(answer.astype("<i4").tobytes()).hexdigest() != hashes[request]:
            yield f"request {request}: the tokens recorded are not those that were hashed"
        if ends is not None and np.isin(answer[:-1], list(ends)).any():
            yield f"request {request} goes on after an end token"


def _cached(run: RunData) -> int | None:
    known = run.requests["cached_tokens"].dropna()
    return int(known.sum()) if len(known) else None


def _unlike(baseline: RunData, again: RunData) -> list[str]:
    left, right = _cached(baseline), _cached(again)
    if left is None or right is None or abs(left - right) <= max(WARM_TOKENS, WARM_SHARE * max(left, right)):
        return []
    return [f"{baseline.name} hit {left} tokens and {again.name}, the very same, {right}"]


def _timed(study: StudyData) -> list[RunData]:
    return [study.runs[(block, arm)] for block in study.complete_blocks for arm in study.arms]
