"""What a request can take over instead of computing it: prefixes in the cache, and prefixes that are on their way.

When a running request is about to compute the blocks that a waiting one needs, the waiting one is better started
afterwards: together they compute the prefix once. A start is put off only while such a request runs and for a
sizeable part of the own work, and at most as many steps as the waiting request has tokens; a request that is
aborted, preempted or fails takes its promises with it. Promises are found by key, so never across tenants.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from intaglio.intake.sequence import Sequence
from intaglio.state.block_key import CacheIdentity, Hasher, KeyChain, sha256
from intaglio.state.prefix_cache import CachedBlock, PrefixCache
from intaglio.telemetry import Counters

# A start is put off if that saves at least this part of the request's own computation: less is not worth a step.
_WORTH = 0.25


class PrefixReuse:
    """The prefix cache as the scheduler sees it: per request instead of per block."""

    def __init__(
        self,
        cache: PrefixCache,
        identity: CacheIdentity,
        counters: Counters,
        hasher: Hasher = sha256,
    ) -> None:
        self.cache = cache
        self._identity = identity
        self._counters = counters
        self._hasher = hasher
        self._promised: dict[bytes, Sequence] = {}

    def find(self, sequence: Sequence) -> list[CachedBlock] | None:
        """The cached blocks that a waiting request would start with; None if it had better wait for more.

        At least the last token is left to be computed: its logits are not in the cache.
        """
        chain = self._chain(sequence)
        limit = (len(sequence.tokens) - 1) // self._identity.block_tokens
        chain.extend(sequence.tokens, limit)
        found = self.cache.match(chain, limit)
        if self._promised and sequence.deferrals < len(sequence.tokens):
            coming = self._coming(chain, len(found), limit) * self._identity.block_tokens
            own = len(sequence.tokens) - len(found) * self._identity.block_tokens
            if coming and coming >= _WORTH * own:
                return None
        return found

    def put_off(self, sequence: Sequence) -> None:
        """`find` said to wait, and the step is planned without the request."""
        sequence.deferrals += 1
        self._counters.add("prefix_deferrals")

    def start(self, sequence: Sequence, found: Items[CachedBlock]) -> None:
        """Give a starting request the cached blocks, and promise what it computes to those who wait for it."""
        chain = self._chain(sequence)
        size = self._identity.block_tokens
        if found:
            tables, generations = self.cache.take(chain, found)
            sequence.grow(tables, generations)
        hit = len(found) * size
        sequence.computed = hit
        if not sequence.preemptions:
            sequence.cached_tokens += min(hit, sequence.prompt_len)
        self._counters.add("prefix_lookup_tokens", len(sequence.tokens))
        self._counters.add("prefix_hit_tokens", hit)
        full = len(sequence.tokens) // size
        chain.extend(sequence.tokens, full)
        chain.promised = full
        for key in chain.keys[len(found) : full]:
            self._promised.setdefault(key, sequence)

    def computed(self, sequence: Sequence, before: int) -> None:
        """The step that computed the request's tokens `before` .. `sequence.computed` is over."""
        size = self._identity.block_tokens
        first, full = before // size, sequence.computed // size
        chain = sequence.chain
        if full == first or chain is None:
            return
        chain.extend(sequence.tokens, full)
        self.cache.commit(chain, sequence.tenant, sequence.block_tables, sequence.generations, full)
        if first < chain.promised:
            self._keep_promises(sequence, chain.keys[first : min(full, chain.promised)])

    def leave(self, sequence: Sequence) -> None:
        """The request gives up its blocks, whether it ends or comes back."""
        chain = sequence.chain
        if chain is None:
            return
        if chain.promised:
            first = sequence.computed // self._identity.block_tokens
            self._keep_promises(sequence, chain.keys[first : chain.promised])
            chain.promised = 0
        self.cache.leave(chain)

    def _chain(self, sequence: Sequence) -> KeyChain:
        if sequence.chain is None:
            root = self._identity.root(sequence.tenant)
            sequence.chain = KeyChain(root, self._identity.block_tokens, self._hasher)
        return sequence.chain

    def _coming(self, chain: KeyChain, first: int, limit: int) -> int:
        """How many blocks from `first` on some running request is about to compute."""
        count = 0
        for key in chain.keys[first:limit]:
            if key not in self._promised:
                break
            count += 1
        return count

    def _keep_promises(self, sequence: Sequence, keys: Items[bytes]) -> None:
        for key in keys:
            if self._promised.get(key) is sequence:
                del self._promised[key]
