"""What was done for a load before it began: the upload of documents that its requests then name by id.

No request waits for it, so that no latency shows it. It is charged apart: as time of its own, in a throughput that
counts it, and in the counters of the run, which hold its work.
"""

from __future__ import annotations

from counterproof.measure.load import RunData, StudyData

SETUP = "setup"
METRICS = ("throughput_setup_tok_s", "setup_ms")


def setup_ms(run: RunData) -> float:
    """How long the set-up took; 0 where there was nothing to set up."""
    return float(sum(event["ms"] for event in run.events if event.get("kind") == SETUP))


def has_setup(study: StudyData) -> bool:
    """Whether any run of the complete blocks was set up."""
    return any(setup_ms(run) > 0 for arm in study.arms for run in study.of(arm))
