"""The engine's configuration: one frozen tree of plain values, checked without importing torch.

The same paths are used by Hydra overrides (under `engine.`), by `intaglio generate` and by packets, e.g.
`kv_cache.enabled=false`. A value keeps its type: an integer field refuses 16.0, "16" and true.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from intaglio import config_corner
from intaglio.config_groups import (
    ContextCacheConfig,
    GraphConfig,
    HostTierConfig,
    InjectConfig,
    KVCacheConfig,
    NumericsConfig,
    ParallelConfig,
    PrefixCacheConfig,
    SchedulerConfig,
    SpeculationConfig,
    SwitchConfig,
    ThreadsConfig,
    TraceConfig,
    WeightsConfig,
)
from intaglio.errors import ConfigError

__all__ = [
    "ContextCacheConfig",
    "EngineConfig",
    "GraphConfig",
    "HostTierConfig",
    "InjectConfig",
    "KVCacheConfig",
    "NumericsConfig",
    "ParallelConfig",
    "PrefixCacheConfig",
    "Scalar",
    "SchedulerConfig",
    "SpeculationConfig",
    "SwitchConfig",
    "ThreadsConfig",
    "TraceConfig",
    "WeightsConfig",
    "check_type",
    "field_types",
    "flatten",
    "from_flat",
    "parse_overrides",
]

Scalar = bool | int | float | str | None

DTYPES = ("fp32", "bf16")
NUMERICS_MODES = ("auto", "fast", "invariant")
DEVICES = ("cpu", "cuda")
SPECULATION_METHODS = ("none", "ngram", "early_exit", "draft")
GRAPH_MODES = ("eager", "compile", "capture")
KV_FORMATS = ("auto", "fp32", "bf16", "fp8", "int8", "int4")
QUANTISED_KV_FORMATS = ("fp8", "int8", "int4")
WEIGHT_FORMATS = ("auto", "int8", "q8_0", "q4_1")
WAIT_POLICIES = ("active", "passive")


@dataclass(frozen=True)
class EngineConfig:
    """Everything that decides what the engine runs. `model`: a folder, a catalogue name or a hub id."""

    model: str = "tiny"
    dtype: str = "bf16"
    device: str = "cpu"
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    prefix_cache: PrefixCacheConfig = field(default_factory=PrefixCacheConfig)
    context_cache: ContextCacheConfig = field(default_factory=ContextCacheConfig)
    host_tier: HostTierConfig = field(default_factory=HostTierConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    disaggregation: SwitchConfig = field(default_factory=SwitchConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    inject: InjectConfig = field(default_factory=InjectConfig)

    def validate(self) -> EngineConfig:
        """Check ranges, choices and combinations. Returns self; raises ConfigError naming the path."""
        _check_shape(self)
        _check_choices(self)
        _check_ranges(self)
        _check_built(self)
        _check_caches(self)
        return self


# Mechanisms whose place in the configuration is fixed but which this version does not contain. Switching one
# on is refused: a flag that does nothing would be measured as a change that does nothing.
_NOT_BUILT: dict[str, Scalar] = {
    "disaggregation.enabled": False,
    "parallel.tensor": 1,
    "parallel.pipeline": 1,
    "parallel.context": 1,
    "parallel.expert": 1,
    "parallel.data": 1,
    "speculation.method": "none",
    "graph.mode": "eager",
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "device": DEVICES,
    "numerics.mode": NUMERICS_MODES,
    "kv_cache.format": KV_FORMATS,
    "weights.format": WEIGHT_FORMATS,
    "speculation.method": SPECULATION_METHODS,
    "graph.mode": GRAPH_MODES,
    "threads.wait_policy": WAIT_POLICIES,
}

_RANGES: dict[str, tuple[int, int]] = {
    "kv_cache.block_tokens": (1, 1024),
    "kv_cache.blocks": (1, 1 << 24),
    "kv_cache.memory_mib": (1, 1 << 24),
    "context_cache.ttl_s": (1, 1 << 31),
    "context_cache.quota_mib": (1, 1 << 24),
    "host_tier.memory_mib": (1, 1 << 24),
    "scheduler.token_budget": (1, 1 << 20),
    "scheduler.max_running": (1, 4096),
    "scheduler.prefill_chunk": (1, 1 << 20),
    "scheduler.max_model_len": (2, 1 << 24),
    "scheduler.max_waiting": (1, 1 << 24),
    "prefix_cache.tenant_quota_blocks": (0, 1 << 24),
    "speculation.length": (1, 64),
    "threads.count": (1, 1024),
    "inject.step_delay_us": (0, 60_000_000),
}


def flatten(config: EngineConfig) -> dict[str, Scalar]:
    """The configuration as `{dotted path: value}`, in declaration order."""
    return dict(_walk(config, ""))


def from_flat(values: Mapping[str, Scalar], base: EngineConfig | None = None) -> EngineConfig:
    """Build a configuration from dotted paths over `base` (default: the defaults), type-strict.

    Raises ConfigError for an unknown path, a wrong type, a value out of range or a refused combination.
    """
    config = base or EngineConfig()
    for path, value in values.items():
        if not isinstance(path, str):
            raise ConfigError(f"a configuration path is text, not {type(path).__name__} {path!r}")
        config = _replace(config, path, path.split("."), value)
    return config.validate()


def parse_overrides(tokens: Iterable[str], base: EngineConfig | None = None) -> EngineConfig:
    """Apply `path=value` tokens, e.g. `kv_cache.enabled=false`. The value is read by its field's type."""
    values: dict[str, Scalar] = {}
    for token in tokens:
        path, sign, text = token.partition("=")
        if not sign or not path or path[0] in "+~":
            raise ConfigError(f"'{token}' is not of the form path=value; write e.g. kv_cache.enabled=false")
        if path in values:
            raise ConfigError(f"{path} is given twice; give it once", field=path)
        values[path] = _parse_scalar(path, text)
    return from_flat(values, base)


