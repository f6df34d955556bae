"""The equivalence phase of a change that is allowed to move outputs: how far does it move them?

Each arm runs the phase's requests in its own configuration, once alone and once together: how far its logits move
between the two is what the company of other requests does to it. The candidate's process then lets both
configurations read the same tokens, the baseline's own answers and held-out text, and records the distance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.measure.quality import EVENT
from counterproof.run import equivalence
from counterproof.run.targets.protocol import Logits, QualityKind, Target, TargetKind
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig


@dataclass(frozen=True)
class Phase:
    """The arm's running target, its results of all requests together, and the events to record."""

    target: Target
    ready_ns: int
    results: list[Logits]
    events: list[dict[str, Any]]


def run_phase(
    kind: TargetKind,
    engine: EngineConfig,
    reference: EngineConfig | None,
    requests: Sequence[SealedRequest],
    on_done: Callable[[int], None],
) -> Phase:
    """Run one arm's part. `reference`: the baseline's configuration in the candidate's process, else None.

    Raises what the target raises, and ExecutionError for a request that failed.
    """
    events: list[dict[str, Any]] = []
    if reference is not None:
        events = _distance(kind, reference, engine, requests)
    target = kind.start(engine)
    ready_ns = time.perf_counter_ns()
    alone, together = equivalence.fast_results(target, requests, on_done)
    # Both computations are the arm's own: there is no third order of additions to hold them against.
    events.append(equivalence.rounding_event(requests, alone, together, together))
    events += equivalence.digests(requests, together)
    return Phase(target, ready_ns, together, events)


def _distance(
    kind: TargetKind, reference: EngineConfig, candidate: EngineConfig, requests: Sequence[SealedRequest]
) -> list[dict[str, Any]]:
    """One event a scope: all positions, held-out text, every request; none where the target cannot tell."""
    if not isinstance(kind, QualityKind):
        return []
    base = kind.start(reference)
    answers = base.compute_logits(requests)
    base.close()
    equivalence.digests(requests, answers)  # refuses answers that failed
    facts = kind.quality(
        reference, candidate, requests, [answer.token_ids for answer in answers], lambda *_: None
    )
    return [{"time_ns": time.perf_counter_ns(), "kind": EVENT, **fact} for fact in facts]
