"""Latencies of requests, from the scheduled moment, in milliseconds.

TTFT and end-to-end run from `scheduled`, so that a client that sends late cannot hide the wait (coordinated
omission; MLPerf LoadGen's rule). TPOT = (last token - first token) / (N - 1) and does not exist for N < 2. ITL is
the gap between two tokens of one request and comes from the engine's own stamps. A failed request is +inf; a time
that should be there and is not is NaN.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

NS_PER_MS = 1e6
COLUMNS = ("e2e_ms", "ttft_ms", "tpot_ms", "service_ms", "client_queue_ms")

Floats = NDArray[np.float64]


def request_latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """One row per request: request_index, ok, output_tokens and COLUMNS (tpot_ms NaN for N < 2)."""
    ok = (requests["status"] == "ok").to_numpy(dtype=bool)
    n = requests["output_tokens"].fillna(0).to_numpy(dtype=np.float64)
    scheduled, sent = _ns(requests, "scheduled_ns"), _ns(requests, "sent_ns")
    first, last, done = (_ns(requests, c) for c in ("first_token_ns", "last_token_ns", "done_ns"))
    gaps = np.where(n >= 2, n - 1, np.nan)
    values: dict[str, Any] = {
        "request_index": requests["request_index"].to_numpy(),
        "ok": ok,
        "output_tokens": n,
        "e2e_ms": _or_failed(done - scheduled, ok),
        "ttft_ms": _or_failed(first - scheduled, ok),
        "tpot_ms": _or_failed((last - first) / gaps, ok),
        "service_ms": _or_failed(done - sent, ok),
        "client_queue_ms": (sent - scheduled) / NS_PER_MS,
    }
    return pd.DataFrame(values)


def chunked(latencies: pd.DataFrame, chunks: pd.DataFrame) -> pd.DataFrame:
    """The latencies of a server's answers: TPOT only where every chunk was one token.

    A server may put several tokens into a chunk; then neither the first token nor the last has a stamp of its own,
    and what could be computed would be no time per output token. Such a request has NaN: it was not measured.
    """
    held = chunks.groupby("request_index").size().reindex(latencies["request_index"]).fillna(0).to_numpy()
    unlike = latencies["ok"].to_numpy() & (held != latencies["output_tokens"].to_numpy())
    found = latencies.copy()
    found.loc[unlike, "tpot_ms"] = np.nan
    return found


def samples(requests: pd.DataFrame, metric: str) -> Floats:
    """The sample of one of COLUMNS: +inf for failures, NaN for a missing time; N < 2 leaves TPOT's sample."""
    return sample_of(request_latencies(requests), metric)


def sample_of(latencies: pd.DataFrame, metric: str) -> Floats:
    """`samples`, from the frame that `request_latencies` made."""
    frame = latencies
    if metric == "tpot_ms":
        frame = frame[~frame["ok"] | (frame["output_tokens"] >= 2)]
    return np.asarray(frame[metric], dtype=np.float64)


def token_gaps(requests: pd.DataFrame, tokens: pd.DataFrame) -> Floats:
    """ITL in ms of all successful requests (`tokens` ordered by request and position). Failures are not in it."""
    good = requests.loc[requests["status"] == "ok", "request_index"]
    kept = tokens[tokens["request_index"].isin(good)]
    index = kept["request_index"].to_numpy()
    time = kept["time_ns"].to_numpy(dtype=np.float64)
    if time.size < 2:
        return np.empty(0)
    return np.asarray(np.diff(time)[index[1:] == index[:-1]] / NS_PER_MS, dtype=np.float64)


def clock_faults(
    requests: pd.DataFrame, tokens: pd.DataFrame, chunks: pd.DataFrame | None = None
) -> list[str]:
    """What cannot be true of the stamps: times out of order, tokens without a time, counts that disagree.

    chunks  a server's, which take the place of tokens; how many tokens they hold is checked elsewhere
    """
    order = ("scheduled_ns", "sent_ns", "first_token_ns", "last_token_ns", "done_ns")
    ok = requests[requests["status"] == "ok"]
    index, n = ok["request_index"].to_numpy(), ok["output_tokens"].fillna(0).to_numpy(dtype=np.float64)
    times = {name: _ns(ok, name) for name in order}
    faults = [
        f"request {i}: {after} lies before {before}"
        for before, after in itertools.pairwise(order)
        for i in index[times[after] < times[before]]
    ]
    for name, stamps in times.items():
        needed = n > 0 if name in ("first_token_ns", "last_token_ns") else np.ones(n.size, dtype=bool)
        faults += [f"request {i}: {name} is missing" for i in index[needed & np.isnan(stamps)]]
    held, counts = np.unique(tokens["request_index"].to_numpy(), return_counts=True)
    recorded = dict(zip(held.tolist(), counts.tolist(), strict=True))
    for i, stated in zip(index.tolist(), n.tolist(), strict=True):
        if chunks is None and recorded.get(i, 0) != stated:
            faults.append(f"request {i}: {stated:.0f} output tokens stated, {recorded.get(i, 0)} recorded")
    gaps = token_gaps(requests, tokens if chunks is None else chunks)
    if (gaps < 0).any() or np.isnan(gaps).any():
        faults.append("token times run backwards or are missing")
    return faults


def _ns(frame: pd.DataFrame, column: str) -> Floats:
    return np.asarray(frame[column].to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def _or_failed(nanoseconds: Floats, ok: NDArray[np.bool_]) -> Floats:
    return np.where(ok, nanoseconds / NS_PER_MS, np.inf)
