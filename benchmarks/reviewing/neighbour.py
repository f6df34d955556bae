"""A neighbour on the machine who computes in bursts: some runs have the machine to themselves and some do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PER_CORE = 2
# All processes of one neighbour draw the same bursts, so that they are busy together.
_BURSTS = (
    "import os, random, sys, time\n"
    "chance, parent = random.Random(int(sys.argv[1])), os.getppid()\n"
    "longest, busy = float(sys.argv[2]), True\n"
    "print(flush=True)\n"
    "while os.getppid() == parent:\n"
    "    end = time.monotonic() + chance.uniform(longest / 8, longest)\n"
    "    while time.monotonic() < end:\n"
    "        if not busy: time.sleep(0.05)\n"
    "    busy = not busy\n"
)


@contextmanager
def neighbour(longest_s: float, seed: int) -> Iterator[None]:
    """Bursts and pauses of up to `longest_s` seconds on every core, until the block is left."""
    command = [sys.executable, "-S", "-c", _BURSTS, str(seed), str(longest_s)]
    count = PER_CORE * len(os.sched_getaffinity(0))
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for other in others:
            if other.stdout is None or not other.stdout.readline():
                raise RuntimeError("the neighbour did not start")
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()
