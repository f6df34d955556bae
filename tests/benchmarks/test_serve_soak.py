"""The soak and the flood of malformed requests, small: the commands work and find nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import serve_malformed, serve_soak


def test_a_short_soak_finds_no_leak_and_no_wrong_text(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    sizes = ["--clients", "30", "--seconds", "4", "--questions", "8", "--running", "4", "--queue", "8"]
    options = [*sizes, "--json", str(path), "prefix_cache.enabled=true"]
    code = serve_soak.main(["--model", str(tiny_model), *options])
    report = json.loads(path.read_text())
    assert (code, report["faults"]) == (0, {}), capsys.readouterr().out
    assert report["answers"]["whole"] > 0
    assert report["answers"]["streamed"] > 0
    assert report["disconnects_seen"] > 0
    assert report["counters"]["prefix_hit_tokens"] > 0
    assert report["statuses"]["429"] > 0


def test_a_small_flood_of_malformed_requests_gets_typed_errors(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = serve_malformed.main(["--model", str(tiny_model), "--requests", "60"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "requests: 60 " in out
    assert "wrong answers: 0" in out


def test_the_soak_reports_what_is_wrong() -> None:
    args = serve_soak._arguments(["--clients", "1", "--seconds", "1"])
    tally = serve_soak.Tally(wrong=["whole answer to seed 3"], rss=[1 << 20] * 6 + [1 << 30] * 3)
    tally.transport_errors = Counter(ReadError=2)
    gauges = {"running": 0, "waiting": 1, "kv_blocks_used": 2, "kv_blocks_cached": 3}
    counters = {"blocks_allocated": 9, "blocks_freed": 5, "requests_aborted": 1}
    found = {
        "gauges": gauges,
        "counters": counters,
        "connections": 4,
        "descriptors_more": 20,
        "disconnects": 1,
    }
    found |= {"last_answer": "wrong", "exit_code": 4, "log": "Traceback"}
    faults = serve_soak._report(tally, found, args)["faults"]
    assert faults == {
        "wrong answers": 1,
        "transport errors": 2,
        "requests or blocks left": 3,
        "blocks not given back": 1,
        "connections left": 4,
        "descriptors left": 12,
        "resident set grew": True,
        "last answer wrong": True,
        "exit code": 4,
        "tracebacks": 1,
    }


@pytest.mark.parametrize(
    ("status", "content", "fault"),
    [
        (200, b"{}", ""),
        (500, b"{}", "status 500"),
        (400, b"no", "without a typed error"),
        (400, b'{"error": {"message": "m", "type": "t", "param": null, "code": ""}}', "incomplete"),
        (404, b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}', ""),
    ],
)
def test_an_answer_is_judged(status: int, content: bytes, fault: str) -> None:
    judge = SimpleNamespace(codes=Counter())
    found = serve_malformed.Judge._judge(judge, status, content)  # type: ignore[arg-type]
    assert fault in found
    assert bool(fault) == bool(found)
    assert "schemathesis" in sys.modules
