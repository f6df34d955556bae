"""The native kernels, which quantised weights and bitwise equality need."""

from __future__ import annotations

import pytest

from intaglio.compute.native import status
from intaglio.compute.native.library import Library


@pytest.fixture(scope="session")
def library() -> Library:
    """The library; tests are skipped with the reason where it cannot be had."""
    state = status.status("")
    if state.library is None:
        pytest.skip(f"no native kernels: {state.reason}")
    return state.library
