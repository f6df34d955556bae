"""Did somebody set the wall clock while a study ran? Durations do not depend on it, the times of a journal do."""

from __future__ import annotations

import time

from counterproof.record import injection

# Slewing by a time service moves a clock by at most 0.05 %; a step is larger.
STEP_SECONDS = 2.0


class ClockWatch:
    """Compares the wall clock with the monotonic one."""

    def __init__(self) -> None:
        self._offset = self._now()

    def stepped_s(self) -> float | None:
        """By how much the wall clock was set since the last call (negative: back), None if it was not."""
        offset = self._now()
        step, self._offset = offset - self._offset, offset
        return step if abs(step) >= STEP_SECONDS else None

    @staticmethod
    def _now() -> float:
        return injection.now().timestamp() - time.monotonic()
