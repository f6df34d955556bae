"""Fixtures of the server's tests: the stand-in model and the modules that put it behind HTTP."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def _load(name: str) -> ModuleType:
    key = f"intaglio_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SUPPORT / f"{name}.py")
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module tests/support/fake_engine.py."""
    return _load("fake_engine")


@pytest.fixture(scope="session")
def web() -> ModuleType:
    """The module tests/support/fake_server.py."""
    return _load("fake_server")


@pytest.fixture
def serve(fake: ModuleType, web: ModuleType) -> Callable[..., Any]:
    """serve(values, gate=..., limits=..., keys=...) -> a Service on the stand-in model. Close it, or use it as
    web.client(service) or web.running(service), which do."""
    from intaglio.serve.service import Service

    def make(values: dict[str, Any] | None = None, *, gate: Any = None, **options: Any) -> Service:
        return Service(web.configure(values), factory=web.factory(fake, gate), **options)

    return make