def field_types() -> dict[str, Any]:
    """`{dotted path: declared type}` of every leaf."""
    return dict(_leaf_types())


def check_type(path: str, value: object) -> None:
    """Raise ConfigError unless `value` has exactly the declared type of `path` (bool is not an int)."""
    types = _leaf_types()
    if path not in types:
        raise ConfigError(f"unknown configuration path '{path}'; known: {', '.join(types)}", field=path)
    allowed = _allowed(types[path])
    if type(value) not in allowed:
        names = " or ".join("null" if t is type(None) else t.__name__ for t in allowed)
        raise ConfigError(f"{path} must be {names}, not {type(value).__name__} {value!r}", field=path)


def _allowed(declared: Any) -> tuple[type, ...]:
    args = typing.get_args(declared)
    return tuple(args) if args else (declared,)


def _parse_scalar(path: str, text: str) -> Scalar:
    types = field_types()
    if path not in types:
        raise ConfigError(f"unknown configuration path '{path}'; known: {', '.join(types)}", field=path)
    allowed = _allowed(types[path])
    if text in ("null", "none", "None") and type(None) in allowed:
        return None
    if bool in allowed:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{path} must be true or false, not '{text}'", field=path)
    if int in allowed:
        # int() would also take 1_0 and the digits of other scripts.
        if re.fullmatch("[+-]?[0-9]{1,18}", text) is None:
            raise ConfigError(f"{path} must be a whole number, not '{text}'", field=path)
        return int(text)
    if float in allowed:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{path} must be a number, not '{text}'", field=path) from None
    return text


def _walk(node: Any, prefix: str) -> Iterable[tuple[str, Scalar]]:
    for f in dataclasses.fields(node):
        value = getattr(node, f.name)
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value


@functools.cache
def _leaf_types() -> dict[str, Any]:
    return dict(_walk_types(EngineConfig, ""))


def _walk_types(cls: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        declared = hints[f.name]
        if dataclasses.is_dataclass(declared):
            yield from _walk_types(declared, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", declared


def _replace(node: Any, path: str, parts: list[str], value: Scalar) -> Any:
    name = parts[0]
    known = {f.name for f in dataclasses.fields(node)}
    if name not in known:
        raise ConfigError(f"unknown configuration path '{path}'", field=path)
    if len(parts) == 1:
        check_type(path, value)
        return dataclasses.replace(node, **{name: value})
    child = getattr(node, name)
    if not dataclasses.is_dataclass(child):
        raise ConfigError(f"unknown configuration path '{path}'", field=path)
    return dataclasses.replace(node, **{name: _replace(child, path, parts[1:], value)})


def _check_shape(config: EngineConfig) -> None:
    """Every group is of its own kind and every value of its declared type."""
    hints = typing.get_type_hints(EngineConfig)
    for f in dataclasses.fields(config):
        group, declared = getattr(config, f.name), hints[f.name]
        if dataclasses.is_dataclass(declared) and type(group) is not declared:
            kind = typing.cast(type, declared).__name__
            raise ConfigError(
                f"{f.name} must be a {kind}, not {type(group).__name__} {group!r}; paths such as "
                f"'{f.name}.{dataclasses.fields(declared)[0].name}' are taken by from_flat and parse_overrides",
                field=f.name,
            )
    for path, value in flatten(config).items():
        check_type(path, value)


def _check_choices(config: EngineConfig) -> None:
    flat = flatten(config)
    for path, choices in _CHOICES.items():
        if flat[path] not in choices:
            raise ConfigError(f"{path} must be one of {', '.join(choices)}, not {flat[path]!r}", field=path)
    if config.kv_cache.format in QUANTISED_KV_FORMATS and not config.kv_cache.enabled:
        raise ConfigError(
            f"kv_cache.format={config.kv_cache.format} quantises what the cache stores, and kv_cache.enabled is "
            "false; leave the format at auto",
            field="kv_cache.format",
        )


def _check_ranges(config: EngineConfig) -> None:
    flat = flatten(config)
    for path, (low, high) in _RANGES.items():
        value = flat[path]
        if value is not None and not (low <= typing.cast(int, value) <= high):
            raise ConfigError(f"{path} must be between {low} and {high}, not {value}", field=path)
    affinity = config.threads.affinity
    if affinity is not None and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", affinity):
        raise ConfigError(
            f"threads.affinity must be core numbers with commas, e.g. 0,1, not {affinity!r}",
            field="threads.affinity",
        )
    config_corner.parse(config.inject.corner)
    if not config.model:
        raise ConfigError("model is empty; give a folder, a catalogue name or a hub id", field="model")


def _check_caches(config: EngineConfig) -> None:
    """What keeps or moves blocks of the KV cache needs one."""
    prefix = config.prefix_cache
    for name in ("prefix_cache", "context_cache", "host_tier"):
        if getattr(config, name).enabled and not config.kv_cache.enabled:
            raise ConfigError(
                f"{name}.enabled=true keeps blocks of the KV cache; set kv_cache.enabled=true too",
                field=f"{name}.enabled",
            )
    if prefix.enabled and prefix.hide_timing and prefix.tenant_quota_blocks is None:
        raise ConfigError(
            "prefix_cache.hide_timing=true needs prefix_cache.tenant_quota_blocks, each tenant's own share",
            field="prefix_cache.tenant_quota_blocks",
        )


def _check_built(config: EngineConfig) -> None:
    flat = flatten(config)
    for path, only in _NOT_BUILT.items():
        if flat[path] != only:
            raise ConfigError(
                f"{path}={flat[path]} is not available in this version; leave it at {only}", field=path
            )
