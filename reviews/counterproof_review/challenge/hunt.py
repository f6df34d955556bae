"""A whole search: probe, confirm, hold against relations, shrink, and say what was tried, confirmed and not tried.

    45 % of the time  probing, with warm engines
    80 %              confirming what was nominated, by fresh runs
    88 %              metamorphic relations, on the worst cells and the plainest
    the rest          shrinking what was confirmed; the smallest cell is confirmed by fresh runs once more

Time is that of measurements. Nothing is begun when its share is used up; what was begun is ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from counterproof.record.lock import FileLock
from counterproof_review.challenge import bench as benches
from counterproof_review.challenge import declared, metamorphic, reach, summary
from counterproof_review.challenge.bench import Bench
from counterproof_review.challenge.claim import Claim
from counterproof_review.challenge.engines import Engines
from counterproof_review.challenge.fresh import FreshProbe
from counterproof_review.challenge.journaled import Journaled
from counterproof_review.challenge.probing import PAIR, WarmProbe
from counterproof_review.challenge.search import (
    ALPHA,
    Budget,
    Confirmed,
    Outcome,
    Search,
    decide,
    described,
    loss_p_value,
    run_seed,
    search,
)
from counterproof_review.challenge.shrink import Shrunk, explains, shrink
from counterproof_review.challenge.space import Cell
from counterproof_review.challenge.workload import Builder
from counterproof_review.packet import layout
from counterproof_review.packet.verify import Verification

SCHEMA = "counterproof-search/1"
SHARES = {"confirm": 0.80, "metamorphic": 0.88, "shrink": 1.0}
PROBING = 0.45
RELATED_CELLS = 3
WARM, FRESH, SMALLER, RELATION = "probe", "confirm", "shrink", "relation"


@dataclass(frozen=True)
class Options:
    """What whoever searches decides.

    folder   of the search: new, or one that holds the same search, which then goes on
    minutes  how long to measure
    seed     what the search follows from
    budget   None: as the packet declares it
    models   folders to search for the model instead of the usual ones
    """

    folder: Path
    minutes: float
    seed: int
    budget: Budget | None = None
    models: tuple[Path, ...] = ()


class Watch:
    """Told how far a search is. This one shows nothing."""

    def cell(self, done: int, total: int, phase: str, seconds: float) -> None:
        """One more cell was measured; `seconds` of measuring so far."""

    def run(self, message: dict[str, Any]) -> None:
        """A message of the measuring process of fresh runs."""


def seed_of(root: str, nonce: bytes) -> int:
    """The seed of a search, from the packet's root and a nonce of whoever searches: neither side chooses it alone."""
    digest = hashlib.sha256(b"counterproof/challenge\0" + bytes.fromhex(root) + nonce).digest()
    return int.from_bytes(digest[:6], "big")


def budget_of(report: Verification, options: Options) -> Budget:
    """The budget in force: the one given, or what the packet declares, or the default."""
    if options.budget is not None:
        return options.budget
    stated = report.documents.get(layout.CHALLENGE, {}).get("budget", {})
    known = {
        name: int(stated[name]) for name in stated if name in asdict(Budget()) and name != "refine_share"
    }
    return replace(Budget(), **known)


