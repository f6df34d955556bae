"""The block manager on recorded traces: the published hit table, and a plain reading of its rule on a made one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from intaglio.cli import main
from intaglio.errors import TraceError
from intaglio.state.cache_replay import TraceRequest, read_trace, replay

# Capacity in blocks, hits among all 288,500 references, ratio to four digits.
WHOLE = [(None, 105_710, 0.3664), (50_000, None, 0.3546), (30_000, None, 0.3257), (10_000, 61_046, 0.2116)]
WHOLE.append((1_000, 12_847, 0.0445))
FIRST_2000 = [(None, 15_771), (10_000, 11_409), (1_000, 2_218)]


def made_trace(requests: int) -> list[TraceRequest]:
    """Conversations that grow turn by turn, interleaved; ids are equal only after equal ones."""
    draw, turns, trace, fresh = random.Random(3), {}, [], iter(range(1_000_000))
    for _ in range(requests):
        talk = draw.randrange(12)
        ids = turns.setdefault(talk, [next(fresh)])
        if draw.random() < 0.15:
            del ids[draw.randrange(1, len(ids) + 1) :]  # it starts over from an earlier turn
        ids += [next(fresh) for _ in range(draw.randrange(1, 5))]
        trace.append(TraceRequest(tuple(ids), 512 * len(ids) - draw.randrange(512)))
    return trace


def plain_hits(trace: list[TraceRequest], capacity: int) -> int:
    """The rule word by word: hits are the leading resident run; then all blocks are resident, the first of them
    the most recent, and the least recent are dropped down to the capacity."""
    recent: list[int] = []  # least recent first
    hits = 0
    for request in trace:
        resident = set(recent)
        for block in request.ids:
            if block not in resident:
                break
            hits += 1
        own = set(request.ids)
        recent = [block for block in recent if block not in own] + list(reversed(request.ids))
        del recent[: max(0, len(recent) - capacity)]
    return hits


@pytest.mark.parametrize("capacity", [1, 5, 40, 100, 250, 10_000])
def test_hits_on_a_made_trace_are_those_of_the_rule(capacity: int) -> None:
    trace = made_trace(300)
    result = replay(trace, capacity)
    assert result.hits == plain_hits(trace, capacity)
    assert result.references == sum(len(request.ids) for request in trace)
    assert result.hit_ratio == result.hits / result.references
    assert (result.evictions == 0) == (capacity == 10_000)
    if capacity == 10_000:
        assert replay(trace, None).hits == result.hits > 0


def test_hits_of_the_conversation_trace_at_five_capacities(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces" / "mooncake_conversation_trace.jsonl")
    for capacity, hits, ratio in WHOLE:
        result = replay(trace, capacity)
        assert (result.references, result.unique) == (288_500, 182_790)
        assert round(result.hit_ratio, 4) == ratio
        assert hits is None or result.hits == hits
        if capacity is None:
            assert round(result.mean_request_ratio, 3) == 0.409


@pytest.mark.parametrize(("capacity", "hits"), FIRST_2000)
def test_hits_of_the_traces_first_2000_requests(shared_data: Path, capacity: int | None, hits: int) -> None:
    trace = read_trace(shared_data / "traces" / "mooncake_conversation_trace.jsonl", 2000)
    result = replay(trace, capacity)
    assert (result.references, result.hits) == (54_559, hits)


def test_the_command_prints_what_the_function_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, path = made_trace(50), tmp_path / "trace.jsonl"
    path.write_text(
        "".join(json.dumps({"input_length": t, "hash_ids": list(ids)}) + "\n" for ids, t in trace)
    )
    assert main(["simulate-cache", str(path), "--blocks", "40", "--rows", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == replay(trace[:30], 40).to_dict()
    assert main(["simulate-cache", str(path), "--blocks", "all"]) == 0
    out = capsys.readouterr().out
    assert f"{replay(trace, None).hit_ratio:.4f}" in out
    assert f"{replay(trace, None).references:,}" in out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("not json", "line 2"),
        ('{"hash_ids": 3}', "line 2"),
        ("[]", "line 2"),
        ('{"hash_ids": [1, -1]}', "line 2"),
        ('{"hash_ids": [1, true]}', "line 2"),
        ('{"hash_ids": [1], "input_length": "x"}', "line 2"),
    ],
)
def test_a_damaged_trace_is_refused_by_its_line(
    tmp_path: Path, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"hash_ids": [0]}}\n{line}\n')
    with pytest.raises(TraceError, match=told):
        read_trace(path)
    assert main(["simulate-cache", str(path), "--blocks", "4"]) == 2
    assert told in capsys.readouterr().err


def test_a_trace_without_blocks_or_a_capacity_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no blocks"):
        replay([], 4)
    assert main(["simulate-cache", str(tmp_path / "missing"), "--blocks", "4"]) == 2
    for blocks in ("0", "-3", "many"):
        with pytest.raises(SystemExit):
            main(["simulate-cache", str(tmp_path), "--blocks", blocks])


def test_room_for_everything_is_room_for_every_block_after_every_other() -> None:
    trace = [TraceRequest(ids, 1024) for ids in ((1, 2), (2, 1), (1, 2), (2, 1))]
    found = replay(trace, None)
    assert (found.hits, found.evictions) == (4, 0)


def test_a_pool_larger_than_the_trace_costs_no_more_than_the_trace() -> None:
    trace = made_trace(50)
    found = replay(trace, 10**12)
    assert (found.blocks, found.hits, found.evictions) == (10**12, replay(trace, None).hits, 0)


@pytest.mark.parametrize("given", ["1.5", "0", "-3", "many", "1_0", ""])
def test_a_capacity_that_is_no_number_is_named(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate-cache", "trace.jsonl", f"--blocks={given}"])
    assert ended.value.code == 2
    assert f"'{given}': give a whole number from 1" in capsys.readouterr().err
