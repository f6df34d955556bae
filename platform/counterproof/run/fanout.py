"""Blocks side by side: each whole on one machine, as many at a time as there are machines.

Blocks are taken in the order of the plan, in waves. The study is looked at between waves only, so that which blocks
an early stop has seen does not depend on which machine was faster.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from counterproof.errors import RefusedError
from counterproof.record.hardware import machine_of_block
from counterproof.run.places import Place, done
from counterproof.run.site import Site

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Share:
    """Consecutive places of one block (or of none) and the machine that measures them."""

    places: tuple[Place, ...]
    site: Site

    @property
    def block(self) -> int | None:
        return self.places[0].block


Wave = list[Share]


def waves(
    missing: Sequence[Place], sites: Sequence[Site], events: Sequence[Mapping[str, Any]]
) -> Iterator[Wave]:
    """What is missing, in waves of at most one block a machine. What belongs to no block is a wave of its own.

    A block with a sealed run goes on where it was begun. Raises RefusedError when that machine is not there.
    """
    by_machine = {site.machine: site for site in sites}
    wave: Wave = []
    for _, group in itertools.groupby(missing, key=lambda place: place.block):
        part = tuple(group)
        block = part[0].block
        if block is None:
            if wave:
                yield wave
            yield [Share(part, sites[0])]
            wave = []
            continue
        taken = {share.site.machine for share in wave}
        site = _site_of(block, by_machine, taken, events)
        if site is None:
            yield wave
            wave = []
            site = _site_of(block, by_machine, set(), events)
        if site is not None:
            wave.append(Share(part, site))
    if wave:
        yield wave


def run_wave(wave: Wave, events: Sequence[Mapping[str, Any]], run: Callable[[Place, Site], None]) -> None:
    """Run all places of a wave, each share in order. The first error ends the others after their present run; an
    interrupt ends them at once. Raises the first error."""
    if len(wave) == 1:
        for place in wave[0].places:
            run(place, wave[0].site)
        return
    first, rest = wave[0].places, wave[1:]
    if not any(place.arm == "baseline" and place.block is not None for place in done(events)):
        # The study's first timed run is a baseline; no candidate is measured before it is sealed.
        run(first[0], wave[0].site)
        first = first[1:]
    _side_by_side([Share(first, wave[0].site), *rest] if first else rest, run)


def _side_by_side(shares: Wave, run: Callable[[Place, Site], None]) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(len(shares), thread_name_prefix="fan-out") as pool:
        futures = [pool.submit(_run_share, share, run, stop) for share in shares]
        try:
            _wait(futures)
        except BaseException:
            stop.set()
            for share in shares:
                share.site.cancel()
            raise
        finally:
            stop.set()
    for future in futures:
        future.result()


def _run_share(share: Share, run: Callable[[Place, Site], None], stop: threading.Event) -> None:
    for place in share.places:
        if stop.is_set():
            return
        run(place, share.site)


def _wait(futures: list[Future[None]]) -> None:
    """Until all are done or one has failed; wakes up often enough for an interrupt to arrive."""
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in ended):
            return


def _site_of(
    block: int, sites: Mapping[str, Site], taken: set[str], events: Sequence[Mapping[str, Any]]
) -> Site | None:
    """A machine for the block that is free in this wave; None if the one it needs is not, or none is."""
    begun = machine_of_block(events, block)
    if begun is None:
        return next((site for name, site in sites.items() if name not in taken), None)
    if begun not in sites:
        raise _refused(block, begun, sites)
    return None if begun in taken else sites[begun]


def refuse_other_machine(block: int | None, machine: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Raise RefusedError when the block was begun on another machine."""
    begun = machine_of_block(events, block)
    if block is not None and begun is not None and begun != machine:
        raise _refused(block, begun, [machine])


def _refused(block: int, begun: str, machines: Iterable[str]) -> RefusedError:
    return RefusedError(
        f"refused: block {block} was begun on machine {begun}, and a block is measured whole on one machine",
        details=[
            f"machines at hand: {', '.join(machines)}",
            "go on where it was begun, or start another study",
        ],
    )
