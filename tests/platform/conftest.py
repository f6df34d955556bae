"""Fixtures of the harness's tests: the synthetic study, loaded by path so that sys.path stays as it is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def load_support(name: str) -> ModuleType:
    """The module `tests/support/<name>.py`, executed once per process."""
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SUPPORT / f"{name}.py")
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module that builds sealed synthetic studies: `synthetic.build(store, synthetic.StudyModel(...))`."""
    return load_support("synthetic_study")


@pytest.fixture(scope="session")
def synthetic_store() -> ModuleType:
    """The module that writes many synthetic studies at once: `synthetic_store.fill(store, 20, blocks=1)`."""
    return load_support("synthetic_store")


@pytest.fixture
def build_study(synthetic: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    """`build_study(field=value, ...)` writes a study into this test's own store and returns its folder."""

    def build(**fields: Any) -> Path:
        return synthetic.build(tmp_path / "store", synthetic.StudyModel(**fields))

    return build
