"""The implicit prefix cache: finished blocks stay where they are, findable by what they hold, until room is needed.

A tree of blocks. A node is a full block of tokens after its parent's; the first of a chain hangs on its root (model,
formats, tenant). Nodes are found by their chained key, but a key is only a way to look: a hit also compares the
root, the parent and the tokens themselves, so that two contents with one key never meet. A block joins the tree
when the step that computed it is over. Nobody's blocks are kept (CACHED) and given up one by one, oldest use first;
of one request's blocks the last one is the oldest, so that a chain loses its tail before its root.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from intaglio.state.block_key import KeyChain
from intaglio.state.block_pool import BlockState
from intaglio.state.block_pools import BlockPools
from intaglio.telemetry import Counters


class CachedBlock:
    """A node of the tree: which tokens, after which others, and the block of each pool group that holds them.

    blocks is None while only descendants or requests are left that need the node as their place in the tree
    (the block was given up, or is not computed again yet); `holds` counts them.
    """

    __slots__ = ("blocks", "generations", "holds", "key", "parent", "piece", "root", "tenant")

    def __init__(
        self, key: bytes, piece: bytes, parent: CachedBlock | None, root: bytes, tenant: str
    ) -> None:
        self.key = key
        self.piece = piece
        self.parent = parent
        self.root = root
        self.tenant = tenant
        self.blocks: tuple[int, ...] | None = None
        self.generations: tuple[int, ...] = ()
        self.holds = 0


class PrefixCache:
    """Blocks of a pool that can be used again. It decides what is kept and what is given up; it moves no data.

    tenant_quota  most blocks of one tenant's that are findable (None: no limit). A tenant at its quota gives up
                  its own oldest unused block, or has its new one not kept.
    private       a tenant's room is taken from its own unused blocks first, so that its traffic does not decide
                  which of another's prompts hit; taking another's, the last resort, is counted.
    """

    def __init__(
        self,
        pools: BlockPools,
        counters: Counters,
        *,
        tenant_quota: int | None = None,
        private: bool = False,
    ) -> None:
        self._pools = pools
        self._counters = counters
        self._quota = tenant_quota
        self._private = private
        self._nodes: dict[bytes, CachedBlock] = {}
        self._holder: dict[int, CachedBlock] = {}  # by the first group's block
        self._held: Counter[str] = Counter()
        self._idle: OrderedDict[CachedBlock, None] = OrderedDict()
        self._idle_of: dict[str, OrderedDict[CachedBlock, None]] = {}
        pools.reclaim = self.reclaim
        pools.pools[0].on_cached = self._became_idle

    def __len__(self) -> int:
        """Number of findable blocks."""
        return len(self._holder)

    def held(self, tenant: str) -> int:
        """Number of findable blocks of a tenant's."""
        return self._held[tenant]

    def idle(self, nodes: Sequence[CachedBlock]) -> int:
        """How many of the nodes nobody uses: taking them makes them unavailable as room."""
        return sum(node in self._idle for node in nodes)

    def match(self, chain: KeyChain, limit: int) -> list[CachedBlock]:
        """The longest run of the chain's first `limit` blocks that is in the cache, verified block by block.

        Nothing is reserved: `take` what is wanted before anything else is allocated.
        """
        nodes, found, parent = self._nodes, [], None
        for index, key in enumerate(chain.keys[:limit]):
            node = nodes.get(key)
            if node is None or node.blocks is None:
                break
            if not self._same(node, parent, chain, index):
                break
            if self._stale(node):
                self._counters.add("prefix_stale_blocks")
                blocks = node.blocks
                self._detach(node)
                for pool, block in zip(self._pools.pools, blocks):
                    pool.forget(block)
                break
            found.append(node)
            parent = node
        return found

    def take(
        self, chain: KeyChain, found: Sequence[CachedBlock]
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Reference matched blocks. Returns the block tables and their generations, per pool group."""
        tables = list(zip(*(node.blocks for node in found if node.blocks is not None)))
        for node in found:
            self._no_longer_idle(node)
        for pool, table in zip(self._pools.pools, tables):
            pool.share(table)
        chain.committed = len(found)
        self._stand(chain, found[-1] if found else None)
        self._counters.add("prefix_hit_blocks", len(found))
        return tables, list(zip(*(node.generations for node in found)))

    def commit(
        self,
        chain: KeyChain,
        tenant: str,
        tables: Sequence[Sequence[int]],
        generations: Sequence[Sequence[int]],
        full: int,
    ) -> None:
        """The first `full` blocks of a request are computed: make those findable that are not yet.

        A block whose contents are there already stays the request's own. Does nothing more for this request at a
        key that another content holds, or while its tenant's quota is used up.
        """
        while chain.committed < full:
            index = chain.committed
            node = self._node(chain, index, tenant)
            if node is None:
                return
            if node.blocks is None:
                node.holds += 1  # the block that makes room may be all that leads to this node
                room = self._has_quota(tenant)
                node.holds -= 1
                if not room:
                    self._counters.add("prefix_quota_refusals")
                    self._prune(node)
                    return
                own = tuple(table[index] for table in tables)
                self._attach(node, own, tuple(numbers[index] for numbers in generations))
            chain.committed += 1
            self._stand(chain, node)

    def leave(self, chain: KeyChain) -> None:
        """The request gives up its blocks (which the pool releases): its chain starts anew."""
        chain.committed = 0
        self._stand(chain, None)

    def reclaim(self, count: int, tenant: str) -> None:
        """Give up unused blocks, oldest first, until the pool has `count` free ones or none is left."""
        while self._pools.free < count:
            node = self._victim(tenant)
            if node is None:
                return
            if self._private and node.tenant != tenant:
                self._counters.add("prefix_cross_tenant_evictions")
            self._evict(node)

    def clear(self) -> None:
        """Give up every unused block."""
        self.reclaim(self._pools.total + 1, "")

    # The tree

    def _same(self, node: CachedBlock, parent: CachedBlock | None, chain: KeyChain, index: int) -> bool:
        if node.parent is parent and node.piece == chain.piece(index) and node.root == chain.root:
            return True
        self._counters.add("prefix_key_collisions")
        return False

    def _stale(self, node: CachedBlock) -> bool:
        for pool, block, generation in zip(self._pools.pools, node.blocks or (), node.generations):
            if pool.generation(block) != generation:
                return True
        return False

    def _node(self, chain: KeyChain, index: int, tenant: str) -> CachedBlock | None:
        """The node of the chain's block, made if need be. None where the key belongs to another content."""
        parent = chain.node
        node = self._nodes.get(chain.keys[index])
        if node is None:
            node = CachedBlock(chain.keys[index], chain.piece(index), parent, chain.root, tenant)
            self._nodes[node.key] = node
            if parent is not None:
                parent.holds += 1
            return node
        return node if self._same(node, parent, chain, index) else None

    def _attach(self, node: CachedBlock, blocks: tuple[int, ...], generations: tuple[int, ...]) -> None:
        node.blocks, node.generations = blocks, generations
        self._holder[blocks[0]] = node
        self._held[node.tenant] += 1
        for pool, block in zip(self._pools.pools, blocks):
            pool.keep(block)

    def _detach(self, node: CachedBlock) -> None:
        """The node's block is no longer findable under it."""
        self._no_longer_idle(node)
        if node.blocks is None:
            return
        del self._holder[node.blocks[0]]
        node.blocks, node.generations = None, ()
        self._held[node.tenant] -= 1
        if not self._held[node.tenant]:
            del self._held[node.tenant]
        self._prune(node)

    def _stand(self, chain: KeyChain, node: CachedBlock | None) -> None:
        """The chain's place in the tree is `node`, which is kept as long as the chain needs it."""
        if node is not None:
            node.holds += 1
        left, chain.node = chain.node, node
        if left is not None:
            left.holds -= 1
            self._prune(left)

    def _prune(self, node: CachedBlock) -> None:
        """Forget nodes that neither hold a block nor lead to one."""
        at: CachedBlock | None = node
        while at is not None and at.blocks is None and not at.holds:
            del self._nodes[at.key]
            at = at.parent
            if at is not None:
                at.holds -= 1

    # Who is given up

    def _became_idle(self, block: int) -> None:
        node = self._holder[block]
        self._idle[node] = None
        self._idle_of.setdefault(node.tenant, OrderedDict())[node] = None

    def _no_longer_idle(self, node: CachedBlock) -> None:
        if node not in self._idle:
            return
        del self._idle[node]
        own = self._idle_of[node.tenant]
        del own[node]
        if not own:
            del self._idle_of[node.tenant]

    def _has_quota(self, tenant: str) -> bool:
        if self._quota is None or self._held[tenant] < self._quota:
            return True
        node = self._oldest(self._idle_of.get(tenant, OrderedDict()))
        if node is not None:
            self._evict(node)
        return node is not None

    def _victim(self, tenant: str) -> CachedBlock | None:
        own = self._oldest(self._idle_of.get(tenant, OrderedDict())) if self._private else None
        return own or self._oldest(self._idle)

    def _oldest(self, idle: OrderedDict[CachedBlock, None]) -> CachedBlock | None:
        for node in idle:
            held = zip(self._pools.pools, node.blocks or ())
            if all(pool.state(block) is BlockState.CACHED for pool, block in held):
                return node
        return None

    def _evict(self, node: CachedBlock) -> None:
        blocks = node.blocks or ()
        self._detach(node)
        for pool, block in zip(self._pools.pools, blocks):
            pool.evict(block)
        self._counters.add("prefix_evicted_blocks")
