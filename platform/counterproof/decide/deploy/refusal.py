"""Why a deployment is refused: a stable code, the reason, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterproof.errors import RefusedError


@dataclass(frozen=True)
class Refusal:
    """One reason. `code` is stable, for scripts; `fix` says what would help."""

    code: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}; {self.fix}"


class DeploymentRefusedError(RefusedError):
    """Nothing was changed. `refusals` lists every reason."""

    def __init__(self, what: str, refusals: Sequence[Refusal]) -> None:
        super().__init__(f"{what} is refused", details=[str(refusal) for refusal in refusals])
        self.refusals = tuple(refusals)
