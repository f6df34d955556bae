"""Composition: an experiment and its overrides become one read-only, fully typed configuration.

Hydra composes and does nothing else: no launcher, no multirun, no callbacks, no `_target_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from counterproof.errors import InputError, RefusedError
from counterproof.plan import locate, overrides, schema
from counterproof.plan.schema import ExperimentConfig
from intaglio.config import EngineConfig, from_flat
from intaglio.errors import ConfigError

HYDRA_VERSION_BASE = "1.3"


@dataclass(frozen=True)
class Composition:
    """One composed configuration.

    unresolved  `{leaf: value}` with interpolations as they are written: what the single-variable rule compares
    resolved    the same leaves with their values
    config      the typed tree
    text        the composed YAML, unresolved
    """

    experiment: str
    tokens: tuple[str, ...]
    unresolved: dict[str, Any]
    resolved: dict[str, Any]
    config: ExperimentConfig
    text: str


def compose(experiment: str, tokens: Sequence[str], folder: Path | None = None) -> Composition:
    """Compose `experiment` with checked override tokens.

    Raises InputError (unknown experiment, value missing, wrong type) or RefusedError (resolvers, `_target_`).
    """
    place = folder or locate.experiments_folder()
    locate.check_experiment(place, experiment)
    overrides.check(tokens, place)
    ConfigStore.instance().store(name=schema.SCHEMA_NAME, node=_open_schema(), provider="counterproof")
    try:
        with initialize_config_dir(config_dir=str(place), version_base=HYDRA_VERSION_BASE):
            tree = hydra_compose(config_name=experiment, overrides=list(tokens))
        OmegaConf.set_readonly(tree, True)
        unresolved = dict(flatten(OmegaConf.to_container(tree, resolve=False)))
        _refuse_calls(experiment, unresolved)
        resolved = dict(flatten(OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)))
        config = _typed(tree, experiment)
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise InputError(f"{experiment} cannot be composed: {lines[0]}", details=lines[1:6]) from None
    _check(config)
    return Composition(experiment, tuple(tokens), unresolved, resolved, config, OmegaConf.to_yaml(tree))


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted path, leaf)` of nested mappings; a list is one leaf, and so is an empty mapping."""
    if isinstance(node, dict) and (node or not prefix):
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def engine_of(resolved: dict[str, Any]) -> EngineConfig:
    """The engine's configuration of a flat resolved one. Raises InputError."""
    values = {path[7:]: value for path, value in resolved.items() if path.startswith("engine.")}
    try:
        return from_flat(values)
    except ConfigError as error:
        raise InputError(f"engine.{error}") from None


def _open_schema() -> DictConfig:
    """The schema while it is being composed: frozen classes make read-only nodes, which could not be merged
    into; the finished tree is made read-only as a whole."""
    tree = OmegaConf.structured(ExperimentConfig)
    pending = [tree]
    while pending:
        node = pending.pop()
        OmegaConf.set_readonly(node, None)
        if not node._is_none():
            children = (node._get_node(key) for key in node)
            pending += [child for child in children if isinstance(child, DictConfig)]
    return tree


def _typed(tree: DictConfig, experiment: str) -> ExperimentConfig:
    config = OmegaConf.to_object(tree)
    if not isinstance(config, ExperimentConfig):
        raise InputError(
            f"{experiment} does not build on the schema",
            details=[f"its defaults must begin with '- {schema.SCHEMA_NAME}'"],
        )
    return config


def _refuse_calls(experiment: str, leaves: dict[str, Any]) -> None:
    faults = []
    for path, value in leaves.items():
        parts = value if isinstance(value, list) else [value]
        if path.split(".")[-1] == "_target_":
            faults.append(f"{path}: configurations are data and instantiate nothing")
        if any(overrides.has_resolver(part) for part in parts):
            faults.append(f"{path}: resolvers are refused, their value is not the same every time: {value}")
    if faults:
        raise RefusedError(f"{experiment} is refused: {faults[0]}", details=faults[1:])


def _check(config: ExperimentConfig) -> None:
    try:
        config.engine.validate()
    except ConfigError as error:
        raise InputError(f"engine.{error}") from None
    if config.calibration and config.factor is not None:
        raise InputError(f"{config.name} is a calibration and must not have a factor")
    if not config.calibration and config.factor is None:
        raise InputError(f"{config.name} needs a factor: the one thing it varies")
    if config.factor is not None and config.factor.kind not in ("leaf", "group"):
        raise InputError(f"factor.kind must be leaf or group, not '{config.factor.kind}'")
