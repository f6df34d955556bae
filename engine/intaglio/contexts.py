"""Documents whose KV is computed once, kept on disk, and named by id in any number of requests: `engine.contexts`.

A request with a context behaves as if the document's tokens stood before its prompt's. The two are tokenised apart,
so that the document's tokens do not depend on what follows them; text inlined as one string may merge tokens at the
seam and is then another prompt. Only full blocks are stored; the rest of the document, less than a block, is
computed with each request.

Whoever owns a context (its tenant) may list, use, refresh and delete it. For everybody else it does not exist.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from intaglio.config import ContextCacheConfig
from intaglio.errors import (
    ContextError,
    ContextExpiredError,
    ContextMismatchError,
    ContextQuotaError,
)
from intaglio.intake import validation
from intaglio.intake.request import Prompt, TokenEvent
from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import BlockMove, MoveResult
from intaglio.intake.traffic import BlockTraffic
from intaglio.state.block_key import CacheIdentity
from intaglio.state.block_pools import BlockPools
from intaglio.state.context_cache import ContextCache, ContextEntry
from intaglio.state.context_files import ContextFiles, ContextRecord, payload, unknown
from intaglio.state.transfer import Transfers
from intaglio.telemetry import Telemetry

_ID = re.compile(r"ctx-[0-9a-f]{24}")
_NAME_CHARACTERS = 200
_MOST_TTL_S = 1 << 31

Tables = tuple[tuple[int, ...], ...]
Tokens = list[int]
Records = list[ContextRecord]
Capture = Callable[[Sequence], None]


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """What a tenant may know of its context. bytes: on disk, against the quota. version: counts the tenant's
    contexts of this name. sha256: of tokens, identity and checksums."""

    id: str
    tenant: str
    name: str
    tokens: int
    bytes: int
    created_utc: str
    expires_utc: str
    version: int
    sha256: str


Infos = list[ContextInfo]


@dataclass(frozen=True, slots=True)
class Host:
    """The engine, as far as contexts need it.

    prepare   checks a document and gives its token ids
    admit     queues a request for (tokens, tenant, capture, queue): its events go to `queue`, and `capture` sees it
              just before it lets go of its blocks. Gives its id
    advance   makes one step (the argument: a queue that someone reads); withdraw: ends and forgets a request
    identity  what KV depends on besides tokens
    """

    prepare: Callable[[Prompt], tuple[int, ...]]
    admit: Callable[[Tokens, str, Capture, deque[TokenEvent]], str]
    advance: Callable[[deque[TokenEvent] | None], None]
    withdraw: Callable[[str], None]
    identity: Callable[[], CacheIdentity]


class Contexts:
    """The contexts of one engine. Any thread may call; `create` drives the engine until the document is saved.

    Every method raises ContextError where context_cache.enabled is off. `clock`: seconds since the epoch.
    """

    def __init__(
        self,
        config: ContextCacheConfig,
        files: ContextFiles,
        traffic: BlockTraffic | None,
        pools: BlockPools | None,
        telemetry: Telemetry,
        lock: threading.RLock,
        host: Host,
    ) -> None:
        self._config = config
        self._files = files
        self._cache = traffic.contexts if traffic is not None else None
        self._pools = pools
        self._transfers = traffic.transfers if traffic is not None else Transfers()
        self._telemetry = telemetry
        self._lock = lock
        self._host = host
        self._creating = threading.Lock()
        self.clock: Callable[[], float] = time.time

    # For tenants

    def create(
        self, prompt: Prompt, *, tenant: str = "", ttl_s: float | None = None, name: str | None = None
    ) -> ContextInfo:
        """Compute a document's KV and save it. Raises a RequestError of the kind that applies, and then leaves
        nothing behind."""
        _, pools = self._parts(tenant)
        lives, called = self._ttl(ttl_s), _name(name)
        tokens = self._host.prepare(prompt)
        with self._creating:
            version = self._make_room(tenant, called, tokens, pools)
            context = f"ctx-{secrets.token_hex(12)}"
            now = self.clock()
            record = ContextRecord(
                id=context,
                tenant=tenant,
                name=called,
                version=version,
                tokens=tokens,
                block_tokens=pools.block_tokens,
                block_bytes=tuple(pool.group.block_bytes for pool in pools.pools),
                checksums=((),) * len(pools.pools),
                identity=self._identity(),
                created=now,
                expires=now + lives,
            )
            return _info(self._compute_and_save(record))

    def get(self, context: str, tenant: str = "") -> ContextInfo:
        """Raises UnknownContextError, ContextExpiredError, ContextMismatchError, ContextDamagedError."""
        self._parts(tenant)
        return _info(self._record(context, tenant))

    def list(self, tenant: str = "") -> Infos:
        """The tenant's contexts that can be read and have not expired, oldest first."""
        self._parts(tenant)
        found = [record for record in self._records(tenant) if record.expires > self.clock()]
        return [_info(record) for record in sorted(found, key=lambda record: (record.created, record.id))]

    def delete(self, context: str, tenant: str = "") -> None:
        """Remove a context, damaged and expired ones too. Requests that run with it end as if it were there.

        Raises UnknownContextError.
        """
        cache, _ = self._parts(tenant)
        if not _ID.fullmatch(str(context)) or context not in self._files.ids(tenant):
            raise unknown(context)
        with self._lock:
            entry = cache.find(tenant, context)
            if entry is not None:
                cache.forget(entry)
        self._files.delete(tenant, context)
        self._telemetry_event("context_deleted", context=context)

    def refresh(self, context: str, tenant: str = "", ttl_s: float | None = None) -> ContextInfo:
        """Let a context live for another `ttl_s` seconds from now (None: context_cache.ttl_s)."""
        cache, _ = self._parts(tenant)
        lives = self._ttl(ttl_s)
        record = replace(self._record(context, tenant), expires=self.clock() + lives)
        self._files.rewrite(record)
        with self._lock:
            entry = cache.find(tenant, context)
            if entry is not None:
                entry.record = record
        return _info(record)

    # For the engine

    def resolve(self, context: str, tenant: str) -> ContextEntry:
        """The context that a request names, whole and computed by an engine such as this one.

        Its files are read completely when it is met first. Raises as `get` does.
        """
        cache, _ = self._parts()
        with self._lock:
            entry = cache.find(tenant, context) if isinstance(context, str) else None
        # Another process that shares the folder may have deleted it.
        if entry is not None and not entry.place.is_dir():
            with self._lock:
                cache.forget(entry)
            raise unknown(context)
        if entry is None:
            record = self._record(context, tenant)
            entry = ContextEntry(record, self._files.place(tenant, context))
        if entry.record.expires <= self.clock():
            with self._lock:
                cache.forget(entry)
            # Another process may have refreshed it.
            entry = ContextEntry(self._record(context, tenant), entry.place)
        record = entry.record
        self._match(record)
        if not (entry.tables or entry.filling or entry.verified):
            self._files.verify(record)
            entry.verified, entry.unusable = True, False
        with self._lock:
            return cache.enter(entry)

    def check(self, entry: ContextEntry | None) -> None:
        """Raise UnknownContextError if the context went since it was resolved (under the engine's lock)."""
        if entry is not None and entry.gone:
            raise unknown(entry.record.id)

    def use(self, sequence: Sequence, entry: ContextEntry | None) -> None:
        """A request was admitted, with this context or without any."""
        if entry is not None:
            self._parts()[0].named(sequence, entry)

    # Inside

    def _parts(self, tenant: str = "") -> tuple[ContextCache, BlockPools]:
        validation.check_tenant(tenant)
        if self._cache is None or self._pools is None:
            raise ContextError(
                "context_cache.enabled is false; start the engine with context_cache.enabled=true",
                field="context",
            )
        return self._cache, self._pools

    def _ttl(self, ttl_s: float | None) -> float:
        if ttl_s is None:
            return float(self._config.ttl_s)
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= _MOST_TTL_S:
            raise ContextError(
                f"ttl_s must be more than 0 and at most {_MOST_TTL_S} seconds, not {ascii(ttl_s)[:40]}",
                field="ttl_s",
            )
        return float(ttl_s)

    def _record(self, context: str, tenant: str) -> ContextRecord:
        if not isinstance(context, str) or not _ID.fullmatch(context):
            raise unknown(str(context))
        record = self._files.read(tenant, context)
        if record.expires <= self.clock():
            raise _expired(context)
        return record

    def _records(self, tenant: str) -> Records:
        """Every context of the tenant that can be read; the others are events."""
        found = []
        for context in self._files.ids(tenant):
            try:
                found.append(self._files.read(tenant, context))
            except ContextError as error:
                self._telemetry_event("context_unreadable", context=context, message=str(error))
        return found

    def _match(self, record: ContextRecord) -> None:
        own = self._identity()
        other = [key for key in sorted({*own, *record.identity}) if own.get(key) != record.identity.get(key)]
        if other:
            raise ContextMismatchError(
                f"context {record.id} was computed with another {', '.join(other)}; create it again here",
                field="context",
            )

    def _identity(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self._host.identity()).items()}

    def _make_room(self, tenant: str, name: str, tokens: tuple[int, ...], pools: BlockPools) -> int:
        """Remove what has expired, check the quota, and give the new context's version."""
        kept = []
        for record in self._records(tenant):
            if record.expires > self.clock():
                kept.append(record)
                continue
            self.delete(record.id, tenant)
        wanted = 4 * len(tokens) + len(tokens) // pools.block_tokens * pools.block_bytes
        used, quota = sum(record.nbytes for record in kept), self._config.quota_mib << 20
        if used + wanted > quota:
            raise ContextQuotaError(
                f"the document needs {wanted} bytes, {quota - used} of the quota of {quota} are left; delete "
                "contexts, or raise context_cache.quota_mib",
                field="context_cache.quota_mib",
            )
        return 1 + max((record.version for record in kept if record.name == name), default=0)

    def _compute_and_save(self, record: ContextRecord) -> ContextRecord:
        cache, pools = self._parts()
        partial_folder = self._files.begin(record.tenant, record.id)
        entry = ContextEntry(record, self._files.place(record.tenant, record.id))
        try:
            blocks = len(record.tokens) // pools.block_tokens
            if blocks:
                tokens = list(record.tokens[: blocks * pools.block_tokens])
                self._compute(tokens, record.tenant, partial(self._capture, entry, blocks))
                record = replace(record, checksums=self._save(entry, partial_folder))
            self._files.commit(record, partial_folder)
        except BaseException:
            self._files.discard(partial_folder)
            with self._lock:
                entry.pinned = False
                cache.forget(entry)
            raise
        with self._lock:
            entry.record, entry.verified, entry.pinned = record, True, False
            cache.enter(entry)
            self._telemetry.counters.add("contexts_created")
        return record

    def _compute(self, tokens: Tokens, tenant: str, capture: Capture) -> None:
        """Run token ids through the model once. Raises the request's error."""
        queue: deque[TokenEvent] = deque()
        name = self._host.admit(tokens, tenant, capture, queue)
        try:
            while not queue or queue[-1].finish_reason is None:
                self._host.advance(queue)
            if queue[-1].error is not None:
                raise queue[-1].error
        finally:
            self._host.withdraw(name)

    def _capture(self, entry: ContextEntry, blocks: int, sequence: Sequence) -> None:
        """Keep the blocks of the request that computed the document (called under the engine's lock)."""
        cache, pools = self._parts()
        if sequence.computed < blocks * pools.block_tokens:
            return
        tables: Tables = tuple(tuple(table[:blocks]) for table in sequence.block_tables)
        pools.share(tables)
        entry.tables, entry.pinned = tables, True
        entry.generations = tuple(tuple(own[:blocks]) for own in sequence.generations)
        cache.enter(entry)

    def _save(self, entry: ContextEntry, folder: Path) -> tuple[tuple[int, ...], ...]:
        """Write the blocks to files. Returns their checksums. Raises ContextError when that fails."""
        answers: list[MoveResult] = []
        with self._lock:
            if not entry.tables:
                raise ContextError("the document was not computed to its end; send it again", field="context")
            moves = [
                BlockMove(
                    "save", group, block, entry.generations[group][i], i, 0, str(payload(folder, group))
                )
                for group, table in enumerate(entry.tables)
                for i, block in enumerate(table)
            ]
            self._transfers.ask("", moves, answers.extend)
        while not answers:
            self._host.advance(None)
        error = next((answer.error for answer in answers if answer.error), "")
        if error:
            raise ContextError(f"the document cannot be saved: {error}", field="context_cache.folder")
        sums, count = [answer.checksum for answer in answers], len(entry.tables[0])
        return tuple(tuple(sums[start : start + count]) for start in range(0, len(sums), count))

    def _telemetry_event(self, kind: str, **fields: str) -> None:
        with self._lock:
            self._telemetry.event(kind, **fields)


def _name(name: str | None) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > _NAME_CHARACTERS or not name.isprintable():
        raise ContextError(
            f"name must be at most {_NAME_CHARACTERS} printable characters of text", field="name"
        )
    return name


def _expired(context: str) -> ContextExpiredError:
    return ContextExpiredError(f"context {context} has expired; create it again", field="context")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _info(record: ContextRecord) -> ContextInfo:
    return ContextInfo(
        id=record.id,
        tenant=record.tenant,
        name=record.name,
        tokens=len(record.tokens),
        bytes=record.nbytes,
        created_utc=_utc(record.created),
        expires_utc=_utc(record.expires),
        version=record.version,
        sha256=record.sha256,
    )
