"""Arm files: one fully resolved engine configuration each, with the same keys in the same order.

An arm file holds values only. It names its model by digest, so that it can point to no place, and its keys
are the engine's configuration paths, so that nothing in it can become code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof_review.packet import canonical, layout
from counterproof_review.packet.documents import ARM_SCHEMA, PADDED_ARM_SCHEMA
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.models import PREFIX
from intaglio.config import EngineConfig, Scalar, flatten, from_flat
from intaglio.config_history import complete
from intaglio.errors import ConfigError

# Values that name a model; they hold a digest in a packet and a folder only while a replay runs.
MODEL_PATHS = ("model", "speculation.draft_model")
FILLER = "."
_FORMS = {ARM_SCHEMA: {"schema", "engine"}, PADDED_ARM_SCHEMA: {"schema", "engine", "filler"}}


def opaque_of(path: str) -> str:
    """The opaque name in an arm file's path."""
    return path.removeprefix(layout.ARMS).removesuffix(".json")


def resolve(engine: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Every configuration path of the engine, those not given at their defaults (E_ARMS if refused)."""
    return flatten(_resolved(engine, layout.ARMS))


def to_document(engine: Mapping[str, Scalar]) -> dict[str, Any]:
    """The content of an arm file."""
    return {"schema": ARM_SCHEMA, "engine": resolve(engine)}


def padded(documents: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Arm files of one size: values have different lengths, and a length would tell one arm from another."""
    filled = {name: {**d, "schema": PADDED_ARM_SCHEMA, "filler": ""} for name, d in documents.items()}
    sizes = {name: len(canonical.encode(d)) for name, d in filled.items()}
    longest = max(sizes.values())
    return {name: {**d, "filler": FILLER * (longest - sizes[name])} for name, d in filled.items()}


def check(path: str, document: Mapping[str, Any], references: frozenset[str]) -> dict[str, Scalar]:
    """The configuration of an arm file, with what an engine of its time did for paths that came later.

    Raises PacketError E_SCHEMA or E_ARMS for unknown, missing or mistyped keys, and E_UNSAFE for a model that
    is not named by a digest of the packet's own lock.
    """
    if set(document) != _FORMS.get(str(document.get("schema"))):
        raise PacketError("E_SCHEMA", f"is not of schema {ARM_SCHEMA} with the key engine alone", path=path)
    filler = document.get("filler", "")
    if not isinstance(filler, str) or filler.strip(FILLER):
        raise PacketError("E_SCHEMA", "its filler says something", path=path)
    engine = document["engine"]
    if not isinstance(engine, dict):
        raise PacketError("E_SCHEMA", "engine is no object", path=path)
    for key in MODEL_PATHS:
        value = engine.get(key)
        if value is not None and not (isinstance(value, str) and value in references):
            raise PacketError(
                "E_UNSAFE", f"{key} must be '{PREFIX}<digest>' of the packet's models", path=path
            )
    known = complete(engine)
    resolved = flatten(_resolved(known, path))
    if set(resolved) != set(known):
        missing = ", ".join(sorted(set(resolved) - set(known)))
        raise PacketError("E_ARMS", f"is not fully resolved: {missing} missing", path=path)
    return resolved


def check_equal_keys(arms: Mapping[str, Mapping[str, Scalar]]) -> None:
    """Every arm, as written, has the same keys in the same order, and there are at least two arms (E_ARMS)."""
    if len(arms) < 2:
        raise PacketError("E_ARMS", "a packet compares at least two arms")
    keys = {opaque: tuple(config) for opaque, config in arms.items()}
    if len(set(keys.values())) != 1:
        raise PacketError("E_ARMS", "the arms do not have the same keys", path=layout.ARMS)


def _resolved(engine: Mapping[str, Any], path: str) -> EngineConfig:
    try:
        return from_flat(engine)
    except ConfigError as error:
        raise PacketError("E_ARMS", str(error), path=path) from None
