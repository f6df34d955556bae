"""What the store's chain of study starts says about a claim: how many studies began, and which of them are gone."""

from __future__ import annotations

from typing import Any

from counterproof.record import starts
from counterproof.record.store import Store


def facts(store: Store, experiment: str) -> dict[str, Any]:
    """As PREREG and ISSUE state it: the chain's head, all starts, those of this experiment, and the vanished ones.

    Raises EvidenceError for a chain that was edited or cut in the middle.
    """
    found = starts.read(store.root)
    gone = starts.vanished(store)
    return {
        "head": found[-1].sha256 if found else starts.FIRST,
        "count": len(found),
        "of_experiment": sum(one.experiment == experiment for one in found),
        "vanished": len(gone),
        "vanished_of_experiment": sum(one.experiment == experiment for one in gone),
    }
