"""What a challenge attacks: which opaque arm is which, by what metric, and whether outputs may change.

Known only where the results lie open: in an open packet, or after REVEAL in a review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterproof.errors import InputError
from counterproof.measure.metrics import METRICS
from counterproof_review.packet import layout
from counterproof_review.packet.verify import Verification

ROLES = ("baseline", "candidate", "again")
BETWEEN_TOKENS = ("tpot_ms", "itl_ms")


@dataclass(frozen=True)
class Claim:
    """arms: {"baseline", "candidate", "again"} -> opaque name; lossless: outputs must stay the same."""

    arms: Mapping[str, str]
    metric: str
    statistic: str
    better: str
    lossless: bool

    @property
    def sign(self) -> float:
        """What turns ln(candidate / baseline) into a gain."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def least_outputs(self) -> int:
        """Fewest output tokens for which the metric exists."""
        return 2 if self.metric in BETWEEN_TOKENS else 1

    def as_dict(self) -> dict[str, Any]:
        """For the report, which nobody has to be kept from reading."""
        return {
            "metric": self.metric,
            "statistic": self.statistic,
            "better": self.better,
            "lossless": self.lossless,
            "arms": dict(self.arms),
        }


def of_packet(report: Verification) -> Claim:
    """The claim of an open packet. Raises InputError for one whose results are sealed."""
    if report.sealed:
        raise InputError(
            "the results of this packet are sealed, so nobody can say which arm the candidate is",
            details=[
                "challenge it in its review, after the reveal: counterproof review challenge --review R"
            ],
        )
    return of_results(report, report.documents[layout.RESULTS])


def of_results(report: Verification, opened: Mapping[str, Any]) -> Claim:
    """The claim from opened results: those of an open packet, or the content of the seal."""
    primary = report.documents[layout.PREREG]["primary"]
    metric = str(primary["metric"])
    known = METRICS[metric].better if metric in METRICS else str(opened["primary"].get("better"))
    return Claim(
        {role: opened["arms"][role] for role in ROLES},
        metric,
        str(primary["statistic"]),
        known,
        bool((opened["factor"] or {}).get("lossless")),
    )
