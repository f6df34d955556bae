"""A study's workloads: one list of requests per block, one for the equivalence phase, one to warm up with.

All prompts of a study are distinct, so that no cache can serve a block with what an earlier request left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from counterproof.plan.schema import ExperimentConfig, WorkloadConfig
from counterproof.record.canonical import sha256_bytes, sha256_file
from counterproof.workload import arrivals, replay, traces
from counterproof.workload.prompts import Encode, distinct_prompts, refuse_repeats
from counterproof.workload.sealed import SealedRequest, request_of

DUPLICATES = 3


@dataclass(frozen=True)
class StudyWorkloads:
    """`blocks[b]` are the requests of block b, the same for every arm; `equivalence` is drawn from them all.

    probes      requests of another seed, which the study's own cannot have been chosen to suit
    duplicates  requests that a probe sends twice each; nothing else has their prompts, as far as the source reaches
    facts       what the plan records beside the hashes: the trace's sha256, prompts that were made unique
    """

    blocks: tuple[tuple[SealedRequest, ...], ...]
    equivalence: tuple[SealedRequest, ...]
    warmup: tuple[SealedRequest, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    probes: tuple[SealedRequest, ...] = ()
    duplicates: tuple[SealedRequest, ...] = ()


@dataclass(frozen=True)
class _Draft:
    token_ids: tuple[int, ...]
    max_new_tokens: int
    arrival_ns: int | None = None


def build(config: ExperimentConfig, encode: Encode) -> StudyWorkloads:
    """Build all workloads of a study from its seed. Raises InputError when there are too few prompts."""
    study = config.study
    count = study.blocks + study.reserve_blocks
    facts: dict[str, Any] = {}
    if config.workload.builder == "trace":
        drafts, warm = _from_trace(config, encode, count, facts)
    else:
        drafts, warm = _from_prompts(config, encode, count)
    refuse_repeats([[d.token_ids for d in part] for part in (*drafts, warm)], config.workload.builder)
    blocks = [_requests(config, part, f"block/{block}") for block, part in enumerate(drafts)]
    total = config.workload.requests * count
    # Round robin over the blocks, so that the bitwise check sees prompts of every block.
    picked = [drafts[i % count][i // count] for i in range(min(study.equivalence_requests, total))]
    together = [_Draft(draft.token_ids, draft.max_new_tokens) for draft in picked]
    equivalence = _requests(config, together, "equivalence")
    probes, duplicates = _probes(config, encode) if study.probes else ((), ())
    warmup = _requests(config, warm, "warmup")
    return StudyWorkloads(tuple(blocks), equivalence, warmup, facts, probes, duplicates)


def _probes(
    config: ExperimentConfig, encode: Encode
) -> tuple[tuple[SealedRequest, ...], tuple[SealedRequest, ...]]:
    """The requests of the held-out seed, and those that are sent twice."""
    wanted = config.study.probe_requests or config.workload.requests
    load, study = config.workload, replace(config.study, seed=held_out_seed(config.study.seed))
    if load.builder == "trace":
        held_out = replace(config, study=study)
        drafts, again = _from_trace(held_out, encode, 1, {})
        drafts, again = [drafts[0][:wanted]], [*drafts[0][wanted:], *again]
    else:
        held_out = replace(config, study=study, workload=replace(load, requests=wanted + DUPLICATES))
        drafts, _ = _from_prompts(held_out, encode, 1)
        drafts, again = [drafts[0][:wanted]], drafts[0][wanted:]
    twice = [_Draft(draft.token_ids, 1) for draft in again[:DUPLICATES]]
    return _requests(held_out, drafts[0], "probe"), _requests(held_out, twice, "duplicates")


def held_out_seed(seed: int) -> int:
    """The seed of the probes' requests: another one, and settled by the study's own."""
    return int(sha256_bytes(f"held-out/{seed}".encode())[:8], 16) >> 1


def _from_prompts(
    config: ExperimentConfig, encode: Encode, count: int
) -> tuple[list[list[_Draft]], list[_Draft]]:
    load, seed = config.workload, config.study.seed
    total = load.requests * count
    prompts = distinct_prompts(load, encode, seed, total + load.warmup_requests)
    drafts = []
    for block in range(count):
        part = prompts[block * load.requests : (block + 1) * load.requests]
        times = arrivals.arrivals(
            load.arrival,
            load.requests,
            rate_per_s=load.rate_per_s,
            cv=load.arrival_cv,
            seed=f"{seed}/{block}",
        )
        news = _outputs(load, f"{seed}/{block}")
        drafts.append([_Draft(*each) for each in zip(part, news, times, strict=True)])
    return drafts, [_Draft(ids, load.max_new_tokens) for ids in prompts[total:]]


def _outputs(load: WorkloadConfig, seed: str) -> list[int]:
    """Tokens to generate, one number a request: all the same, or drawn evenly between the two limits."""
    if load.min_new_tokens is None:
        return [load.max_new_tokens] * load.requests
    draw = random.Random(f"outputs/{seed}")
    return [draw.randint(load.min_new_tokens, load.max_new_tokens) for _ in range(load.requests)]


def _from_trace(
    config: ExperimentConfig, encode: Encode, count: int, facts: dict[str, Any]
) -> tuple[list[list[_Draft]], list[_Draft]]:
    """Every block replays the same rows with text of its own; the warm-up replays the first rows once more."""
    load, seed = config.workload, config.study.seed
    rows = replay.read_trace(load)
    drafts, made_unique = [], 0
    seen: set[tuple[int, ...]] = set()
    for block in range(count):
        found = replay.replay(rows, load, encode, f"{seed}/{block}", seen)
        made_unique += found.made_unique
        times: Sequence[int | None] = [request.arrival_ns for request in found.requests]
        if load.arrival != arrivals.TRACE:
            times = arrivals.arrivals(
                load.arrival,
                len(rows),
                rate_per_s=load.rate_per_s,
                cv=load.arrival_cv,
                seed=f"{seed}/{block}",
            )
        pairs = zip(found.requests, times, strict=True)
        drafts.append([_Draft(r.token_ids, r.max_new_tokens, time) for r, time in pairs])
    warm = replay.replay(rows[: load.warmup_requests], load, encode, f"{seed}/warmup", seen).requests
    facts["trace_sha256"] = sha256_file(traces.locate(load.trace or ""))
    facts["made_unique"] = made_unique
    return drafts, [_Draft(request.token_ids, request.max_new_tokens) for request in warm]


def _requests(config: ExperimentConfig, drafts: Sequence[_Draft], purpose: str) -> tuple[SealedRequest, ...]:
    load = config.workload
    # Which tokens are the document is a fact of the workload, whether or not a target makes use of it.
    document = load.document_tokens if load.builder == "shared_documents" else None
    return tuple(
        request_of(
            {
                "request_index": index,
                "token_ids": draft.token_ids,
                "max_new_tokens": draft.max_new_tokens,
                "seed": _seed(config.study.seed, purpose, index),
                "temperature": load.temperature,
                "top_k": load.top_k,
                "top_p": load.top_p,
                "min_p": load.min_p,
                "repetition_penalty": load.repetition_penalty,
                "ignore_eos": load.ignore_eos,
                "arrival_ns": draft.arrival_ns,
                "document_tokens": document,
            }
        )
        for index, draft in enumerate(drafts)
    )


def _seed(study_seed: int, purpose: str, index: int) -> int:
    """A request's own sampling seed, 31 bits, from names alone."""
    return int(sha256_bytes(f"request/{study_seed}/{purpose}/{index}".encode())[:8], 16) >> 1
