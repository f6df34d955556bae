"""Text while it arrives: whole characters, stop strings across token borders, one ending per request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.config import from_flat
from intaglio.errors import RequestError
from intaglio.intake.request import SamplingParams
from intaglio.output.detokenizer import Detokenizer
from intaglio.output.stop import StopStrings

FIXED = settings(max_examples=400, derandomize=True, deadline=None, database=None)


def stopped(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The plain rule: character by character, the first complete stop string ends the text before itself."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@FIXED
@given(
    text=st.text("abc", max_size=24),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 24), max_size=8),
)
def test_stop_strings_do_not_depend_on_where_the_text_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    watcher, shown, found = StopStrings(stops), "", False
    for left, right in itertools.pairwise(edges):
        piece, found = watcher.push(text[left:right])
        shown += piece
        wanted = stopped(text[:right], tuple(stops))[0]
        assert wanted.startswith(shown)  # nothing is shown that would have to be taken back
        if found:
            break
    if not found:
        shown += watcher.finish()
    assert (shown, found) == stopped(text, tuple(stops))


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    watcher = StopStrings(["\n\nQ:"])
    assert watcher.push("A\n") == ("A", False)
    assert watcher.push("\n") == ("", False)
    assert watcher.push("\n") == ("\n", False)
    assert watcher.push("R") == ("\n\nR", False)
    assert watcher.push("\n\nQ: next") == ("", True)
    assert watcher.finish() == ""


@FIXED
@given(text=st.text(max_size=20), stops=st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_pieces_are_whole_characters_and_join_to_the_text(
    fake: ModuleType, text: str, stops: list[str]
) -> None:
    """A token per byte: every character of more than one byte is cut by tokens."""
    detokenizer = Detokenizer(fake.ByteCodec(), [97], stops)
    pieces, over = [], False
    for byte in text.encode("utf-8"):
        piece, over = detokenizer.push(byte)
        pieces.append(piece)
        if over:
            break
    pieces.append(detokenizer.finish())
    assert ("".join(pieces), over) == stopped(text, tuple(stops))


def test_half_a_character_is_never_shown(fake: ModuleType) -> None:
    detokenizer = Detokenizer(fake.ByteCodec(), [97], ())
    pieces = [detokenizer.push(byte)[0] for byte in "a€b".encode()]
    assert pieces == ["a", "", "", "€", "b"]
    assert detokenizer.push(0xE2) == ("", False)
    assert detokenizer.finish() == "\ufffd"  # only at the end does an unfinished character show as such


@pytest.fixture
def engine(fake: ModuleType) -> Iterator[Any]:
    with fake.make_engine(from_flat({"kv_cache.blocks": 64, "kv_cache.block_tokens": 4})) as engine:
        yield engine


def test_events_of_a_request_are_its_output(fake: ModuleType, engine: Any) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    events = list(engine.stream("hello", params))
    output = engine.output(events[0].request_id)
    wanted, reason = fake.reference(list(b"hello"), params)
    assert [event.token_id for event in events] == output.token_ids == wanted
    assert [event.index for event in events] == list(range(30))
    assert "".join(event.text for event in events) == output.text
    assert output.text == fake.decoded([token for token in wanted if token != fake.EOS])
    assert [event.finish_reason for event in events] == [None] * 29 + [reason]
    assert [event.time_ns for event in events] == output.token_times_ns
    assert output.enqueued_ns < output.token_times_ns[0] <= output.token_times_ns[-1] == output.done_ns
    assert output.logprobs == [-0.5] * 30
    assert output.margins == [1.0] * 30
    assert output.prompt_token_ids == list(b"hello")
    assert output.tokens_computed == 34


def find(fake: ModuleType, wanted: str, **values: Any) -> tuple[list[int], SamplingParams]:
    """A prompt whose reference run ends in the way that is asked for."""
    for first in range(97, 123):
        for second in range(97, 123):
            params = SamplingParams(max_tokens=40, **values)
            tokens, reason = fake.reference([first, second], params)
            if reason == "stop" and 3 < len(tokens) < 40 and (tokens[-1] == fake.EOS) == (wanted == "eos"):
                return [first, second], params
    raise LookupError(wanted)


def test_the_end_token_ends_the_text_and_is_no_part_of_it(fake: ModuleType, engine: Any) -> None:
    prompt, params = find(fake, "eos")
    (output,) = engine.generate([prompt], params)
    tokens, _ = fake.reference(prompt, params)
    assert (output.token_ids, output.finish_reason) == (tokens, "stop")
    assert output.text == fake.decoded(tokens[:-1])


def test_ignoring_the_end_token_goes_on(fake: ModuleType, engine: Any) -> None:
    prompt, _ = find(fake, "eos")
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=40, ignore_eos=True))
    assert (len(output.token_ids), output.finish_reason) == (40, "length")


def test_a_stop_token_ends_the_text(fake: ModuleType, engine: Any) -> None:
    prompt, params = find(fake, "token", ignore_eos=True, stop_token_ids=(97, 98))
    (output,) = engine.generate([prompt], params)
    tokens, _ = fake.reference(prompt, params)
    assert (output.token_ids, output.finish_reason) == (tokens, "stop")
    assert output.text == fake.decoded([token for token in tokens[:-1] if token != fake.EOS])


def test_a_stop_string_ends_the_text_before_itself(fake: ModuleType, engine: Any) -> None:
    free = SamplingParams(max_tokens=40, ignore_eos=True)
    whole, _ = fake.reference([97, 98], free)
    text = fake.decoded([token for token in whole if token != fake.EOS])
    stop = text[7:10]
    params = SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop, "zzz"))
    events = list(engine.stream([97, 98], params))
    output = engine.output(events[0].request_id)
    assert output.finish_reason == "stop"
    assert output.text == text[: text.index(stop)]
    assert output.token_ids == whole[: len(output.token_ids)]
    assert stop in fake.decoded([token for token in output.token_ids if token != fake.EOS])
    for shown in range(len(events)):
        assert output.text.startswith("".join(event.text for event in events[:shown]))


def test_the_seed_is_drawn_reported_and_repeatable(fake: ModuleType, engine: Any) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True)
    first, second = engine.generate(["abc", "abc"], params)
    assert first.seed is not None
    assert first.seed != second.seed
    again = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True, seed=first.seed)
    companions = [SamplingParams(max_tokens=5, temperature=1.0), again, SamplingParams(max_tokens=3, seed=1)]
    repeated = engine.generate(["xyz", "abc", "abc"], companions)[1]
    assert repeated.token_ids == first.token_ids
    assert repeated.seed == first.seed
    assert first.token_ids == fake.reference(list(b"abc"), again, seed=first.seed)[0]


def test_streams_interleave_and_each_gets_its_own_events(fake: ModuleType, engine: Any) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    loose = engine.add("loose", params)
    one, two = engine.stream("one", params), engine.stream("two", params)
    got: dict[str, list[int]] = {"one": [], "two": []}
    for _ in range(6):
        got["one"].append(next(one).token_id)
        got["two"].append(next(two).token_id)
    assert list(one) == list(two) == []
    for name, tokens in got.items():
        assert tokens == fake.reference(list(name.encode()), params)[0]
    events = engine.step()  # what the streams computed on the way waited for whoever calls step
    assert [event.token_id for event in events] == fake.reference(list(b"loose"), params)[0]
    assert {event.request_id for event in events} == {loose}
    assert not engine.has_work


def test_closing_a_stream_aborts_its_request(engine: Any) -> None:
    stream = engine.stream("abc", SamplingParams(max_tokens=30, ignore_eos=True))
    request_id = next(stream).request_id
    stream.close()
    assert not engine.has_work
    assert engine.gauges()["kv_blocks_used"] == 0
    output = engine.output(request_id)
    assert (output.finish_reason, len(output.token_ids)) == ("abort", 1)


def test_an_abort_shows_the_text_that_was_held_back(engine: Any) -> None:
    whole = "".join(
        event.text for event in engine.stream("abc", SamplingParams(max_tokens=4, ignore_eos=True))
    )
    stop = whole[2:4] + "never"
    engine.add("abc", SamplingParams(max_tokens=9, ignore_eos=True, stop=(stop,)), request_id="a")
    events = [event for _ in range(4) for event in engine.step()]
    engine.abort("a")
    (last,) = engine.step()
    assert (last.token_id, last.finish_reason) == (None, "abort")
    assert "".join(event.text for event in [*events, last]) == engine.output("a").text == whole


def test_outputs_nobody_takes_are_dropped_and_counted(fake: ModuleType, engine: Any) -> None:
    engine._hub._keep = 3
    for index in range(5):
        engine.add("a", SamplingParams(max_tokens=1), request_id=f"r{index}")
    while engine.has_work:
        engine.step()
    assert engine.counters()["outputs_dropped"] == 2
    assert [engine._hub.knows(f"r{index}") for index in range(5)] == [False, False, True, True, True]


def test_several_threads_may_generate_at_once(fake: ModuleType, engine: Any) -> None:
    params = SamplingParams(max_tokens=25, ignore_eos=True)
    texts = [f"prompt {index}" for index in range(12)]
    outputs: dict[str, list[int]] = {}

    def work(own: list[str]) -> None:
        for text, output in zip(own, engine.generate(own, params), strict=True):
            outputs[text] = output.token_ids

    threads = [threading.Thread(target=work, args=(texts[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert outputs == {text: fake.reference(list(text.encode()), params)[0] for text in texts}
    assert not engine.has_work


def test_closing_the_engine_ends_a_stream_in_another_thread(engine: Any) -> None:
    events: list[Any] = []
    started = threading.Event()

    def read() -> None:
        for event in engine.stream("abc", SamplingParams(max_tokens=900, ignore_eos=True)):
            events.append(event)
            started.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(timeout=30)
    engine.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert events[-1].finish_reason in ("abort", "length")
    assert sum(event.finish_reason is not None for event in events) == 1


def test_a_request_that_fails_while_running_is_raised_on_demand(engine: Any) -> None:
    engine.fake.row_error = {"request-000000000002"}
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    with pytest.raises(RequestError, match="planned row error"):
        engine.generate(["a", "b", "c"], params, on_error="raise")
    assert not engine.has_work
    assert engine.gauges()["kv_blocks_used"] == 0
    assert not engine._hub._done
    outputs = engine.generate(["a", "b"], params)
    assert [output.finish_reason for output in outputs] == ["length", "length"]
