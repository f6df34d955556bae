"""The order of arms in every block: random, from the seed, and the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from counterproof.record.canonical import sha256_bytes


def schedule(arms: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """One order per block: arms sorted by the hash of (seed, block, arm).

    In the first block the baseline runs before the candidate, since no candidate may start before a sealed
    baseline exists; the two change places where chance had it otherwise.
    """
    result = []
    for block in range(blocks):
        order = sorted(arms, key=lambda arm: sha256_bytes(f"schedule/{seed}/{block}/{arm}".encode()))
        result.append(order)
    if result and "candidate" in result[0]:
        first = result[0]
        base, other = first.index("baseline"), first.index("candidate")
        if other < base:
            first[base], first[other] = first[other], first[base]
    return result
