"""The stand-in model of the policy tests, loaded by path so that sys.path stays as it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
