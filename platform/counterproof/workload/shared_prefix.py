"""Prompts that share prefixes: documents with many questions, and conversations that grow turn by turn.

Prefixes are shared as token ids: the parts are tokenized apart and put together, so that what a prompt shares
with another is exactly the document, or the conversation so far.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from counterproof.errors import InputError
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload import corpus
from counterproof.workload.corpus import Encode


def shared_documents(config: WorkloadConfig, encode: Encode, seed: int) -> Iterator[tuple[int, ...]]:
    """Load by load of `config.requests` prompts: a document of `document_tokens` tokens and a question of its own.

    A load asks about `documents` documents in turn, in seeded order; no two loads have a document in common.
    """
    paragraphs = corpus.stream(encode, config.language, f"{seed}/documents")
    load = 0
    while True:
        documents = [_document(config, encode, paragraphs) for _ in range(config.documents)]
        order = [number % config.documents for number in range(config.requests)]
        random.Random(f"questions/{seed}/{load}").shuffle(order)
        for number, which in enumerate(order):
            topic, ids = documents[which]
            asked = corpus.inner(encode, corpus.question(config.language, number, topic))
            yield _within(config, (*ids, *asked))
        load += 1


def multi_turn(config: WorkloadConfig, encode: Encode, seed: int) -> Iterator[tuple[int, ...]]:
    """Load by load: conversations of `turns` turns, all first turns before all second ones.

    A turn's prompt is everything before it, a reply of real text, and a new message. The replies are given and
    not the model's own, so that both arms of a study get the same prompts.
    """
    paragraphs = corpus.stream(encode, config.language, f"{seed}/turns")
    user, assistant = corpus.ROLES[config.language]
    said = 0
    while True:
        talks = [list(corpus.beginning(encode)) for _ in range(-(-config.requests // config.turns))]
        for talk in (talks * config.turns)[: config.requests]:
            topic, reply = next(paragraphs)
            said += 1
            asked = corpus.plain_question(config.language, said, topic)
            talk += corpus.inner(encode, f"{user} {said}: {asked}\n{assistant}:")
            yield _within(config, tuple(talk))
            talk += [*reply[: config.reply_tokens], *corpus.inner(encode, "\n")]


def _document(
    config: WorkloadConfig, encode: Encode, paragraphs: Iterator[tuple[str, list[int]]]
) -> tuple[str, list[int]]:
    ids = list(corpus.beginning(encode))
    topic = ""
    while len(ids) < config.document_tokens:
        name, part = next(paragraphs)
        topic = topic or name
        ids += [*part, *corpus.inner(encode, "\n\n")]
    return topic, ids[: config.document_tokens]


def _within(config: WorkloadConfig, ids: tuple[int, ...]) -> tuple[int, ...]:
    if len(ids) > config.prompt_tokens:
        raise InputError(
            f"{config.builder}: a prompt has {len(ids)} tokens, workload.prompt_tokens allows {config.prompt_tokens}",
            details=["raise workload.prompt_tokens, or shorten the documents or the conversation"],
        )
    return ids
