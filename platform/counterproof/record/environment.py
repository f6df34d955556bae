"""The environment record of a run: identity fields that must match the baseline's, and observed ones.

`environment.json`: {"schema", "env_id", "id": {field: value}, "observed": {...}, "excepted": [fields]}.
`env_id` is the sha256 over the identity fields without those that the factor declared to move, so that all
runs of a study carry the same one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any

from counterproof.record import canonical, machine

SCHEMA = "counterproof-environment/1"
LIBRARIES = ("numpy", "torch", "safetensors", "tokenizers", "pyarrow")


def common_identity(code: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that harness and engine process must agree on: code, machine, libraries, model hashes."""
    fields: dict[str, Any] = {f"code.{key}": value for key, value in code.items() if key != "dirty"}
    fields |= {key: value for key, value in machine.identity().items() if not key.startswith("env.")}
    fields |= {f"library.{name}": _version(name) for name in LIBRARIES}
    fields |= {f"model.{key}": value for key, value in model.items()}
    return fields


def build(
    common: Mapping[str, Any], engine: Mapping[str, Any], observed: Mapping[str, Any], excepted: Iterable[str]
) -> dict[str, Any]:
    """The record of one run. `engine`: what only the engine's process knows (threads, kernels, GPU)."""
    fields = {**common, **engine}
    left_out = sorted(set(excepted))
    return {
        "schema": SCHEMA,
        "env_id": env_id(fields, left_out),
        "id": fields,
        "observed": dict(observed),
        "excepted": left_out,
    }


def env_id(fields: Mapping[str, Any], excepted: Iterable[str] = ()) -> str:
    """sha256 over the identity fields, those in `excepted` left out."""
    left_out = set(excepted)
    return canonical.sha256_json({key: value for key, value in fields.items() if key not in left_out})


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
