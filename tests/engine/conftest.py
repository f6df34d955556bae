"""Fixtures of the engine's tests: the worker driver and small random checkpoints. Nothing here imports torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def load_support(name: str) -> ModuleType:
    """The module `tests/support/<name>.py`, executed once per process."""
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
def drive() -> ModuleType:
    """The module tests/support/worker_driver.py."""
    return load_support("worker_driver")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint(family, **sizes)` writes a random model once per session and returns its folder."""
    write = load_support("random_checkpoint").write
    made: dict[str, Path] = {}

    def build(family: str = "llama", **sizes: object) -> Path:
        key = f"{family} {sorted(sizes.items())}"
        if key not in made:
            made[key] = write(tmp_path_factory.mktemp(family), family, **sizes)
        return made[key]

    return build
