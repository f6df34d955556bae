"""What somebody who took no part has found, asked of the package that can check signatures.

Keys and signatures belong to the review package, which imports this one and never the other way round. It is found by
the entry-point group `counterproof.reviewer`. Where none is installed nothing was reviewed and nobody can sign: that
never helps a promotion.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from counterproof.errors import SetupError

GROUP = "counterproof.reviewer"
NO_REVIEW = "NO_REVIEW"


@dataclass(frozen=True)
class Finding:
    """The state of a study's review, its signatures checked.

    open_counterexamples  None: nobody searched
    sha256                of the signed verdict, None where there is none
    """

    verdict: str
    reason: str
    open_counterexamples: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class SignedOverride:
    """A request to promote although something is missing, with every signature checked.

    waives   what may be missing, see `override.WAIVABLE`
    signers  the names of the keys that signed, one a key
    """

    study: str
    plan_sha256: str
    scope: str
    waives: tuple[str, ...]
    reason: str
    expires_utc: str
    signers: tuple[str, ...]
    sha256: str


class Reviewer(Protocol):
    """What the review package offers."""

    def finding(self, study: Path) -> Finding:
        """The state of the review of the study in this folder. Raises CounterproofError for a forged one."""

    def override(self, store: Path, file: Path) -> SignedOverride:
        """The override in `file`, by the keys registered in this store. Raises CounterproofError."""


def installed() -> Reviewer | None:
    """The installed reviewer. Raises SetupError when it cannot be loaded, or when two would have to agree."""
    points = list(importlib.metadata.entry_points(group=GROUP))
    if not points:
        return None
    if len(points) > 1:
        names = ", ".join(sorted(point.value for point in points))
        raise SetupError(f"several packages offer to check reviews: {names}", details=["keep one installed"])
    try:
        found: Reviewer = points[0].load()()
    except Exception as error:
        raise SetupError(f"the package that checks reviews cannot be loaded: {error!r}") from error
    return found


def finding_of(study: Path) -> Finding:
    """What was found about a study; NO_REVIEW where nobody looked or nobody can check."""
    reviewer = installed()
    if reviewer is None:
        return Finding(NO_REVIEW, "no package that checks reviews is installed")
    return reviewer.finding(study)
