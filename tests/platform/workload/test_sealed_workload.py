"""Sealed workloads: identity over canonical rows, distinct prompts, sources of prompts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from counterproof.errors import EvidenceError, InputError
from counterproof.plan import checks, prereg
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload import build, sealed
from counterproof.workload.prompts import distinct_prompts
from counterproof.workload.sealed import SealedRequest


def encode(text: str) -> list[int]:
    """A token a word, as a stand-in for a tokenizer."""
    return [sum(word.encode()) for word in text.split()]


def requests() -> list[SealedRequest]:
    return [
        SealedRequest(0, (1, 2, 3), 4, seed=5, stop=("x", "é"), temperature=0.5),
        SealedRequest(1, (9,), 1, seed=6, arrival_ns=12, ignore_eos=True, stop_token_ids=(7,)),
    ]


def test_a_workload_survives_its_file_and_keeps_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    digest = sealed.write(path, requests())
    assert sealed.read(path, digest) == requests()
    assert digest == sealed.sha256(requests())


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": (1, 2, 4)},
        {"max_new_tokens": 5},
        {"seed": 6},
        {"temperature": 0.25},
        {"stop": ("x",)},
        {"ignore_eos": True},
        {"arrival_ns": 0},
        {"top_k": 1},
    ],
)
def test_every_field_belongs_to_the_identity(tmp_path: Path, change: dict[str, object]) -> None:
    first, second = requests()
    other = [dataclasses.replace(first, **change), second]  # type: ignore[arg-type]
    assert sealed.sha256(other) != sealed.sha256(requests())
    path = tmp_path / "w.parquet"
    sealed.write(path, other)
    with pytest.raises(EvidenceError, match="not the registered one"):
        sealed.read(path, sealed.sha256(requests()))


def test_order_belongs_to_the_identity_and_numbers_have_no_gaps(tmp_path: Path) -> None:
    swapped = requests()[::-1]
    assert sealed.sha256(swapped) != sealed.sha256(requests())
    path = tmp_path / "w.parquet"
    sealed.write(path, swapped)
    with pytest.raises(EvidenceError, match="numbered"):
        sealed.read(path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(EvidenceError, match=r"w\.parquet"):
        sealed.read(path)


def test_documentation_prompts_are_distinct_bounded_and_seeded() -> None:
    config = WorkloadConfig(builder="pydoc_questions", prompt_tokens=48)
    prompts = distinct_prompts(config, encode, 1, 150)
    assert len(set(prompts)) == 150
    assert all(0 < len(prompt) <= 48 for prompt in prompts)
    assert sum(len(prompt) > 40 for prompt in prompts) > 75
    assert prompts == distinct_prompts(config, encode, 1, 150)
    assert set(prompts) != set(distinct_prompts(config, encode, 2, 150))


def test_a_study_never_sends_a_prompt_twice_and_warms_up_with_others() -> None:
    config = prereg.compose_arms("kv_cache", []).baseline.config
    found = build.build(config, encode)
    measured = [request.token_ids for block in found.blocks for request in block]
    assert len(measured) == len(set(measured)) == 11 * 12  # six blocks and six in reserve
    assert not {request.token_ids for request in found.warmup} & set(measured)
    assert {request.token_ids for request in found.equivalence} <= set(measured)
    assert (
        len(
            {
                block
                for block in range(6)
                for r in found.equivalence
                if r.token_ids in {q.token_ids for q in found.blocks[block]}
            }
        )
        == 6
    )
    seeds = [request.seed for block in found.blocks for request in block]
    assert len(set(seeds)) == len(seeds)
    assert found == build.build(config, encode)


def test_outputs_are_drawn_between_two_limits_the_same_for_every_arm_and_build() -> None:
    config = prereg.compose_arms("kv_cache", []).baseline.config
    varied = dataclasses.replace(config, workload=dataclasses.replace(config.workload, min_new_tokens=3))
    asked = [[r.max_new_tokens for r in block] for block in build.build(varied, encode).blocks]
    assert min(map(min, asked)) == 3 and max(map(max, asked)) == config.workload.max_new_tokens
    assert all(len(set(block)) > 3 for block in asked) and asked[0] != asked[1]
    assert asked == [[r.max_new_tokens for r in block] for block in build.build(varied, encode).blocks]
    same = build.build(config, encode).blocks
    assert {r.max_new_tokens for block in same for r in block} == {config.workload.max_new_tokens}


@pytest.mark.parametrize(
    ("least", "word"), [("0", "between 1 and"), ("99", "between 1 and"), ("1", "at least 2")]
)
def test_limits_of_outputs_are_checked(least: str, word: str) -> None:
    config = prereg.compose_arms("kv_cache", [f"workload.min_new_tokens={least}"]).baseline.config
    with pytest.raises(InputError) as refused:
        checks.check(config, exploratory=False)
    assert word in "\n".join([str(refused.value), *refused.value.details])


def test_prompts_of_like_length_make_all_blocks_work_alike() -> None:
    config = prereg.compose_arms(
        "kv_cache", ["workload.prompt_tokens=150", "workload.min_prompt_tokens=140"]
    ).baseline.config
    blocks = build.build(config, encode).blocks
    lengths = [[len(request.token_ids) for request in block] for block in blocks]
    assert all(140 <= length <= 150 for block in lengths for length in block)
    assert len({request.token_ids for block in blocks for request in block}) == sum(map(len, blocks))
    free = prereg.compose_arms("kv_cache", ["workload.prompt_tokens=150"]).baseline.config
    assert min(len(r.token_ids) for block in build.build(free, encode).blocks for r in block) < 140


@pytest.mark.parametrize(("least", "word"), [("0", "between 1 and"), ("49", "between 1 and")])
def test_limits_of_prompts_are_checked(least: str, word: str) -> None:
    config = prereg.compose_arms("kv_cache", [f"workload.min_prompt_tokens={least}"]).baseline.config
    with pytest.raises(InputError) as refused:
        checks.check(config, exploratory=False)
    assert word in "\n".join([str(refused.value), *refused.value.details])


def test_too_few_prompts_are_an_input_error() -> None:
    with pytest.raises(InputError, match="has only"):
        distinct_prompts(WorkloadConfig(builder="pydoc_questions"), encode, 1, 10_000)
    with pytest.raises(InputError, match="no workload builder"):
        distinct_prompts(WorkloadConfig(builder="absent"), encode, 1, 1)


def test_prompts_from_files(tmp_path: Path) -> None:
    text = tmp_path / "p.txt"
    text.write_text("one two\n\nthree four five\none two\n" + "long " * 50, encoding="utf-8")
    config = WorkloadConfig(builder="prompt_file", file=str(text), prompt_tokens=10)
    assert set(distinct_prompts(config, encode, 1, 2)) == {
        tuple(encode("one two")),
        tuple(encode("three four five")),
    }
    with pytest.raises(InputError, match="has only 2"):
        distinct_prompts(config, encode, 1, 3)
    lines = tmp_path / "p.jsonl"
    lines.write_text(
        json.dumps({"turns": ["first", "second"]}) + "\n" + json.dumps({"turns": "third"}) + "\n"
    )
    turns = dataclasses.replace(config, file=str(lines), field="turns")
    assert set(distinct_prompts(turns, encode, 1, 2)) == {tuple(encode("first")), tuple(encode("third"))}
    with pytest.raises(InputError, match="line 1 has no field 'prompt'"):
        distinct_prompts(dataclasses.replace(config, file=str(lines)), encode, 1, 2)
    with pytest.raises(InputError, match="cannot be read"):
        distinct_prompts(dataclasses.replace(config, file=str(tmp_path / "absent")), encode, 1, 2)
    with pytest.raises(InputError, match="not set"):
        distinct_prompts(dataclasses.replace(config, file=None), encode, 1, 2)


def test_real_public_prompts(shared_data: Path) -> None:
    config = WorkloadConfig(
        builder="prompt_file",
        file=str(shared_data / "prompts" / "mt_bench_80.jsonl"),
        field="turns",
        prompt_tokens=400,
    )
    assert len(distinct_prompts(config, encode, 3, 60)) == 60
