"""After every step of a review: what is due next, and by whom."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from counterproof.commands.console import note
from counterproof.errors import EXIT_OK


def then(func: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command `func` in the folder args.review; when it went well, it also says what is due next."""

    def run(args: argparse.Namespace) -> int:
        code = func(args)
        if code == EXIT_OK:
            tell(args)
        return code

    return run


def tell(args: argparse.Namespace) -> None:
    """Print what is due in the folder args.review."""
    from counterproof_review.protocol import folder, next_step

    state = folder.read(args.review).state
    for fault in state.faults:
        note(f"a breach stands in the record, so that the review can only end INVALID: {fault}")
    steps = next_step.due(state)
    for step in steps:
        note(str(step))
    if not steps:
        note(
            "next, author: counterproof review attach BUNDLE STUDY   (the review is over; export makes the bundle)"
        )
