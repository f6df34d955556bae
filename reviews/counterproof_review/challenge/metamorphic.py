"""Relations that hold for any correct engine, whatever its outputs are: no reference is needed to see one broken.

Outputs are compared bit by bit, on engines in invariant mode, where no companion may change a token:

    permuted   the same requests in another order give the same outputs
    repeated   a prompt that is sent twice gives the same tokens twice
    appended   a further request does not change the others
    split      two halves of a load, one after the other, give what the whole gives
    longer     asking for more tokens gives the same tokens first
    time       asking for twice the tokens does not take less time (in each of several pairs)

Chen et al., "Metamorphic testing: a review of challenges and opportunities", ACM Computing Surveys 51(1), 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterproof.errors import CounterproofError
from counterproof.workload.sealed import SealedRequest
from counterproof_review.challenge.engines import Engines
from counterproof_review.challenge.probing import PAIR
from counterproof_review.challenge.space import Cell
from counterproof_review.challenge.workload import Builder, Load

RELATIONS = ("permuted", "repeated", "appended", "split", "longer", "time")
OUTPUTS = RELATIONS[:-1]
TIME_PAIRS = 3

Texts = list[tuple[int, ...]]


def check(engines: Engines, builder: Builder, cell: Cell, seed: int) -> dict[str, Any]:
    """Hold both arms against every relation in one cell.

    Returns {arm: {relation: {"compared", "broken"}}}, or {"why": text} for an arm that has no invariant mode here or
    failed: then nothing was compared.
    """
    found: dict[str, Any] = {}
    for role in PAIR:
        try:
            found[role] = _Arm(engines, builder, role).check(cell, seed)
        except CounterproofError as error:
            found[role] = {"why": str(error)}
    return found


def broken(found: Mapping[str, Any]) -> dict[str, int]:
    """Relations that the candidate breaks and the baseline keeps, and in how many comparisons."""
    base, other = found["baseline"], found["candidate"]
    if "why" in base or "why" in other:
        return {}
    return {
        name: other[name]["broken"]
        for name in RELATIONS
        if other[name]["broken"] and not base[name]["broken"]
    }


class _Arm:
    def __init__(self, engines: Engines, builder: Builder, role: str) -> None:
        self._engines, self._builder, self._role = engines, builder, role
        self._mode = engines.exact(role)

    def check(self, cell: Cell, seed: int) -> dict[str, dict[str, int]]:
        load = self._builder.load(cell, seed, 0)
        requests, slots = load.requests, load.concurrency
        whole = self._texts(requests, slots)
        half = len(requests) // 2
        order = [int(i) for i in np.random.default_rng([seed, 2]).permutation(len(requests))]
        moved = self._texts([requests[i] for i in order], slots)
        twice = self._texts([*requests, *requests], slots)
        extra = self._builder.load(cell, seed + 1, 0).requests[:1]
        more = self._texts([*extra, *requests], slots + 1)
        parts = self._texts(requests[:half], slots) + self._texts(requests[half:], slots)
        longer = self._builder.load(cell, seed, 0, stretch=2).requests
        doubled = self._texts(longer, slots)
        first = [text[: len(short)] for text, short in zip(doubled, whole, strict=True)]
        return {
            "permuted": _compare([whole[i] for i in order], moved),
            "repeated": _compare(whole + whole, twice),
            "appended": _compare(whole, more[1:]),
            "split": _compare(whole, parts),
            "longer": _compare(whole, first),
            "time": self._time(requests, longer, slots),
        }

    def _time(
        self, requests: Sequence[SealedRequest], longer: Sequence[SealedRequest], slots: int
    ) -> dict[str, int]:
        """Pairs in which twice the tokens took less time; broken only if all did, since one may by chance."""
        faster = sum(self._seconds(longer, slots) < self._seconds(requests, slots) for _ in range(TIME_PAIRS))
        return {"compared": TIME_PAIRS, "broken": int(faster == TIME_PAIRS)}

    def _texts(self, requests: Sequence[SealedRequest], slots: int) -> Texts:
        return self._engines.run(self._role, _load(requests, slots), self._mode).texts()

    def _seconds(self, requests: Sequence[SealedRequest], slots: int) -> float:
        return self._engines.run(self._role, _load(requests, slots), self._mode).seconds


def _load(requests: Sequence[SealedRequest], slots: int) -> Load:
    numbered = tuple(replace(r, request_index=i, arrival_ns=None) for i, r in enumerate(requests))
    return Load(numbered, (), slots)


def _compare(wanted: Texts, found: Texts) -> dict[str, int]:
    """How many were compared and how many differ. A request without an answer differs from any."""
    wrong = sum(not b or a != b for a, b in zip(wanted, found, strict=True))
    return {"compared": len(wanted), "broken": wrong}
