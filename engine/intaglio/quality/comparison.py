"""Two configurations of one model read the same sequences; what differs between their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from intaglio.config import EngineConfig, Scalar
from intaglio.errors import ConfigError
from intaglio.quality.measures import Positions, Quality
from intaglio.quality.scorer import CHUNK, Scorer

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, sequence by sequence, and what really ran on either side."""

    parts: tuple[Positions, ...]
    reference: dict[str, Scalar]
    candidate: dict[str, Scalar]

    @property
    def total(self) -> Quality:
        """Over all sequences."""
        return self.over(range(len(self.parts)))

    @property
    def each(self) -> tuple[Quality, ...]:
        """Every sequence by itself."""
        return tuple(part.summary() for part in self.parts)

    def over(self, numbers: Iterable[int]) -> Quality:
        """Over the sequences of these numbers. Raises ConfigError for none."""
        together = Positions()
        for number in numbers:
            together.extend(self.parts[number])
        return together.summary()


def compare(
    reference: EngineConfig,
    candidate: EngineConfig,
    sequences: Sequence[Sequence[int]],
    *,
    chunk: int = CHUNK,
    skip: Sequence[int] = (),
    tell: Tell | None = None,
) -> Comparison:
    """Teacher forcing: both read every sequence, and predict each token from those before it.

    sequences   token ids, at least two each
    skip        per sequence, how many of its first predictions do not count (those inside a prompt); default none
    tell        called with (predictions made, predictions in all)

    Both models are in memory at once, so that logits are compared chunk by chunk and never kept. Raises
    ConfigError, ModelError, NumericsError or WorkerError.
    """
    left_out = tuple(skip) or (0,) * len(sequences)
    if not sequences or len(left_out) != len(sequences):
        raise ConfigError("give at least one sequence, and one skip for each", field="tokens")
    for number, (sequence, skipped) in enumerate(zip(sequences, left_out, strict=True)):
        if len(sequence) - 1 <= skipped or skipped < 0:
            raise ConfigError(
                f"sequence {number} of {len(sequence)} tokens has nothing to predict after {skipped}",
                field="tokens",
            )
    longest = max(len(sequence) for sequence in sequences) - 1
    with (
        Scorer(reference, longest=longest, chunk=chunk) as left,
        Scorer(candidate, longest=longest, chunk=chunk) as right,
    ):
        _same_vocabulary(left, right)
        return _read(left, right, sequences, left_out, tell)


def _read(
    left: Scorer,
    right: Scorer,
    sequences: Sequence[Sequence[int]],
    left_out: Sequence[int],
    tell: Tell | None,
) -> Comparison:
    parts: list[Positions] = []
    done, in_all = 0, sum(len(sequence) - 1 for sequence in sequences)
    for number, (sequence, skipped) in enumerate(zip(sequences, left_out, strict=True)):
        own, start = Positions(), 0
        for ours, theirs in zip(left.score(sequence[:-1]), right.score(sequence[:-1]), strict=True):
            first = min(max(skipped - start, 0), len(ours))
            targets = tuple(sequence[start + first + 1 : start + len(ours) + 1])
            if targets:
                own.add(ours[first:], theirs[first:], targets, (number, start + first))
            start += len(ours)
            if tell is not None:
                tell(done + start, in_all)
        done += start
        parts.append(own)
    return Comparison(tuple(parts), left.effective_config(), right.effective_config())


def _same_vocabulary(left: Scorer, right: Scorer) -> None:
    if left.facts.vocab_size != right.facts.vocab_size:
        raise ConfigError(
            f"the reference has {left.facts.vocab_size} tokens and the candidate {right.facts.vocab_size}; "
            "compare models of one vocabulary",
            field="model",
        )
