"""The stand-in model of the policy tests, loaded by path so that sys.path stays as it is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from intaglio.config import Scalar, from_flat

SUPPORT = Path(__file__).resolve().parents[2] / "support"


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module tests/support/fake_engine.py."""
    name = "intaglio_tests_fake_engine"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT / "fake_engine.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def moving(fake: ModuleType) -> ModuleType:
    """The module tests/support/moving_engine.py: the stand-in model that also moves blocks."""
    name = "intaglio_tests_moving_engine"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT / "moving_engine.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def make_contexts(moving: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """As `make`, with a context cache in the test's own folder; blocks are all accounted for at the end."""
    engines = []

    def build(**values: Scalar) -> Any:
        flat: dict[str, Scalar] = {"kv_cache.block_tokens": 4, "kv_cache.blocks": 64}
        flat |= {"context_cache.enabled": True, "context_cache.folder": str(tmp_path / "contexts")}
        flat |= {name.replace("__", "."): value for name, value in values.items()}
        engines.append(moving.make_engine(from_flat(flat)))
        return engines[-1]

    yield build
    for engine in engines:
        engine.check_integrity()
        engine.close()


@pytest.fixture
def make(fake: ModuleType) -> Iterator[Any]:
    """make(path=value with __ for the dot) -> an engine on the stand-in model, closed afterwards."""
    engines = []

    def build(**values: Scalar) -> Any:
        flat: dict[str, Scalar] = {"kv_cache.block_tokens": 4, "kv_cache.blocks": 64}
        flat.update({name.replace("__", "."): value for name, value in values.items()})
        engine = fake.make_engine(from_flat(flat))
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.close()
        assert engine.fake.closed
