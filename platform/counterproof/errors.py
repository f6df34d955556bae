"""Typed errors of the harness and the exit codes they map to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_AGAINST = 1
EXIT_INPUT = 2
EXIT_SETUP = 3
EXIT_EXECUTION = 4
EXIT_INVALID = 5
EXIT_INTERRUPTED = 130


class CounterproofError(Exception):
    """Base. `exit_code` is what the command line returns; `details` are printed one a line."""

    exit_code: int = EXIT_EXECUTION

    def __init__(self, message: str, *, details: list[str] | None = None) -> None:
        super().__init__(message)
        self.details = details or []


class InputError(CounterproofError):
    """The user's input is at fault: an override, a path, a study that does not exist."""

    exit_code = EXIT_INPUT


class RefusedError(InputError):
    """The single-variable rule refuses the candidate; `details` lists every difference."""


class SetupError(CounterproofError):
    """Something the run needs is not there: a model, a library, a writable store."""

    exit_code = EXIT_SETUP


class ExecutionError(CounterproofError):
    """A run failed although its input and set-up were right."""

    exit_code = EXIT_EXECUTION


def did_you_mean(name: str, known: Iterable[str]) -> list[str]:
    """One line that names the nearest of `known`, for an error's details; no line when none is near."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return [f"did you mean {' or '.join(near)}?"] if near else []


class EvidenceError(CounterproofError):
    """A record is tampered with, incomplete or contradicts its study: nothing may be concluded from it."""

    exit_code = EXIT_INVALID
