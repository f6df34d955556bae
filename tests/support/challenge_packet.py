"""A packet whose arms run on the model that ships: the author's results are synthetic, the engine is the real one.

`build(folder, corner=...)` plants a delay in the candidate (see intaglio/config_corner.py), as a value that is said to
follow from the factor, so that the packet is whole.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from counterproof_review.packet.build import build as pack
from intaglio.config import EngineConfig, flatten
from intaglio.models import catalogue

CORNER = "engine.inject.corner"


def _sibling(name: str) -> ModuleType:
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


studies = _sibling("packet_study")


def study(
    store: Path, corner: str | None = None, candidate: dict[str, Any] | None = None, **fields: Any
) -> Path:
    """A sealed synthetic study over the tiny model. candidate: configuration that the candidate has besides."""
    synthetic = studies.synthetic
    config_of, plan_of = synthetic._config, synthetic.plan_of
    own = {CORNER: corner, **(candidate or {})}
    defaults = {f"engine.{path}": value for path, value in flatten(EngineConfig()).items()}

    def config(model: Any, arm: str) -> dict[str, Any]:
        plain = {
            **config_of(model, arm),
            "engine.threads.count": 1,
            CORNER: None,
            "engine.numerics.mode": "invariant",
        }
        plain |= {path: defaults[path] for path in own}
        return {**plain, **own} if arm == "candidate" else plain

    def plan(model: Any) -> dict[str, Any]:
        changed = sorted(path for path, value in own.items() if value != defaults[path])
        found = plan_of(model)
        found["factor"]["moves"]["effective"] += [path.removeprefix("engine.") for path in changed]
        return {**found, "fan_out": [{"path": path} for path in changed]}

    with mock.patch.object(synthetic, "_config", config), mock.patch.object(synthetic, "plan_of", plan):
        folder: Path = studies.build(store, catalogue.catalogue_folder("tiny"), **fields)
        return folder


def build(place: Path, corner: str | None = None, **fields: Any) -> Path:
    """An open packet of such a study; returns its file."""
    return pack(study(place / "store", corner, **fields), out=place / "claim.rep.zip").path
