"""A server that stays up between two runs keeps its cache of prompts; what it says of that reaches the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.measure.invariants import check_cold_cache
from counterproof.run import client_load
from counterproof.workload.sealed import SealedRequest

PROMPT = 96
WORK = [SealedRequest(i, tuple(range(i, i + PROMPT)), 2, seed=i, ignore_eos=True) for i in range(3)]


def answer(cached: int) -> tuple[bytes, bool]:
    """A whole answer of two tokens whose prompt came from the cache but for `PROMPT - cached` tokens."""
    usage = {
        "prompt_tokens": PROMPT,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    events = [{"choices": [{"text": "a b", "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body, False


@pytest.mark.parametrize("warm", [False, True])
def test_a_second_run_on_a_server_that_stayed_up_is_found_out(
    script: Callable[..., Any], target_of: Callable[..., Any], warm: bool
) -> None:
    """The very same baseline twice, the same prompts: the second finds what the first left, and looks quicker."""
    hits = 80 if warm else 0
    server = script(*[answer(0)] * len(WORK), *[answer(hits)] * len(WORK))
    runs = {}
    for arm in ("baseline", "again"):
        target = target_of(server.address)
        rows, _ = client_load.run(target, WORK, 1, 20.0)
        target.close()  # the server takes one connection after the other
        frame = pd.DataFrame(rows.requests)
        assert frame["status"].tolist() == ["ok"] * len(WORK)
        runs[(0, arm)] = SimpleNamespace(name=f"00-{arm}-1", requests=frame, effective={})
    assert runs[(0, "again")].requests["cached_tokens"].tolist() == [hits] * len(WORK)
    study: Any = SimpleNamespace(complete_blocks=[0], arms=["baseline", "again"], runs=runs)
    found = check_cold_cache(study)
    assert found.passed is not warm
    assert ("the cache was warm: 00-again-1: 240 prompt tokens" in found.detail) is warm
    # Where a cache is declared, the two runs of the same arm must still find the same.
    for run in runs.values():
        run.effective["prefix_cache.enabled"] = True
    declared = check_cold_cache(study)
    assert declared.passed is not warm
    assert ("hit 0 tokens and 00-again-1, the very same, 240" in declared.detail) is warm
