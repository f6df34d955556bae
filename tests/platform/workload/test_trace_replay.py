"""Traces: both formats line by line, lengths and shared prefixes kept, text real and its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof.errors import InputError
from counterproof.plan import prereg
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload import build, replay, traces
from counterproof.workload.traces import TraceRow
from intaglio.intake.tokenizer import Tokenizer

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
MOONCAKE = (
    '{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 30, "input_length": 1030, "output_length": 9, "hash_ids": [0, 1, 7]}\n'
    '{"timestamp": 30.5, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'
    '{"timestamp": 99, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
)
SMALL = WorkloadConfig(
    builder="trace", trace="t", length_scale=1 / 32, prompt_tokens=4000, max_new_tokens=2000, arrival="trace"
)


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    tokenizer = Tokenizer(Path(__file__).resolve().parents[3] / "data" / "models" / "tiny")
    return lambda text: tokenizer.encode(text)


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_both_formats_are_read_to_the_nanosecond(tmp_path: Path) -> None:
    first, second = traces.read(write(tmp_path, AZURE), "azure")
    assert second.time_ns - first.time_ns == 4_314_579_000
    assert (first.prompt_tokens, first.output_tokens, first.hash_ids) == (374, 44, ())
    rows = traces.read(write(tmp_path, MOONCAKE), "mooncake", 3)
    assert [row.time_ns for row in rows] == [27_000_000, 30_000_000, 30_500_000]
    assert rows[1] == TraceRow(30_000_000, 1030, 9, (0, 1, 7))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("azure", "TIME,A,B\n", "line 1: the columns"),
        ("azure", AZURE + "2023-11-16 18:15:51.0,12\n", "line 4"),
        ("azure", AZURE + "yesterday,1,2\n", "line 4"),
        ("azure", AZURE + "2023-11-16 18:15:51.0,0,2\n", "line 4: 0 prompt"),
        ("azure", "", "no rows"),
        ("mooncake", MOONCAKE + '{"timestamp": 1}\n', "line 5"),
        (
            "mooncake",
            '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
            "do not cover",
        ),
        ("jsonl", "", "trace_format"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, kind: str, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        traces.read(write(tmp_path, text), kind)
    with pytest.raises(InputError, match="cannot be read"):
        traces.read(tmp_path / "absent", "azure")


def shared_blocks(one: tuple[int, ...], other: tuple[int, ...], start: int, size: int) -> int:
    """How many whole blocks after the beginning are the same in both."""
    count = 0
    while one[start + count * size :][:size] == other[start + count * size :][:size] != ():
        count += 1
    return count


def test_shared_hash_ids_and_only_they_give_shared_prefixes(
    tmp_path: Path, encode: Callable[[str], list[int]]
) -> None:
    rows = traces.read(write(tmp_path, MOONCAKE), "mooncake")
    found = replay.replay(rows, SMALL, encode, "s", set())
    prompts = [request.token_ids for request in found.requests]
    assert [len(ids) for ids in prompts] == [35, 33, 16, 35]
    assert [request.max_new_tokens for request in found.requests] == [1, 1, 1, 1]
    assert [request.arrival_ns for request in found.requests] == [0, 3_000_000, 3_500_000, 72_000_000]
    start = len(encode(""))
    assert shared_blocks(prompts[0], prompts[1], start, 16) == 2
    assert prompts[0][:16] == prompts[2]
    # The last row repeats the first: all but its last tokens are shared, and that is counted.
    assert found.made_unique == 1
    assert prompts[3][: 35 - replay.OWN_TOKENS] == prompts[0][: 35 - replay.OWN_TOKENS]
    assert len(set(prompts)) == 4
    other = replay.replay(rows, SMALL, encode, "t", set())
    assert {r.token_ids for r in other.requests}.isdisjoint(prompts)


def test_nothing_is_cut_silently(tmp_path: Path, encode: Callable[[str], list[int]]) -> None:
    rows = traces.read(write(tmp_path, MOONCAKE), "mooncake")
    with pytest.raises(InputError, match=r"3 rows .* workload\.prompt_tokens = 20"):
        replay.replay(rows, dataclasses.replace(SMALL, prompt_tokens=20), encode, "s", set())
    with pytest.raises(InputError, match="no room for its id"):
        replay.replay(rows, dataclasses.replace(SMALL, length_scale=2 / 512), encode, "s", set())
    load = dataclasses.replace(SMALL, trace=str(tmp_path / "trace"), requests=9)
    with pytest.raises(InputError, match="has 4 rows"):
        replay.read_trace(load)


def test_the_public_traces_keep_lengths_and_prefixes(
    shared_data: Path, encode: Callable[[str], list[int]]
) -> None:
    path = shared_data / "traces" / "mooncake_conversation_first2000.jsonl"
    rows = traces.read(path, "mooncake", 400)
    found = replay.replay(rows, SMALL, encode, "s", set()).requests
    start = len(encode(""))
    assert [len(r.token_ids) for r in found] == [-(-row.prompt_tokens // 32) for row in rows]
    # References and first appearances of whole blocks, by ids in the trace and by tokens in the replay.
    ids_seen: set[int] = set()
    text_seen: set[tuple[int, ...]] = set()
    for row, request in zip(rows, found, strict=True):
        whole = (len(request.token_ids) - start - replay.OWN_TOKENS) // 16
        for number in range(max(0, whole)):
            prefix = request.token_ids[: start + 16 * (number + 1)]
            known = row.hash_ids[number] in ids_seen
            assert (prefix in text_seen) == known, (row, number)
            text_seen.add(prefix)
        ids_seen.update(row.hash_ids[: max(0, whole)])
    assert len(ids_seen) > 1000
    code = traces.read(shared_data / "traces" / "azure2023_code_first2000.csv", "azure")
    assert len(code) == 2000
    assert [row.time_ns for row in code] == sorted(row.time_ns for row in code)


def test_a_study_replays_the_same_structure_with_other_text_in_every_block(
    tmp_path: Path, encode: Callable[[str], list[int]]
) -> None:
    path = write(tmp_path, MOONCAKE)
    tokens = [
        "workload=trace_mooncake",
        f"workload.trace={path}",
        "workload.requests=4",
        "study.reserve_blocks=0",
    ]
    config = prereg.compose_arms("kv_cache", tokens).baseline.config
    found = build.build(config, encode)
    everything = [request.token_ids for block in (*found.blocks, found.warmup) for request in block]
    assert len(everything) == len(set(everything)) == 4 * config.study.blocks + 1
    assert len({tuple(r.arrival_ns for r in block) for block in found.blocks}) == 1
    assert all(request.arrival_ns is None for request in (*found.warmup, *found.equivalence))
    assert found.facts["made_unique"] == config.study.blocks
    assert len(found.facts["trace_sha256"]) == 64


def test_the_projects_own_trace_is_found_by_its_name_and_yours_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "traces/unique_prompts.csv"
    found = traces.locate(name)
    assert found.is_absolute() and len(traces.read(found, "azure")) == 24
    (tmp_path / "traces").mkdir()
    (tmp_path / name).write_text(AZURE, encoding="utf-8")
    assert len(traces.read(traces.locate(name), "azure")) == 2
    assert traces.locate("traces/absent.csv") == Path("traces/absent.csv")
