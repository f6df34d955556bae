"""TTFT, TPOT, ITL and end-to-end from hand-made rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from counterproof.measure.latency import clock_faults, request_latencies, samples, token_gaps

MS = 1_000_000


def request(index: int, **fields: Any) -> dict[str, Any]:
    row = {
        "request_index": index,
        "output_tokens": 3,
        "scheduled_ns": 100 * MS,
        "sent_ns": 150 * MS,
        "first_token_ns": 200 * MS,
        "last_token_ns": 230 * MS,
        "done_ns": 240 * MS,
        "status": "ok",
    }
    return {**row, **fields}


def tokens(index: int, *times_ms: float) -> list[dict[str, Any]]:
    return [
        {"request_index": index, "token_index": i, "time_ns": int(t * MS)} for i, t in enumerate(times_ms)
    ]


def test_latencies_run_from_the_scheduled_moment() -> None:
    row = request_latencies(pd.DataFrame([request(0)])).iloc[0]
    assert row["ttft_ms"] == 100.0
    assert row["e2e_ms"] == 140.0
    assert row["service_ms"] == 90.0
    assert row["client_queue_ms"] == 50.0
    assert row["tpot_ms"] == 15.0  # (230 - 200) / (3 - 1)


def test_one_token_has_no_tpot_and_leaves_its_sample() -> None:
    frame = pd.DataFrame([request(0), request(1, output_tokens=1, last_token_ns=200 * MS)])
    assert math.isnan(request_latencies(frame)["tpot_ms"].iloc[1])
    assert samples(frame, "tpot_ms").tolist() == [15.0]
    assert samples(frame, "ttft_ms").tolist() == [100.0, 100.0]


def test_a_failed_request_is_infinite_in_every_latency() -> None:
    frame = pd.DataFrame([request(0), request(1, status="error", output_tokens=0, first_token_ns=None)])
    for metric in ("e2e_ms", "ttft_ms", "tpot_ms", "service_ms"):
        assert samples(frame, metric)[1] == math.inf
    assert samples(frame, "client_queue_ms").tolist() == [50.0, 50.0]


def test_a_missing_time_of_a_successful_request_is_not_a_number() -> None:
    frame = pd.DataFrame([request(0, first_token_ns=None), request(1)])
    assert np.isnan(samples(frame, "ttft_ms")).tolist() == [True, False]
    assert "request 0: first_token_ns is missing" in clock_faults(
        frame, pd.DataFrame(tokens(0, 200, 215, 230) + tokens(1, 200, 215, 230))
    )


def test_itl_is_the_gap_within_a_request_and_leaves_out_failures() -> None:
    frame = pd.DataFrame([request(0), request(1), request(2, status="error")])
    rows = tokens(0, 200, 210, 230) + tokens(1, 300, 305) + tokens(2, 1, 2, 3)
    assert token_gaps(frame, pd.DataFrame(rows)).tolist() == [10.0, 20.0, 5.0]
    assert token_gaps(frame, pd.DataFrame(rows).iloc[:0]).size == 0


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"first_token_ns": 50 * MS}, "first_token_ns lies before sent_ns"),
        ({"sent_ns": 90 * MS}, "sent_ns lies before scheduled_ns"),
        ({"done_ns": 225 * MS}, "done_ns lies before last_token_ns"),
        ({"output_tokens": 4}, "4 output tokens stated, 3 recorded"),
        ({"scheduled_ns": None}, "scheduled_ns is missing"),
    ],
)
def test_impossible_stamps_are_found(fields: dict[str, Any], fault: str) -> None:
    found = clock_faults(pd.DataFrame([request(0, **fields)]), pd.DataFrame(tokens(0, 200, 215, 230)))
    assert any(fault in line for line in found), found


def test_sound_stamps_have_no_fault() -> None:
    assert clock_faults(pd.DataFrame([request(0)]), pd.DataFrame(tokens(0, 200, 215, 230))) == []
    backwards = pd.DataFrame(tokens(0, 200, 230, 215))
    assert clock_faults(pd.DataFrame([request(0)]), backwards) == ["token times run backwards or are missing"]
