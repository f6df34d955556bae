"""Block traffic as the scheduler sees it: preempted requests that go to host memory and back, and contexts.

Both only ask for moves; these travel with the next step's plan, and what became of them comes back with its result.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import BlockMove, MoveResult
from intaglio.state.block_pools import BlockPools
from intaglio.state.context_cache import ContextCache
from intaglio.state.host_tier import HostTier
from intaglio.state.transfer import Transfers
from intaglio.telemetry import Telemetry


class BlockTraffic:
    """Moves between steps and the workers. tier: None without host memory; contexts: None without a context cache.

    in_flight: the step that is being computed, or None.
    """

    def __init__(
        self, pools: BlockPools, telemetry: Telemetry, *, host_slots: int = 0, contexts: bool = False
    ) -> None:
        self.transfers = Transfers()
        self.tier = HostTier(host_slots, pools, self.transfers, telemetry) if host_slots else None
        self.contexts = (
            ContextCache(pools, self.transfers, telemetry, lambda: self.in_flight) if contexts else None
        )
        self.in_flight: int | None = None
        self._pools = pools

    @property
    def pending(self) -> bool:
        """Whether moves wait for a step, even if no request does."""
        return self.transfers.pending

    def bind(self, arrived: Callable[[Sequence], None], lost: Callable[[Sequence], None]) -> None:
        """Who is told that a request's blocks are back on the device, or that their copy cannot be used."""
        if self.tier is not None:
            self.tier.arrived, self.tier.lost = arrived, lost

    def make_room(self, count: int, keep: Sequence | None = None) -> None:
        """Have unused contexts give up blocks until `count` can be had.

        keep: a request that is about to share its context, which is spared. One that comes back from host memory
        shares nothing, and might wait for ever for the room that its own context takes.
        """
        if self.contexts is not None and count > self._pools.available:
            sharing = keep is not None and not self.swapped(keep)
            self.contexts.reclaim(count, keep.context if keep is not None and sharing else None)

    def swap_out(self, sequence: Sequence) -> bool:
        """Have a preempted request's blocks copied out. False: it has to recompute them."""
        return self.tier is not None and self.tier.swap_out(sequence)

    def swapped(self, sequence: Sequence) -> bool:
        """Whether the request is to be brought back from host memory instead of being computed."""
        return self.tier is not None and self.tier.holds(sequence)

    def ready(self, sequence: Sequence) -> bool:
        """Whether bringing it back can begin."""
        return self.tier is not None and self.tier.ready(sequence)

    def bring_back(self, sequence: Sequence, blocks: int) -> None:
        """Begin it, with room for `blocks` blocks in all."""
        if self.tier is not None:
            self.tier.swap_in(sequence, blocks)

    def shared(self, sequence: Sequence) -> int:
        """Blocks that a request which is to run again shares with its context instead of taking them."""
        if self.contexts is None or self.swapped(sequence):
            return 0  # what comes back from host memory comes back whole
        return self.contexts.held(sequence)

    def place(self, sequence: Sequence) -> bool:
        """Give a starting request its context's blocks. False: not there yet, the request waits a step."""
        return self.contexts is None or self.contexts.place(sequence)

    def ended(self, sequence: Sequence) -> None:
        """The request is over, and its blocks are about to be released."""
        if sequence.capture is not None:
            sequence.capture(sequence)
        if self.tier is not None:
            self.tier.drop(sequence)
        if self.contexts is not None:
            self.contexts.ended(sequence)

    def take(self, step: int) -> tuple[BlockMove, ...]:
        """The moves of step `step`, which is about to be computed."""
        self.in_flight = step
        return self.transfers.take(step)

    def complete(self, step: int, moved: Items[MoveResult]) -> None:
        """The step is over."""
        self.in_flight = None
        self.transfers.complete(step, moved)

    def fail(self, step: int, reason: str) -> None:
        """The step did not come to an end."""
        self.in_flight = None
        self.transfers.fail(step, reason)

    def tables(self) -> list[Items[Items[int]]]:
        """References to blocks that no request's table holds."""
        tier = self.tier.tables() if self.tier is not None else []
        return tier + (self.contexts.tables() if self.contexts is not None else [])
