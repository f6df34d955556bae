"""Tokens chosen by the native kernels: sample specs into their structures, and choices out of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch

from intaglio.compute.native.library import Context
from intaglio.compute.native.structs import IgChoice
from intaglio.intake.step_plan import SampleSpec
from intaglio.output.sampler import Choice, choose_token

_SEED_MASK = (1 << 64) - 1


def choose(context: Context, logits: torch.Tensor, picks: Sequence[tuple[int, SampleSpec]]) -> list[Choice]:
    """One choice per (row of logits [rows, vocab], spec): the sampler's own, found in one call for all rows."""
    jobs = (IgChoice * len(picks))()
    vocab = logits.shape[1]
    kept = [_fill(job, row, spec, vocab) for job, (row, spec) in zip(jobs, picks)]
    context.choose(logits, jobs)
    return [
        _choice(job, room) if job.token >= 0 else choose_token(logits[row], spec)
        for job, room, (row, spec) in zip(jobs, kept, picks)
    ]


class _Room:
    """What a structure points to, alive as long as this is."""

    __slots__ = ("history", "ids", "logprobs")

    def __init__(self, history: array[int], count: int) -> None:
        self.history = history
        self.ids, self.logprobs = array("q", bytes(8 * count)), array("d", bytes(8 * count))


def _fill(job: IgChoice, row: int, spec: SampleSpec, vocab: int) -> _Room | None:
    job.row, job.temperature, job.repetition_penalty = row, spec.temperature, spec.repetition_penalty
    if spec.temperature > 0.0:
        job.top_k, job.top_p, job.min_p = spec.top_k, spec.top_p, spec.min_p
        job.seed = spec.seed & _SEED_MASK
        job.sample_index, job.position = spec.sample_index, spec.position
    if spec.repetition_penalty == 1.0 and spec.logprobs is None:
        return None
    penalised = spec.repetition_penalty != 1.0
    count = min(max(spec.logprobs or 0, 0), vocab)
    room = _Room(array("i", spec.history if penalised else ()), count)
    job.history, job.history_count = room.history.buffer_info()
    job.top_ids, job.top_logprobs = room.ids.buffer_info()[0], room.logprobs.buffer_info()[0]
    job.top_count = count
    return room


def _choice(job: IgChoice, room: _Room | None) -> Choice:
    top: tuple[tuple[int, float], ...] = ()
    if room is not None and job.top_count:
        top = tuple(zip(room.ids, room.logprobs, strict=True))
    margin = job.margin
    return Choice(job.token, job.logprob, margin if math.isfinite(margin) else math.inf, top)
