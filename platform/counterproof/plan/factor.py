"""One variable, enforced: the difference between two compositions must be the declared factor and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from counterproof.errors import RefusedError
from counterproof.plan.compose import Composition
from counterproof.plan.schema import FactorConfig
from counterproof.record.difference import Difference, differences

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class FactorDiff:
    """An accepted difference.

    changed  the leaves set differently: the factor, or its declared bundle
    fanned   further leaves whose value follows, each an interpolation of a changed one
    """

    changed: tuple[Difference, ...]
    fanned: tuple[Difference, ...]

    @property
    def resolved(self) -> tuple[Difference, ...]:
        """All leaves whose value differs, by path."""
        return tuple(sorted((*self.changed, *self.fanned), key=lambda difference: difference.path))


def single_variable(baseline: Composition, candidate: Composition, factor: FactorConfig) -> FactorDiff:
    """Compare the unresolved trees leaf by leaf, type-strict, and the resolved ones for what follows.

    Raises RefusedError with the list of differences for: no difference, another or a second changed key, an
    undeclared leaf of a bundle, a resolved change that is not an interpolation of the factor.
    """
    changed = differences(baseline.unresolved, candidate.unresolved)
    if not changed:
        raise RefusedError(
            "refused: the candidate is the baseline, nothing differs",
            details=[
                f"{factor.path} has the same value in both",
                "only a calibration may compare equal arms",
            ],
        )
    allowed = {factor.path} if factor.kind == "leaf" else set(factor.bundle)
    foreign = [difference for difference in changed if difference.path not in allowed]
    if foreign:
        number = len(changed)
        raise RefusedError(
            f"refused: the candidate changes {number} {'key' if number == 1 else 'keys'}, "
            f"but {_declared(factor)} is what this experiment varies",
            details=[f"{difference}{_mark(difference, allowed)}" for difference in changed],
        )
    if factor.kind == "group" and (missing := allowed - {difference.path for difference in changed}):
        raise RefusedError(
            "refused: the declared bundle lists leaves that its options do not set differently",
            details=sorted(missing),
        )
    changed_paths = {difference.path for difference in changed}
    resolved = differences(baseline.resolved, candidate.resolved)
    fanned = tuple(difference for difference in resolved if difference.path not in changed_paths)
    loose = [d for d in fanned if not _follows(d.path, candidate, changed_paths)]
    if loose:
        raise RefusedError(
            "refused: values change that do not follow from the factor",
            details=[str(difference) for difference in loose],
        )
    return FactorDiff(tuple(changed), fanned)


def effective_exceptions(factor: FactorConfig, diff: FactorDiff) -> list[str]:
    """Effective fields that may differ: the factor's own leaves, what follows them, what it declared to move."""
    own = [d.path.removeprefix("engine.") for d in diff.resolved if d.path.startswith("engine.")]
    return sorted({*own, *factor.moves.effective})


def _follows(path: str, candidate: Composition, changed: set[str]) -> bool:
    """Whether the leaf is an interpolation that leads to a changed leaf, directly or through others."""
    pending, seen = [path], set()
    while pending:
        value = candidate.unresolved.get(pending.pop())
        for target in _REFERENCE.findall(value) if isinstance(value, str) else []:
            if target in changed:
                return True
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return False


def _declared(factor: FactorConfig) -> str:
    return factor.path if factor.kind == "leaf" else f"{factor.path} (with its bundle)"


def _mark(difference: Difference, allowed: set[str]) -> str:
    return "" if difference.path in allowed else "   (not the factor)"
