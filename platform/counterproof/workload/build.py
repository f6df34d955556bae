"""A study's workloads: one list of requests per block, one for the equivalence phase, one to warm up with.

All prompts of a study are distinct, so that no cache can serve a block with what an earlier request left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterproof.plan.schema import ExperimentConfig
from counterproof.record.canonical import sha256_bytes
from counterproof.workload.prompts import Encode, distinct_prompts
from counterproof.workload.sealed import SealedRequest


@dataclass(frozen=True)
class StudyWorkloads:
    """`blocks[b]` are the requests of block b, the same for every arm; `equivalence` is drawn from them all."""

    blocks: tuple[tuple[SealedRequest, ...], ...]
    equivalence: tuple[SealedRequest, ...]
    warmup: tuple[SealedRequest, ...]


def build(config: ExperimentConfig, encode: Encode) -> StudyWorkloads:
    """Build all workloads of a study from its seed. Raises InputError when there are too few prompts."""
    load, study = config.workload, config.study
    count = study.blocks + study.reserve_blocks
    total = load.requests * count
    prompts = distinct_prompts(load, encode, study.seed, total + load.warmup_requests)
    blocks = []
    for block in range(count):
        part = prompts[block * load.requests : (block + 1) * load.requests]
        blocks.append(_requests(config, part, f"block/{block}"))
    # Round robin over the blocks, so that the bitwise check sees prompts of every block.
    picked = [
        blocks[i % study.blocks][i // study.blocks] for i in range(min(study.equivalence_requests, total))
    ]
    equivalence = _requests(config, [request.token_ids for request in picked], "equivalence")
    warmup = _requests(config, prompts[total:], "warmup")
    return StudyWorkloads(tuple(blocks), equivalence, warmup)


def _requests(
    config: ExperimentConfig, prompts: Sequence[tuple[int, ...]], purpose: str
) -> tuple[SealedRequest, ...]:
    load = config.workload
    return tuple(
        SealedRequest(
            request_index=index,
            token_ids=ids,
            max_new_tokens=load.max_new_tokens,
            seed=_seed(config.study.seed, purpose, index),
            temperature=load.temperature,
            top_k=load.top_k,
            top_p=load.top_p,
            min_p=load.min_p,
            repetition_penalty=load.repetition_penalty,
            ignore_eos=load.ignore_eos,
        )
        for index, ids in enumerate(prompts)
    )


def _seed(study_seed: int, purpose: str, index: int) -> int:
    """A request's own sampling seed, 31 bits, from names alone."""
    return int(sha256_bytes(f"request/{study_seed}/{purpose}/{index}".encode())[:8], 16) >> 1
