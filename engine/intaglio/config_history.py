"""Which configuration paths came later, and what an engine that did not know them did: how old records stay readable.

A record or packet holds every path of the engine that wrote it. When a path is added to `intaglio.config`, it is
entered in LATER with the value under which the engine behaves as it did before, which need not be its default.
"""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.config import Scalar

LATER: dict[str, Scalar] = {
    "prefix_cache.hide_timing": False,
    "prefix_cache.tenant_quota_blocks": None,
    "context_cache.folder": None,
    "context_cache.ttl_s": 86400,
    "context_cache.quota_mib": 4096,
    "host_tier.memory_mib": 1024,
    "scheduler.max_waiting": None,
    "threads.affinity": None,
    "inject.sabotage": None,
    "inject.corner": None,
}


def complete(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """`values` with the paths that an older engine did not know, each at what that engine did."""
    return {**LATER, **values}
