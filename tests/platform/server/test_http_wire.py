"""HTTP answers cut anywhere, streams of events, and what counts as a chunk."""

from __future__ import annotations

import json

import pytest

from counterproof.run.targets.http.chunks import Stream, Usage
from counterproof.run.targets.http.fetch import parse_metrics
from counterproof.run.targets.http.watch import gauge_row
from counterproof.run.targets.http.wire import Answer, WireError, request_bytes

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\nA: b\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwrong"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("wire", "body"), [(CHUNKED, b"hello world"), (SIZED, b"wrong")])
def test_an_answer_is_the_same_however_it_is_cut(wire: bytes, body: bytes, size: int) -> None:
    answer = Answer()
    parts = [answer.feed(wire[i : i + size]) for i in range(0, len(wire), size)]
    assert b"".join(parts) == body
    assert answer.done
    assert answer.status == (200 if wire is CHUNKED else 404)
    assert answer.keep_alive == (wire is CHUNKED)


def test_a_body_without_length_ends_with_the_connection_and_a_short_one_does_not() -> None:
    answer = Answer()
    assert answer.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nabc") == b"abc"
    assert not answer.done
    assert answer.closed()
    short = Answer()
    short.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    assert not short.closed()
    empty = Answer()
    empty.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert empty.done


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_an_error(wire: bytes) -> None:
    with pytest.raises(WireError):
        Answer().feed(wire)


def test_a_request_states_its_length() -> None:
    made = request_bytes("POST", "/p", "h:1", {"A": "b"}, b"xyz")
    assert made == b"POST /p HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\nA: b\r\n\r\nxyz"


def test_an_empty_first_chunk_or_a_role_is_no_first_token() -> None:
    stream = Stream()
    assert stream.feed(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})) == []
    assert stream.feed(event({"choices": [{"text": ""}]})) == []
    (content,) = stream.feed(event({"choices": [{"delta": {"content": "hi"}}]}))
    assert (content.text, content.token_ids) == ("hi", None)
    # Half a character gives no text yet, but its token is one.
    (content,) = stream.feed(event({"choices": [{"text": "", "token_ids": [5]}]}))
    assert (content.text, content.token_ids) == ("", (5,))


def test_a_chunk_of_many_tokens_says_so() -> None:
    stream = Stream()
    (content,) = stream.feed(event({"choices": [{"text": "a b c", "token_ids": [1, 2, 3]}]}))
    assert content.token_ids == (1, 2, 3)
    assert stream.token_ids == [1, 2, 3]


def test_counts_come_from_usage_and_the_end_from_its_reason() -> None:
    stream = Stream()
    whole = event({"choices": [{"text": "a", "finish_reason": "length"}]}).replace(b"\n", b"\r\n")
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    for byte in whole + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n":
        stream.feed(bytes([byte]))
    stream.close()
    assert stream.error is None
    assert stream.ended
    assert (stream.finish_reason, "".join(stream.text)) == ("length", "a")
    assert stream.usage == Usage(7, 1, 4)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'event: error\ndata: {"message": "out of memory"}\n\n', "out of memory"),
        (event({"error": {"message": "no room", "code": 500}}), "no room"),
        (b"data: {broken\n\n", "no JSON"),
        (event({"choices": [{"text": "a"}]}), "without a finish reason"),
    ],
)
def test_an_error_inside_a_stream_is_no_success(body: bytes, said: str) -> None:
    stream = Stream()
    stream.feed(body)
    stream.close()
    assert stream.error is not None
    assert said in stream.error


def test_metrics_are_summed_over_labels_and_gauges_found_by_any_servers_name() -> None:
    text = '# HELP x\nvllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 3\nbad line\n'
    found = parse_metrics(text)
    assert found == {"vllm:num_requests_running": 5.0}
    assert gauge_row(found)["running"] == 5
    assert gauge_row({"other": 1.0}) == {}