def hunt(
    report: Verification,
    claim: Claim,
    options: Options,
    say: Callable[[str], None],
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Search for inputs that overturn `claim`; returns the report, which is also in the folder.

    report  of a verified packet

    Raises InputError for a folder of another search, ExecutionError while another process searches there, and what `bench.prepare` and the first runs raise.
    """
    budget = budget_of(report, options)
    header = {
        "schema": SCHEMA,
        "root": report.root,
        "seed": options.seed,
        "minutes": options.minutes,
        "budget": asdict(budget),
        "claim": claim.as_dict(),
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(options.folder, what=f"the search in {options.folder}"):
        journal = Journaled(options.folder, header)
        bench = benches.prepare(report, claim, options.folder, options.models, say)
        try:
            with Engines(bench) as engines:
                hunter = _Hunter(bench, engines, journal, options, budget, watch or Watch())
                found = hunter.run()
        finally:
            benches.clear(options.folder)
        document = {**header, **found}
        summary.write(options.folder, document)
    return document


class _Hunter:
    def __init__(
        self,
        bench: Bench,
        engines: Engines,
        journal: Journaled,
        options: Options,
        budget: Budget,
        watch: Watch,
    ) -> None:
        self._bench, self._engines, self._journal = bench, engines, journal
        self._options, self._budget, self._watch = options, budget, watch
        self._reach = reach.of([engines.get(role).effective for role in PAIR], bench.claim.least_outputs)
        self._scope: dict[str, Any] = bench.report.documents[layout.SCOPE]
        least = (min(self._scope["prompt_tokens"]), min(self._scope["output_tokens"]))
        self._builder = Builder(bench.texts, bench.claim.statistic, self._reach, least)
        self._small: list[Shrunk] = []
        self._warm = WarmProbe(bench, engines, self._builder)
        fresh = FreshProbe(bench, engines, self._builder, self._warm, watch.run)
        self._probe = journal.probe(WARM, self._warm)
        self._smaller = journal.probe(SMALLER, self._warm)
        self._fresh = journal.probe(FRESH, fresh)
        self._space = declared.space_of(
            self._scope,
            bench.report.documents.get(layout.CHALLENGE),
            self._reach,
        )
        self._box = declared.box_of(self._scope, self._space)

    def run(self) -> dict[str, Any]:
        """Everything, to the report's own part."""
        found = search(
            self._space,
            self._probe,
            self._budget,
            self._options.seed,
            self._told,
            box=self._box,
            confirm=self._fresh,
            more=self._more,
        )
        related = self._relations(found)
        confirmed = [self._entry(number, one) for number, one in enumerate(found.confirmed)]
        confirmed += related["flips"]
        self._explain(confirmed)
        return {
            **found.report(),
            "confirmed": confirmed,
            "flips": sum(one["flip"] for one in confirmed),
            "says": _says(confirmed, len(found.tried)),
            "metamorphic": related["checks"],
            "space": [asdict(one) for one in self._space.dimensions],
            "scope": {name: self._scope[name] for name in ("prompt_tokens", "output_tokens", "concurrency")},
            "out_of_reach": reach.beyond(self._reach, self._space),
            "seconds": round(self._journal.seconds, 1),
            "recalled": self._journal.recalled,
            "cut_off": self._journal.cut_off,
            "counts": {**asdict(self._warm.counts), "engine_restarts": self._engines.restarts},
            "network": self._bench.network,
        }

    def _told(self, done: int, total: int, phase: str) -> None:
        self._watch.cell(done, total, phase, self._journal.seconds)

    def _more(self, phase: str) -> bool:
        return self._journal.seconds < 60 * self._options.minutes * SHARES.get(phase, PROBING)

    def _relations(self, found: Search) -> dict[str, Any]:
        """Metamorphic checks on the plainest cell and the worst ones; a relation counts as broken if it breaks twice."""
        plain: Cell = {d.name: d.plainest for d in self._space.dimensions}
        worst = sorted(found.tried, key=lambda t: (-t.outcome.wrong, t.outcome.mean))
        cells = [plain, *(t.cell for t in worst if t.cell != plain and t.outcome.gains)][:RELATED_CELLS]
        checks: list[dict[str, Any]] = []
        flips: list[dict[str, Any]] = []
        for number, cell in enumerate(cells):
            if not self._more("metamorphic"):
                checks.append({"cell": cell, "found": {}, "again": None, "why": "no time was left"})
                continue
            first = self._check(cell, 3, number)
            names = metamorphic.broken(first)
            second = self._check(cell, 4, number) if names else None
            checks.append({"cell": cell, "found": first, "again": second, "why": ""})
            both = sorted(set(names) & set(metamorphic.broken(second))) if second else []
            if both and self._bench.claim.lossless:
                flips.append(self._broken(cell, both, names))
            self._watch.cell(number + 1, len(cells), "metamorphic", self._journal.seconds)
        return {"checks": checks, "flips": flips}

    def _check(self, cell: Cell, stage: int, number: int) -> dict[str, Any]:
        seed = run_seed(self._options.seed, stage, number)

        def fresh() -> dict[str, Any]:
            if stage == 4:
                self._engines.close()
            return metamorphic.check(self._engines, self._builder, cell, seed)

        return self._journal.related(RELATION, cell, seed, fresh)

    def _broken(self, cell: Cell, names: list[str], counts: Mapping[str, int]) -> dict[str, Any]:
        return {
            "cell": cell,
            "gain": None,
            "wrong": sum(counts[name] for name in names),
            "blocks": 0,
            "p": None,
            "flip": True,
            "why": f"the candidate breaks what the baseline keeps, twice: {', '.join(names)}",
            "needed": [],
            "inside": declared.inside(self._scope, cell),
        }

    def _entry(self, number: int, one: Confirmed) -> dict[str, Any]:
        """A cell that was confirmed or not, with the smallest one that still fails in its place."""
        entry: dict[str, Any] = {**described(one), "needed": [], "inside": False}
        if one.flip and (known := self._explained(number, one.cell)) is not None:
            entry |= {"like": known.cell, "needed": list(known.needed)}
        elif one.flip:
            small = self._shrunk(number, one)
            again = self._again(number, small) if small.cell != one.cell else one
            entry |= {"measured_to_shrink": small.measured, "smallest": described(again)}
            if again.flip:
                entry |= {**described(again), "found_at": one.cell, "needed": list(small.needed)}
                entry["untested"] = list(small.untested)
                self._small += [] if small.untested else [small]
            else:
                entry["untested"] = [d.name for d in self._space.dimensions if one.cell[d.name] != d.plainest]
        entry["inside"] = declared.inside(self._scope, entry["cell"])
        return entry

    def _explained(self, number: int, cell: Cell) -> Shrunk | None:
        """An earlier flip that explains this one: shrinking would find nothing new."""
        for index, small in enumerate(self._small):
            fails = partial(self._fails, 2000 + len(self._small) * number + index)
            if explains(self._space, small, cell, fails):
                return small
        return None

    def _fails(self, number: int, cell: Cell) -> bool:
        """Whether a cell shows a loss, or a wrong output; not where no time is left to see."""
        if not self._more("shrink"):
            return False
        found = self._smaller(cell, self._budget.confirm_blocks, run_seed(self._options.seed, 6, number))
        p = loss_p_value(found.gains)
        return found.wrong > 0 or (p is not None and p < ALPHA and found.mean < 0)

    def _shrunk(self, number: int, one: Confirmed) -> Shrunk:
        done = 0

        def told(cell: Cell, blocks: int, seed: int) -> Outcome:
            nonlocal done
            done += 1
            outcome = self._smaller(cell, blocks, seed)
            self._watch.cell(done, 40, "shrink", self._journal.seconds)
            return outcome

        return shrink(
            self._space,
            one.cell,
            one.outcome,
            told,
            lambda n: run_seed(self._options.seed, 5 + number, n),
            blocks=self._budget.confirm_blocks,
            more=self._more,
            box=self._box,
        )

    def _again(self, number: int, small: Shrunk) -> Confirmed:
        seed = run_seed(self._options.seed, 6, 1000 + number)
        outcome = self._fresh(small.cell, self._budget.confirm_blocks, seed)
        return decide(small.cell, outcome, loss_p_value(outcome.gains))

    def _explain(self, confirmed: list[dict[str, Any]]) -> None:
        """What would be left of the claim's box, for every flip that lies in it and was shrunk to the end.

        Flips that need the same have the same cause, as far as anybody knows: what is left holds none of their cells.
        """
        inside = [one for one in confirmed if one["flip"] and one["inside"]]
        for one in inside:
            if one.get("untested"):
                continue
            alike = [other for other in inside if other["needed"] == one["needed"]]
            cells = [other[name] for other in alike for name in ("cell", "found_at", "like") if name in other]
            one["left_of_scope"] = declared.cut(self._scope, cells, one["needed"])


def _says(confirmed: list[dict[str, Any]], tried: int) -> str:
    flips = sum(one["flip"] for one in confirmed)
    if flips:
        return f"{flips} confirmed in {tried} cells"
    return f"none found in {tried} cells, which is not proof that there is none"
