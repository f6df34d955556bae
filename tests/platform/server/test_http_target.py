"""A server behind the protocol: chunks, counts, refusals, broken connections, time-outs, held-back pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import ExecutionError
from counterproof.run import client_load
from counterproof.run.closed_loop import ClosedLoop, LoadRows
from counterproof.run.targets.http.held_back import HeldBack
from counterproof.run.targets.http.pool import Address, Piece
from counterproof.workload.sealed import SealedRequest


def requests(count: int = 1, tokens: int = 3) -> list[SealedRequest]:
    return [SealedRequest(i, (5, 6, 7), tokens, seed=i, ignore_eos=True) for i in range(count)]


def answer(*events: object, status: str = "200 OK") -> bytes:
    body = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def text(said: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": said, "finish_reason": reason}]}


def usage(completion: int, prompt: int = 3) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def load(target: Any, work: list[SealedRequest], slots: int = 1) -> tuple[LoadRows, dict[str, Any]]:
    return client_load.run(target, work, slots, 20.0)


def test_chunks_are_stamped_and_tokens_counted_by_the_server(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    server = script((answer(text("one two"), text(" three", "length"), usage(3)), False))
    rows, client = load(target_of(server.address), requests())
    (row,) = rows.requests
    assert (row["status"], row["output_tokens"], row["tokens_computed"]) == ("ok", 3, None)
    assert rows.tokens == []
    assert [(c["chunk_index"], c["characters"], c["tokens"]) for c in rows.chunks] == [
        (0, 7, None),
        (1, 6, None),
    ]
    assert rows.outputs[0]["token_ids"] == [3, 3, 5]
    assert (client["stated_tokens"], client["own_tokens"], client["unstated"]) == (3, 3, 0)
    assert row["scheduled_ns"] <= row["sent_ns"] < row["first_token_ns"] <= row["done_ns"]
    sent = json.loads(server.requests[0].partition(b"\r\n\r\n")[2])
    assert (sent["prompt"], sent["max_tokens"], sent["ignore_eos"]) == ([5, 6, 7], 3, True)
    assert sent["stream_options"] == {"include_usage": True}


def test_a_plain_dialect_sends_text_and_no_extension(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    server = script((answer(text("a", "stop"), usage(1)), False))
    load(target_of(server.address, dialect="openai", api="chat", prompts="text"), requests())
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    assert head.startswith(b"POST /v1/chat/completions ")
    assert sent["messages"] == [{"role": "user", "content": "t5 t6 t7"}]
    assert not {"ignore_eos", "return_token_ids", "prompt"} & sent.keys()


def test_missing_and_unlike_counts_are_told(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    server = script(
        (answer(text("a b", "stop")), False),
        (answer(text("a b", "stop"), usage(9, prompt=4)), False),
    )
    rows, client = load(target_of(server.address), requests(2))
    assert (client["unstated"], client["stated_tokens"], client["own_tokens"]) == (1, 9, 4)
    assert client["prompts_unlike"] == 1
    assert [row["output_tokens"] for row in rows.requests] == [2, 9]


def test_refusals_and_errors_in_a_stream_are_failures(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    refusal = b'HTTP/1.1 503 Busy\r\nContent-Length: 30\r\n\r\n{"error": {"message": "no way"}'
    server = script(
        (refusal + b"}"[:0], False),
        (answer(text("a"), {"error": {"message": "out of memory"}}), False),
        (answer(text("cut")), False),
        (answer(text("b", "stop"), usage(1)), False),
    )
    rows, client = load(target_of(server.address), requests(4))
    assert [row["status"] for row in rows.requests] == ["error", "error", "error", "ok"]
    errors = [row["error"] for row in rows.requests]
    assert errors[0].startswith("HTTP 503")
    assert "out of memory" in errors[1]
    assert "without a finish reason" in errors[2]
    assert client["connections"] == 1
    assert client["stated_tokens"] == 1


def test_a_kept_connection_that_was_closed_meanwhile_is_made_anew_and_counted(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    whole = answer(text("a", "stop"), usage(1))
    server = script((whole, True), (whole, False))
    rows, client = load(target_of(server.address), requests(2))
    assert [row["status"] for row in rows.requests] == ["ok", "ok"]
    assert client["connections"] == 2
    assert len(server.requests) == 2


def test_a_connection_that_breaks_inside_an_answer_is_a_failure_and_not_sent_again(
    script: Callable[..., Any], target_of: Callable[..., Any]
) -> None:
    broken = b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\n'
    server = script((broken, True))
    rows, _ = load(target_of(server.address), requests())
    assert rows.requests[0]["status"] == "error"
    assert "before the answer was whole" in rows.requests[0]["error"]
    assert len(rows.chunks) == 1
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_fails_every_request(target_of: Callable[..., Any]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    rows, _ = load(target_of(Address("127.0.0.1", port)), requests(3), 2)
    assert {row["status"] for row in rows.requests} == {"error"}
    assert all("cannot be reached" in row["error"] for row in rows.requests)
    assert all(row["first_token_ns"] is None for row in rows.requests)


def test_a_silent_server_meets_the_time_out(null_target: Callable[..., Any]) -> None:
    target = null_target("--delay-s", "60")
    rows = ClosedLoop(target, requests(2), 2, 0.2).run()
    assert [row["status"] for row in rows.requests] == ["timeout", "timeout"]
    assert all(row["output_tokens"] == 0 for row in rows.requests)


def test_a_server_shows_no_logits(target_of: Callable[..., Any]) -> None:
    with pytest.raises(ExecutionError, match="no logits"):
        target_of(Address("127.0.0.1", 1)).compute_logits(requests())


def test_held_back_pieces_come_as_if_every_step_were_slower() -> None:
    held = HeldBack(1_000)
    pieces = [Piece("r", 0, 200, b"a"), Piece("r", 500, 200, b"b"), Piece("q", 500, 200, b"c", done=True)]
    assert held.take(pieces, 600) == []
    assert held.wait_s(600, 1.0) == pytest.approx(400e-9)
    assert [(p.request_id, p.time_ns) for p in held.take([], 1_500)] == [("r", 1_500), ("q", 1_500)]
    assert [p.body for p in held.take([], 2_499)] == []
    assert [p.body for p in held.take([], 2_500)] == [b"b"]
    assert HeldBack(0).take(pieces, 0) == pieces


def test_the_slowed_arm_of_a_foreign_server_is_measurably_slower(null_target: Callable[..., Any]) -> None:
    rows, _ = load(null_target(delay_us=20_000), requests(2, tokens=6))
    for row in rows.requests:
        stamps = [c["time_ns"] for c in rows.chunks if c["request_index"] == row["request_index"]]
        assert row["status"] == "ok"
        # All six tokens arrive in one piece from a server that answers at once.
        assert stamps[0] - row["sent_ns"] >= 20_000_000
