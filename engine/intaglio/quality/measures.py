"""What is measured where two models read the same tokens, and how positions become one verdict.

Per position, from the logits of reference r and candidate c over the vocabulary:
KL(r || c) = sum p_r (log p_r - log p_c) in nats, max |r - c| in raw logits, whether the best token is the same
(lowest id on a tie), and -log p of the token that really follows, for both.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from intaglio.errors import ConfigError, WorkerError


@dataclass(frozen=True, slots=True)
class Quality:
    """One comparison over `positions` predictions.

    kl_mean, kl_p99     nats; p99 is the smallest value that at least 99 % of the positions do not exceed
    top1_agreement      share of positions whose best token is the same
    max_dlogit          largest difference of any raw logit
    first_divergence    (sequence, position) of the first differing best token; a greedy text would part there
    *_perplexity        exp of the mean -log p of the tokens that follow; ratio is candidate / reference
    """

    positions: int
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    max_dlogit: float
    reference_perplexity: float
    candidate_perplexity: float
    perplexity_ratio: float
    first_divergence: tuple[int, int] | None

    def facts(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(slots=True)
class Positions:
    """Per-position values, in reading order, to be summarised."""

    kl: list[float] = field(default_factory=list)
    agree: list[bool] = field(default_factory=list)
    dlogit: list[float] = field(default_factory=list)
    reference_nll: list[float] = field(default_factory=list)
    candidate_nll: list[float] = field(default_factory=list)
    first_divergence: tuple[int, int] | None = None

    def add(
        self,
        reference: np.ndarray,
        candidate: np.ndarray,
        targets: tuple[int, ...],
        place: tuple[int, int] = (0, 0),
    ) -> None:
        """Take in logits [n, vocab] of both and the n tokens that follow; `place`: sequence and first position.

        Raises ConfigError for other shapes, WorkerError for logits that are not finite.
        """
        if reference.shape != candidate.shape or len(targets) != reference.shape[0]:
            raise ConfigError(
                f"logits {reference.shape} and {candidate.shape} with {len(targets)} targets do not belong "
                "together; compare configurations of one model",
                field="model",
            )
        left, right = torch.from_numpy(reference).double(), torch.from_numpy(candidate).double()
        if not (torch.isfinite(left).all() and torch.isfinite(right).all()):
            raise WorkerError("logits are not finite; nothing can be said about quality")
        log_r, log_c = torch.log_softmax(left, -1), torch.log_softmax(right, -1)
        at = torch.tensor(targets, dtype=torch.int64)[:, None]
        same = torch.from_numpy(reference.argmax(-1) == candidate.argmax(-1))
        # Rounding may leave a sum that is zero by definition a little below zero.
        self.kl += (log_r.exp() * (log_r - log_c)).sum(-1).clamp_min(0.0).tolist()
        self.dlogit += (left - right).abs().amax(-1).tolist()
        self.agree += same.tolist()
        self.reference_nll += (-log_r.gather(1, at)[:, 0]).tolist()
        self.candidate_nll += (-log_c.gather(1, at)[:, 0]).tolist()
        if self.first_divergence is None and not same.all():
            self.first_divergence = (place[0], place[1] + int((~same).nonzero()[0]))

    def extend(self, later: Positions) -> None:
        """Take in the positions of a later sequence."""
        self.kl += later.kl
        self.agree += later.agree
        self.dlogit += later.dlogit
        self.reference_nll += later.reference_nll
        self.candidate_nll += later.candidate_nll
        if self.first_divergence is None:
            self.first_divergence = later.first_divergence

    def summary(self) -> Quality:
        """Raises ConfigError where no position was taken in."""
        count = len(self.kl)
        if not count:
            raise ConfigError("no position was compared; give a longer text", field="tokens")
        reference = math.fsum(self.reference_nll) / count
        candidate = math.fsum(self.candidate_nll) / count
        return Quality(
            positions=count,
            kl_mean=math.fsum(self.kl) / count,
            kl_p99=float(np.quantile(self.kl, 0.99, method="inverted_cdf")),
            top1_agreement=sum(self.agree) / count,
            max_dlogit=max(self.dlogit),
            reference_perplexity=_exp(reference),
            candidate_perplexity=_exp(candidate),
            perplexity_ratio=_exp(candidate - reference),
            first_divergence=self.first_divergence,
        )


def _exp(value: float) -> float:
    """exp, with the largest number instead of an overflow."""
    return math.exp(min(value, 709.0))
