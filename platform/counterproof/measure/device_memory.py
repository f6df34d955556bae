"""Memory of a device by three measures, in studies that ran on one: none of them can stand for another.

What torch handed out, what its allocator holds, and what is in use on the device altogether, contexts and other
processes included. The resident set of the process is measured everywhere.
"""

from __future__ import annotations

from counterproof.measure.load import StudyData

METRICS = ("peak_gpu_allocated_bytes", "peak_gpu_reserved_bytes", "peak_gpu_used_bytes")


def on_device(study: StudyData) -> bool:
    """Whether any run of the complete blocks computed on a device."""
    return any(run.effective.get("device") == "cuda" for arm in study.arms for run in study.of(arm))
