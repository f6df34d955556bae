"""Builders whose prompts share prefixes, questions in two languages, and prompts that may never repeat."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof.errors import InputError
from counterproof.plan import prereg
from counterproof.plan.schema import ExperimentConfig, WorkloadConfig
from counterproof.workload import build, corpus
from counterproof.workload.prompts import distinct_prompts, refuse_repeats
from intaglio.intake.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Path(__file__).resolve().parents[3] / "data" / "models" / "tiny")


@pytest.fixture(scope="module")
def encode(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: tokenizer.encode(text)


def config_of(*overrides: str) -> ExperimentConfig:
    return prereg.compose_arms("kv_cache", [*overrides, "study.reserve_blocks=0"]).baseline.config


def test_documents_are_shared_inside_a_block_and_by_no_two_blocks(encode: Callable[[str], list[int]]) -> None:
    config = config_of("workload=shared_documents")
    load = config.workload
    found = build.build(config, encode)
    heads = []
    for block in found.blocks:
        prompts = [request.token_ids for request in block]
        assert len(set(prompts)) == load.requests
        assert all(load.document_tokens < len(ids) <= load.prompt_tokens for ids in prompts)
        counts = Counter(ids[: load.document_tokens] for ids in prompts)
        assert sorted(counts.values()) == [8, 8]
        heads += list(counts)
    assert len(set(heads)) == load.documents * config.study.blocks
    assert found == build.build(config, encode)


def test_a_turn_repeats_the_whole_conversation_before_it(encode: Callable[[str], list[int]]) -> None:
    config = config_of("workload=multi_turn")
    load = config.workload
    talks = load.requests // load.turns
    for block in build.build(config, encode).blocks:
        prompts = [request.token_ids for request in block]
        for number in range(talks, load.requests):
            before, now = prompts[number - talks], prompts[number]
            assert now[: len(before)] == before
            assert len(now) > len(before)
        assert len({ids[:24] for ids in prompts}) == talks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_questions_are_in_their_language_distinct_and_bounded(
    tokenizer: Tokenizer, encode: Callable[[str], list[int]], language: str
) -> None:
    config = WorkloadConfig(builder="passage_questions", language=language, prompt_tokens=250)
    prompts = distinct_prompts(config, encode, 3, 120)
    assert len(set(prompts)) == 120
    assert all(len(ids) <= 250 for ids in prompts)
    texts = [tokenizer.decode(ids) for ids in prompts]
    word = {"en": "Question", "zh": "问题"}[language]
    assert all(word in text for text in texts)
    chinese = sum("\u4e00" <= sign <= "\u9fff" for text in texts for sign in text)
    assert (chinese > 5_000) == (language == "zh")
    with pytest.raises(InputError, match="has no text"):
        corpus.passages("fr")


def test_the_chinese_passages_are_whole() -> None:
    found = corpus.passages("zh")
    assert len({topic for topic, _ in found}) == len(found) >= 40
    assert all(len(text) >= 60 and text.endswith("。") for _, text in found)


def test_a_prompt_that_occurs_twice_in_a_study_is_refused() -> None:
    refuse_repeats([[(1, 2), (3,)], [(4,)]], "b")
    with pytest.raises(InputError, match="in blocks 0 and 1"):
        refuse_repeats([[(1, 2), (3,)], [(4,), (3,)]], "b")
    with pytest.raises(InputError, match="in blocks 1 and 1"):
        refuse_repeats([[(1,)], [(4,), (4,)]], "b")


def test_a_prompt_over_the_limit_is_refused_and_not_cut(encode: Callable[[str], list[int]]) -> None:
    load = dataclasses.replace(config_of("workload=multi_turn").workload, prompt_tokens=60)
    with pytest.raises(InputError, match=r"workload\.prompt_tokens allows 60"):
        distinct_prompts(load, encode, 1, 12)
