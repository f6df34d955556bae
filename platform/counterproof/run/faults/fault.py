"""What a fault is, and what is recorded of it. Others are added by installed packages, see `registry`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from counterproof.run.faults.bench import Bench

RECOVERED, HONEST, NOT_RECOVERED = "recovered", "ended honestly", "not recovered"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Outcome:
    """What a fault did. None: not measured, or there is no such thing; `detail` says which.

    outcome            recovered (everything that was planned is there), ended honestly (it is not, and the record
                       says so), not recovered, or not applicable
    detected_after_s   from the fault to the moment at which the journal knows
    recovered_after_s  from the fault to the sealed record
    requests_lost      requests of the struck attempt that had been answered, or that failed
    tokens_recomputed  tokens that were computed again because of it
    outputs_identical  whether the answers are those of an undisturbed run, token by token
    """

    outcome: str
    detail: str
    detected_after_s: float | None = None
    recovered_after_s: float | None = None
    requests_lost: int | None = None
    tokens_recomputed: int | None = None
    outputs_identical: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the record; times to the millisecond."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}


class Fault(Protocol):
    """One kind of fault."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """What happens, in one sentence."""
        ...

    def strike(self, bench: Bench) -> Outcome:
        """Let it happen to a study of the bench. A CounterproofError counts as not recovered."""
        ...
