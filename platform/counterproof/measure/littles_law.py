"""Little's law as a check of the clock: L = lambda W, with L from the engine's own gauge.

The engine writes a gauge row when a step has been planned and when it falls idle, so a row holds until the next
one. W is the requests' time inside the engine, sent to done. Stamps or counts that do not belong together show as
a difference.
Source: Little 1961, "A proof for the queuing formula L = lambda W".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterproof.measure.load import RunData

TOLERANCE = 0.05


@dataclass(frozen=True)
class Balance:
    """L by gauge, lambda W by stamps, and |L - lambda W| / L; `reason` where they cannot be had.

    `sampling`: what the error may be by chance where the gauge was asked for now and then (a server's) instead of
    written at every change: three standard deviations of the time that each request seems to be there.
    """

    gauge: float | None
    stamps: float | None
    error: float | None
    reason: str = ""
    sampling: float = 0.0


def littles_law(run: RunData) -> Balance:
    """The balance over one run, from its first sent to its last done request."""
    requests, rows = run.requests, run.resources
    rows = rows[(rows["source"] == "engine") & rows["running"].notna()]
    inside = requests[requests["sent_ns"].notna() & requests["done_ns"].notna()]
    if inside.empty:
        return Balance(None, None, None, "no request has both a sent and a done time")
    if rows.empty:
        return Balance(None, None, None, "the engine recorded no gauges")
    begin, end = float(inside["sent_ns"].min()), float(inside["done_ns"].max())
    if end <= begin:
        return Balance(None, None, None, "the run has no duration")
    time = rows["time_ns"].to_numpy(dtype=np.float64)
    present = rows["running"].to_numpy(dtype=np.float64) + rows["waiting"].fillna(0).to_numpy(
        dtype=np.float64
    )
    edges = np.clip(np.concatenate([time, [end]]), begin, end)
    gauge = float((np.diff(edges) * present).sum()) / (end - begin)
    waits = (inside["done_ns"] - inside["sent_ns"]).to_numpy(dtype=np.float64)
    stamps = float(waits.sum()) / (end - begin)
    if gauge <= 0:
        return Balance(gauge, stamps, None, "the engine's gauge saw no request")
    chance = 0.0
    if run.remote and time.size > 1:
        # A stay of w seen every D seconds counts floor or ceil of w / D times D: its variance is at most D^2 / 4.
        every = float(np.median(np.diff(time)))
        chance = 1.5 * every * len(inside) ** 0.5 / (gauge * (end - begin))
    return Balance(gauge, stamps, abs(gauge - stamps) / gauge, sampling=chance)
