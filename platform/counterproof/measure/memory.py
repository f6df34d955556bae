"""KV memory: what the tokens held must cost, against what the engine's gauge says, and the curve over time.

Prediction: at each gauge row every request in flight holds the KV of its prompt and of every output token but the
newest (whose KV is written by the next step), rounded up to whole blocks, at `bytes per token` = 2 x layers x
KV heads x head size x bytes of the format, as the engine's effective configuration states it. Documents that a
context cache keeps are there once, whether or not a request reads them, and not in the requests that do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterproof.measure.load import RunData

POINTS = 400


def predicted_kv_peak(run: RunData) -> tuple[int | None, str]:
    """Predicted peak of KV bytes of one run, or None with the reason."""
    per_token = run.effective.get("kv_cache.bytes_per_token")
    block = run.effective.get("kv_cache.block_tokens")
    if not run.effective.get("kv_cache.enabled"):
        return 0, "no KV cache"
    if not isinstance(per_token, int) or not isinstance(block, int) or block < 1:
        return None, "the engine does not report bytes per token and block size"
    ok = run.requests[run.requests["status"] == "ok"]
    if ok.empty or run.tokens.empty:
        return None, "no request succeeded"
    times = np.unique(run.tokens["time_ns"].dropna().to_numpy(dtype=np.int64))
    kept = sum(event["kept_tokens"] for event in run.events if event.get("kind") == "contexts")
    held = np.full(times.size, kept, dtype=np.int64)
    stamps = {int(str(i)): part["time_ns"].to_numpy(dtype=np.int64) for i, part in _groups(run.tokens)}
    for row in ok.itertuples():
        emitted = stamps.get(int(str(row.request_index)))
        if emitted is None:
            return None, "a request has no token times"
        count = np.searchsorted(emitted, times, side="right")
        tokens = int(str(row.prompt_tokens)) + count - 1
        live = (count > 0) & (times <= int(str(row.done_ns)))
        shared = int(str(row.cached_tokens)) if kept else 0
        held += np.where(live, -(-tokens // block) * block - shared, 0)
    return int(held.max()) * per_token, ""


def _groups(frame: pd.DataFrame) -> Any:
    return frame.groupby("request_index", sort=False)


def timeline(run: RunData) -> dict[str, list[list[float]]]:
    """Curves of one run as [seconds since its first request, bytes], at most POINTS each (extremes are kept)."""
    begin = float(run.requests["scheduled_ns"].min())
    return {
        "rss_bytes": _curve(run.resources, "sampler", "rss_bytes", begin),
        "kv_bytes": _curve(run.resources, "engine", "kv_bytes_used", begin),
    }


def _curve(rows: pd.DataFrame, source: str, column: str, begin: float) -> list[list[float]]:
    kept = rows[(rows["source"] == source) & rows[column].notna()]
    if kept.empty or not np.isfinite(begin):
        return []
    seconds = (kept["time_ns"].to_numpy(dtype=np.float64) - begin) / 1e9
    values = kept[column].to_numpy(dtype=np.float64)
    if seconds.size > POINTS:
        chunks = np.array_split(np.arange(seconds.size), POINTS // 2)
        ends = [{int(c[np.argmin(values[c])]), int(c[np.argmax(values[c])])} for c in chunks]
        picked = sorted(set().union(*ends))
        seconds, values = seconds[picked], values[picked]
    return [[round(float(t), 4), float(v)] for t, v in zip(seconds, values, strict=True)]


def memory_facts(baseline: list[RunData], candidate: list[RunData], plan: dict[str, Any]) -> dict[str, Any]:
    """The `memory` part of the comparison: predictions, registered bytes, measured peaks and timelines."""
    facts: dict[str, Any] = {"registered_bytes": registered_kv_bytes(plan), "arms": {}, "timeline": {}}
    for arm, runs in (("baseline", baseline), ("candidate", candidate)):
        if not runs:
            continue
        predicted = [predicted_kv_peak(run) for run in runs]
        facts["arms"][arm] = {
            "predicted_kv_bytes": [value for value, _ in predicted],
            "measured_kv_bytes": [_peak(run) for run in runs],
            "pool_kv_bytes": _pool(runs[0]),
            "reason": next((reason for value, reason in predicted if value is None), ""),
        }
        facts["timeline"][arm] = {"run": runs[0].name, **timeline(runs[0])}
    return facts


def registered_kv_bytes(plan: dict[str, Any]) -> int | None:
    """The price in KV bytes that the plan registered beforehand, if it did."""
    for guardrail in plan.get("guardrails", []):
        if guardrail.get("metric") == "kv_bytes_peak":
            value = (guardrail.get("registered") or {}).get("predicted_bytes")
            return int(value) if isinstance(value, int) else None
    return None


def _peak(run: RunData) -> int | None:
    rows = run.resources
    values = rows.loc[rows["source"] == "engine", "kv_bytes_used"].dropna()
    return None if values.empty else int(values.max())


def _pool(run: RunData) -> int | None:
    parts = [run.effective.get(f"kv_cache.{name}") for name in ("blocks", "block_tokens", "bytes_per_token")]
    if not all(isinstance(part, int) for part in parts):
        return None
    return int(parts[0]) * int(parts[1]) * int(parts[2])  # type: ignore[arg-type]
