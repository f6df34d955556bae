"""The parts of an engine, put together as its configuration says."""

from __future__ import annotations

from intaglio import loading
from intaglio.config import EngineConfig
from intaglio.intake.planned_step import SchedulerLimits
from intaglio.intake.reuse import PrefixReuse
from intaglio.intake.traffic import BlockTraffic
from intaglio.intake.validation import RequestLimits
from intaglio.loading import Loaded, ModelFacts
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import PrefixCache
from intaglio.telemetry import Telemetry


def make_pools(config: EngineConfig, loaded: Loaded) -> BlockPools | None:
    """The KV blocks, which the runner has made room for; None without a KV cache. Raises ConfigError."""
    if not config.kv_cache.enabled:
        return None
    pools = BlockPools(loading.pool_groups(config, loaded.facts))
    loaded.runner.configure_kv(pools.total)
    return pools


def make_traffic(config: EngineConfig, pools: BlockPools | None, telemetry: Telemetry) -> BlockTraffic | None:
    """What moves blocks, or None where nothing does. Raises ConfigError."""
    if pools is None:
        return None
    slots = loading.host_slots(config, [pool.group for pool in pools.pools])
    if not slots and not config.context_cache.enabled:
        return None
    return BlockTraffic(pools, telemetry, host_slots=slots, contexts=config.context_cache.enabled)


def make_reuse(
    config: EngineConfig, loaded: Loaded, pools: BlockPools | None, telemetry: Telemetry
) -> PrefixReuse | None:
    """The prefix cache as the scheduler uses it, or None."""
    prefix, counters = config.prefix_cache, telemetry.counters
    if not prefix.enabled or pools is None:
        return None
    cache = PrefixCache(pools, counters, tenant_quota=prefix.tenant_quota_blocks, private=prefix.hide_timing)
    return PrefixReuse(cache, loading.cache_identity(config, loaded), counters)


def request_limits(config: EngineConfig, facts: ModelFacts, pools: BlockPools | None) -> RequestLimits:
    """What a request has to fit into."""
    return RequestLimits(
        vocab_size=facts.vocab_size,
        max_model_len=loading.max_model_len(config, facts),
        capacity=pools.capacity_tokens if pools else config.scheduler.token_budget,
        use_cache=pools is not None,
    )


def scheduler_limits(config: EngineConfig, loaded: Loaded) -> SchedulerLimits:
    """What bounds a step."""
    scheduler = config.scheduler
    return SchedulerLimits(
        token_budget=scheduler.token_budget,
        max_running=scheduler.max_running,
        prefill_chunk=scheduler.prefill_chunk,
        vocab_size=loaded.facts.vocab_size,
        eos_token_ids=frozenset(loaded.codec.eos_token_ids),
        max_waiting=scheduler.max_waiting,
    )


def fallbacks(config: EngineConfig, loaded: Loaded) -> list[dict[str, str]]:
    """What runs otherwise than it was wanted: the fields of one event each."""
    found, facts = [], loaded.facts
    wanted, real = config.threads.wait_policy, loaded.threads.wait_policy
    if wanted != real:
        found.append({"path": "threads.wait_policy", "wanted": wanted, "effective": real})
    if config.numerics.mode == "auto" and facts.numerics_mode == "fast":
        fields = {"wanted": "invariant", "effective": "fast", "reason": facts.fallback}
        found.append({"path": "numerics.mode", **fields})
    elif facts.fallback:
        fields = {"wanted": "native", "effective": facts.kernel_path, "reason": facts.fallback}
        found.append({"path": "kernel_path", **fields})
    return found
