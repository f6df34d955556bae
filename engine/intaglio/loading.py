"""From a configuration to the parts an engine runs on, and to the configuration that really runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from intaglio import threads
from intaglio.compute import resident
from intaglio.config import EngineConfig, Scalar, flatten
from intaglio.errors import ConfigError, WorkerError
from intaglio.intake.step_plan import StepPlan, StepResult
from intaglio.output.detokenizer import Codec
from intaglio.state.block_key import CacheIdentity
from intaglio.state.block_pool import PoolGroup


class StepRunner(Protocol):
    """What computes steps: the runner of one or many workers, or a stand-in."""

    def describe(self) -> Mapping[str, Any]: ...

    def configure_kv(self, blocks: int) -> None: ...

    def execute(self, plan: StepPlan) -> StepResult: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an engine needs to know of its workers.

    kv_bytes_per_token: per pool group, bytes of KV that one token takes. fallback: why the kernels are not those
    that the numerics mode wants, or "". numerics_mode: fast or invariant, the one that runs ("": as configured).
    """

    architecture: str
    vocab_size: int
    max_positions: int
    parameters: int
    weight_bytes: int
    kernel_path: str
    kv_format: str
    kv_bytes_per_token: tuple[int, ...]
    fallback: str = ""
    numerics_mode: str = ""

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> ModelFacts:
        """Read a runner's description. Raises WorkerError when something is missing."""
        try:
            return cls(
                architecture=str(description["architecture"]),
                vocab_size=int(description["vocab_size"]),
                max_positions=int(description["max_positions"]),
                parameters=int(description["parameters"]),
                weight_bytes=int(description["weight_bytes"]),
                kernel_path=str(description["kernel_path"]),
                kv_format=str(description["kv_format"]),
                kv_bytes_per_token=tuple(map(int, description["kv_bytes_per_token"])),
                fallback=str(description.get("fallback", "")),
                numerics_mode=str(description.get("numerics_mode", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"the worker's description is incomplete: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Loaded:
    """The parts of an engine. fingerprint: gives the sha256 of the model's files by part; hashing them takes
    time, so it is only done when asked for. device_memory: gauges of a device's memory, none on a CPU."""

    runner: StepRunner
    codec: Codec
    facts: ModelFacts
    fingerprint: Callable[[], Mapping[str, str]]
    threads: threads.Threads
    device_memory: Callable[[], Mapping[str, int]] = dict


def load(config: EngineConfig) -> Loaded:
    """Resolve and load the model. Raises ModelError, ConfigError or NumericsError."""
    from intaglio.intake.tokenizer import Tokenizer
    from intaglio.models import catalogue

    folder: Path = catalogue.resolve(config.model)
    tokenizer = Tokenizer(folder)  # before torch, which then takes the memory that parsing its file has left
    in_force = threads.apply(config.threads)
    from intaglio.cluster.runner import Runner

    resident.settle()  # before the model comes: importing touches far more of the libraries than computing
    counted = replace(config, threads=replace(config.threads, count=in_force.count))
    runner = Runner(counted, folder, known_tokens=tokenizer.known_tokens)
    facts = ModelFacts.read(runner.describe())
    fingerprint = partial(catalogue.fingerprint, folder)
    return Loaded(runner, tokenizer, facts, fingerprint, in_force, runner.device_memory)


def max_model_len(config: EngineConfig, facts: ModelFacts) -> int:
    """Most tokens of prompt and output. Raises ConfigError beyond what the model was made for."""
    wanted = config.scheduler.max_model_len
    if wanted is not None and wanted > facts.max_positions:
        raise ConfigError(
            f"scheduler.max_model_len={wanted} exceeds the model's {facts.max_positions} positions; lower it",
            field="scheduler.max_model_len",
        )
    return wanted or facts.max_positions


def pool_groups(config: EngineConfig, facts: ModelFacts) -> list[PoolGroup]:
    """The KV pools: `kv_cache.blocks` blocks, or as many as `memory_mib` holds and `max_running` can use."""
    kv = config.kv_cache
    sizes = [per_token * kv.block_tokens for per_token in facts.kv_bytes_per_token]
    blocks = kv.blocks
    if blocks is None:
        longest = -(-max_model_len(config, facts) // kv.block_tokens)
        blocks = min((kv.memory_mib << 20) // sum(sizes), config.scheduler.max_running * longest)
    if blocks < 1:
        raise ConfigError(
            f"kv_cache.memory_mib={kv.memory_mib} holds no block of {sum(sizes)} bytes; raise it",
            field="kv_cache.memory_mib",
        )
    return [PoolGroup(f"kv{i}", blocks, kv.block_tokens, size) for i, size in enumerate(sizes)]


def host_slots(config: EngineConfig, groups: Sequence[PoolGroup]) -> int:
    """Blocks of every group that the host tier holds; 0 where it is off. Raises ConfigError if it holds none."""
    if not config.host_tier.enabled:
        return 0
    size = sum(group.block_bytes for group in groups)
    slots = (config.host_tier.memory_mib << 20) // size
    if slots < 1:
        raise ConfigError(
            f"host_tier.memory_mib={config.host_tier.memory_mib} holds no block of {size} bytes; raise it",
            field="host_tier.memory_mib",
        )
    return slots


def contexts_folder(config: EngineConfig) -> Path:
    """Where contexts lie: context_cache.folder, else contexts/ in $COUNTERPROOF_STORE, else in ./store.

    Raises ConfigError for what can be no path.
    """
    named = config.context_cache.folder or Path(os.environ.get("COUNTERPROOF_STORE") or "store") / "contexts"
    try:
        return Path(named).expanduser().resolve()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # an unknown user's home, a loop of links, a null byte
        raise ConfigError(
            f"context_cache.folder {str(named)!a} is no folder: {error}", field="context_cache.folder"
        ) from None


def cache_identity(config: EngineConfig, loaded: Loaded) -> CacheIdentity:
    """What the contents of a KV block depend on besides its tokens and tenant."""
    facts = loaded.facts
    numerics = f"{facts.numerics_mode or config.numerics.mode}/{facts.kernel_path}"
    return identity_of(config, loaded.fingerprint(), facts.kv_format, numerics)


def identity_of(
    config: EngineConfig, digests: Mapping[str, str], kv_format: str, numerics: str
) -> CacheIdentity:
    """The same from its parts; digests: sha256 of the model's files by part."""
    layout = ",".join(f"{name}={value}" for name, value in sorted(asdict(config.parallel).items()))
    return CacheIdentity(
        model=digests.get("model", ""),
        rope=digests.get("config", ""),
        dtype=config.dtype,
        weights_format=config.weights.format,
        kv_format=kv_format,
        numerics=numerics,
        parallel=layout,
        block_tokens=config.kv_cache.block_tokens,
    )


def effective(config: EngineConfig, loaded: Loaded, blocks: int) -> dict[str, Scalar]:
    """What really runs, as flat paths: every configuration path with its value in force, and what follows."""
    facts = loaded.facts
    length = max_model_len(config, facts)
    scheduler = replace(
        config.scheduler,
        max_model_len=length,
        prefill_chunk=config.scheduler.prefill_chunk or config.scheduler.token_budget,
    )
    values = flatten(replace(config, scheduler=scheduler))
    used = config.kv_cache.enabled
    values["threads.count"] = loaded.threads.count
    values["threads.wait_policy"] = loaded.threads.wait_policy
    values["kv_cache.format"] = facts.kv_format
    values["kv_cache.blocks"] = blocks
    values["kv_cache.bytes_per_token"] = sum(facts.kv_bytes_per_token) if used else 0
    values["kv_cache.pool_bytes"] = sum(facts.kv_bytes_per_token) * config.kv_cache.block_tokens * blocks
    values["numerics.mode"] = facts.numerics_mode or config.numerics.mode
    values["kernel_path"] = facts.kernel_path
    values["model.architecture"] = facts.architecture
    values["model.parameters"] = facts.parameters
    values["model.weight_bytes"] = facts.weight_bytes
    for part, digest in loaded.fingerprint().items():
        values["model.sha256" if part == "model" else f"model.{part}_sha256"] = digest
    return values
