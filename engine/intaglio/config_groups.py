"""The groups of the configuration tree, each a frozen bundle of plain values with its defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumericsConfig:
    """`mode`: fast (library kernels), invariant (bitwise independent of batch, chunking and cache), or auto:
    invariant where the native kernels can be had and pass their self-test, else fast, as a counted event."""

    mode: str = "auto"


@dataclass(frozen=True)
class WeightsConfig:
    """`format`: auto (that of `dtype`), int8 (a scale per output), or GGUF's blocks q8_0 and q4_1; weights only."""

    format: str = "auto"


@dataclass(frozen=True)
class KVCacheConfig:
    """Paged KV cache. `blocks` null: as many as `memory_mib` holds, at most what `max_running` can use.

    `format`: auto (that of `dtype`), fp32, bf16, or quantised with parameters per token and head: fp8 (e4m3), int8,
    int4.
    """

    enabled: bool = True
    block_tokens: int = 16
    format: str = "auto"
    blocks: int | None = None
    memory_mib: int = 2048


@dataclass(frozen=True)
class SwitchConfig:
    """A mechanism that is either on or off."""

    enabled: bool = False


@dataclass(frozen=True)
class ContextCacheConfig:
    """Documents whose KV is computed once and kept on disk, for requests that name them by id.

    `folder` null: contexts/ in the store. `ttl_s`: how long one lives unless it asks for less or more.
    `quota_mib`: most bytes of one tenant's documents.
    """

    enabled: bool = False
    folder: str | None = None
    ttl_s: int = 86_400
    quota_mib: int = 4096


@dataclass(frozen=True)
class HostTierConfig:
    """Host memory for the KV of preempted requests: they are swapped out and back instead of recomputed."""

    enabled: bool = False
    memory_mib: int = 1024


@dataclass(frozen=True)
class PrefixCacheConfig:
    """Blocks of earlier requests are used again. `tenant_quota_blocks`: most blocks kept findable for one tenant
    (null: no limit). Tenants never share blocks. `hide_timing`: nor does one's traffic decide which of another's
    prompts hit: room is taken from one's own unused blocks first, and where that is not enough (the quotas
    together exceed what running requests leave over) it is counted. Load stays visible: a step takes as long
    for each of its requests as for all."""

    enabled: bool = False
    hide_timing: bool = False
    tenant_quota_blocks: int | None = None


@dataclass(frozen=True)
class SchedulerConfig:
    """`token_budget`: most tokens computed in one step. `prefill_chunk`: most prompt tokens of one request
    in one step (null: the budget). `max_model_len` null: the model's own context. `max_waiting`: most requests
    that wait for a slot before further ones are refused (null: no bound)."""

    token_budget: int = 2048
    max_running: int = 16
    prefill_chunk: int | None = None
    max_model_len: int | None = None
    max_waiting: int | None = None


@dataclass(frozen=True)
class ParallelConfig:
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1


@dataclass(frozen=True)
class SpeculationConfig:
    method: str = "none"
    length: int = 4
    draft_model: str | None = None


@dataclass(frozen=True)
class GraphConfig:
    mode: str = "eager"


@dataclass(frozen=True)
class ThreadsConfig:
    """Computing threads (null: one per usable core) and how OpenMP's wait, which takes effect before torch loads.

    `affinity`: the cores that the engine's process may run on, as text like "0,1"; null leaves them as they are.
    """

    count: int | None = None
    wait_policy: str = "passive"
    affinity: str | None = None


@dataclass(frozen=True)
class TraceConfig:
    enabled: bool = True


@dataclass(frozen=True)
class InjectConfig:
    """What a study injects. `step_delay_us`: a known delay added to every engine step, the positive control.
    `sabotage`: `path=value` pairs with semicolons that really run, whatever else is configured: the negative control.
    `corner`: a delay that strikes only in one corner of the loads (config_corner.py): a planted counterexample.
    """

    step_delay_us: int = 0
    sabotage: str | None = None
    corner: str | None = None
