"""The native library of this machine, and contexts on every instruction set that it can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from intaglio.compute.native import status
from intaglio.compute.native.library import Context, Library

ISAS = ("avx512bf16", "avx512", "avx2", "neon", "portable")


@pytest.fixture(scope="session")
def library() -> Library:
    """The library; tests are skipped with the reason where it cannot be had."""
    state = status.status("")
    if state.library is None:
        pytest.skip(f"no native kernels: {state.reason}")
    return state.library


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest, library: Library) -> str:
    """Each instruction set in turn, skipped where this processor lacks it."""
    if request.param not in library.isas():
        pytest.skip(f"this processor or compiler has no {request.param}")
    return str(request.param)


@pytest.fixture(scope="module")
def context(library: Library, isa: str) -> Iterator[Context]:
    """A context of two threads."""
    made = Context(library, isa, threads=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def contexts(library: Library, isa: str) -> Iterator[Callable[[int], Context]]:
    """Contexts by thread count, made once."""
    made: dict[int, Context] = {}

    def by_threads(threads: int) -> Context:
        if threads not in made:
            made[threads] = Context(library, isa, threads)
        return made[threads]

    yield by_threads
    for one in made.values():
        one.close()
