"""Choose a token from a row of fp32 logits. Each row is handled alone, so no batch can change a choice.

Order: repetition penalty, temperature, top-k, top-p, min-p, then one draw by inverse transform over the kept tokens
(best first, lower id first among equals). Log-probabilities and margins are of the raw logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from intaglio.intake.step_plan import SampleSpec
from intaglio.output.random import Purpose, uniform

# Most vocabularies' mass lies in few tokens: a partial sort of this many usually settles top-p.
_PARTIAL = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen token. `error` is set, and the rest void, where the logits are not finite."""

    token: int = -1
    logprob: float = 0.0
    margin: float = 0.0
    top: tuple[tuple[int, float], ...] = ()
    error: str = ""


def sample(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[Choice]:
    """One choice per row of logits [rows, vocab]; specs[i] belongs to row i."""
    return [choose_token(logits[i], spec) for i, spec in enumerate(specs)]


def choose_token(row: torch.Tensor, spec: SampleSpec) -> Choice:
    """Choose from one row [vocab]."""
    best = _argmax(row)
    peak = row[best].item()
    # A NaN anywhere is taken for the maximum; +inf anywhere too; -inf everywhere leaves no distribution.
    if not math.isfinite(peak):
        return Choice(error=f"the model's logits are not finite (largest: {peak})")
    normalised = torch.log_softmax(row, 0)
    token = best
    if spec.temperature > 0.0:
        token = _draw(_penalised(row, spec), spec)
    elif spec.repetition_penalty != 1.0:
        token = _argmax(_penalised(row, spec))
    return Choice(
        token=token,
        logprob=normalised[token].item(),
        margin=_margin(row, best, peak),
        top=() if spec.logprobs is None else _best(row, normalised, spec.logprobs),
    )


def kept_tokens(row: torch.Tensor, spec: SampleSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that temperature, top-k, top-p and min-p leave, and their probabilities (fp64), not renormalised.

    Best first, lower ids first among equals; in order of ids where nothing is filtered.
    """
    scaled = row.double() / spec.temperature
    if spec.top_k > 0:
        ids = _top_ids(scaled, min(spec.top_k, row.shape[0]))
        probs = torch.softmax(scaled[ids], 0)
        return _trim(ids, probs, spec)
    if spec.top_p >= 1.0 and spec.min_p <= 0.0:
        return torch.arange(row.shape[0], device=row.device), torch.softmax(scaled, 0)
    probs = torch.softmax(scaled, 0)
    if row.shape[0] > 4 * _PARTIAL:
        ids = _top_ids(scaled, _PARTIAL)
        head = probs[ids]
        if _settled(head, spec):
            return _trim(ids, head, spec)
    ids = torch.sort(scaled, descending=True, stable=True).indices
    return _trim(ids, probs[ids], spec)


def _draw(row: torch.Tensor, spec: SampleSpec) -> int:
    ids, probs = kept_tokens(row, spec)
    cumulative = probs.cumsum(0)
    u = uniform(spec.seed, spec.sample_index, spec.position, Purpose.SAMPLE)
    at = int(torch.searchsorted(cumulative, u * cumulative[-1].item(), right=True).item())
    at = min(at, ids.shape[0] - 1)
    # Rounding at the very end could land on a token of probability zero; step back to one that is possible.
    while at > 0 and probs[at].item() == 0.0:
        at -= 1
    return int(ids[at].item())


def _penalised(row: torch.Tensor, spec: SampleSpec) -> torch.Tensor:
    if spec.repetition_penalty == 1.0 or not spec.history:
        return row
    seen = torch.tensor(sorted(set(spec.history)), dtype=torch.int64, device=row.device)
    values = row[seen]
    changed = torch.where(values > 0, values / spec.repetition_penalty, values * spec.repetition_penalty)
    return row.index_copy(0, seen, changed)


def _top_ids(scores: torch.Tensor, k: int) -> torch.Tensor:
    """The k best ids, best first, lower ids first among equals (a plain topk promises no order of ties)."""
    floor = torch.topk(scores, k).values[-1]
    ids = torch.nonzero(scores >= floor).flatten()
    order = torch.sort(scores[ids], descending=True, stable=True).indices
    return ids[order[:k]]


def _settled(head: torch.Tensor, spec: SampleSpec) -> bool:
    """Whether the best tokens alone decide top-p and min-p: what follows them would be dropped anyway."""
    by_p = spec.top_p < 1.0 and head.sum().item() >= spec.top_p
    by_min = spec.min_p > 0.0 and (head[-1] < spec.min_p * head[0]).item()
    return bool(by_p or by_min)


def _trim(ids: torch.Tensor, probs: torch.Tensor, spec: SampleSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top-p, then min-p, to tokens sorted best first. The token that crosses top-p stays."""
    keep = ids.shape[0]
    if spec.top_p < 1.0:
        before = probs.cumsum(0) - probs
        keep = max(1, int((before < spec.top_p).sum().item()))
    if spec.min_p > 0.0:
        keep = max(1, min(keep, int((probs >= spec.min_p * probs[0]).sum().item())))
    return ids[:keep], probs[:keep]


def _argmax(row: torch.Tensor) -> int:
    """The lowest id of the largest logit; a NaN counts as larger than everything."""
    if row.device.type == "cpu":
        return int(row.numpy().argmax())  # a tenth of the time of torch's argmax on one row
    return int(row.argmax().item())


def _margin(row: torch.Tensor, best: int, peak: float) -> float:
    others = [part.amax().item() for part in (row[:best], row[best + 1 :]) if part.shape[0]]
    return peak - max(others) if others else math.inf


def _best(row: torch.Tensor, normalised: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The best tokens by raw logit, lower ids first among equals, with their log-probabilities."""
    if count < 1:
        return ()
    ids = _top_ids(row, min(count, row.shape[0]))
    return tuple(zip(ids.tolist(), normalised[ids].tolist(), strict=True))
