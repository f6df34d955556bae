"""What every runner speaks: one JSON task on standard input, one JSON answer on standard output.

A task names the model's files, the dtype, the threads, a warm-up and the batches to measure. Prompts of one
batch are submitted together; batches run one after the other. The answer holds, for each batch, the moments
of every token of every request, or `unsupported` with the reason why this engine cannot do the task.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

SCHEMA = "counterproof-peer-run/1"
Prompts = list[list[int]]


class UnsupportedTaskError(Exception):
    """The engine cannot run this task; the text says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """model     folder with config.json and safetensors
    prepared  files made by setup.py for this peer by name, e.g. {"bf16": a GGUF file}
    dtype     fp32, bf16 or q4_1
    cache     whether keys and values are kept; prefix_cache: whether requests may share them
    warm      prompts run before anything is measured, each to `warm_new` tokens
    batches   prompts to measure, each to `new` tokens whatever the end-of-sequence token
    options   what one contestant differs by from another of the same peer
    """

    model: str
    prepared: dict[str, str]
    dtype: str
    threads: int
    wait_policy: str
    cache: bool
    prefix_cache: bool
    warm: Prompts
    warm_new: int
    batches: list[Prompts]
    new: int
    options: dict[str, Any]

    def longest(self) -> int:
        """Positions the longest request needs, the warm-up's included."""
        measured = max(len(prompt) for batch in self.batches for prompt in batch) + self.new
        return max([measured, *(len(prompt) + self.warm_new for prompt in self.warm)])

    def positions(self) -> int:
        """KV positions that the largest batch needs at once, its prompts sharing nothing."""
        measured = [sum(len(prompt) + self.new for prompt in batch) for batch in self.batches]
        return max([*measured, sum(len(prompt) + self.warm_new for prompt in self.warm)])

    def widest(self) -> int:
        """Requests in the largest batch, the warm-up's included."""
        return max([*(len(batch) for batch in self.batches), len(self.warm)])


@dataclass(slots=True)
class Batch:
    """One batch's moments (perf_counter_ns): `start` at submission, one stamp a token, and the tokens."""

    start: int
    stamps: list[list[int]]
    tokens: list[list[int]]

    @classmethod
    def begin(cls, requests: int) -> Batch:
        """An empty batch that starts now."""
        return cls(time.perf_counter_ns(), [[] for _ in range(requests)], [[] for _ in range(requests)])

    def put(self, request: int, tokens: list[int]) -> None:
        """Note tokens that have just arrived for a request."""
        now = time.perf_counter_ns()
        self.stamps[request].extend([now] * len(tokens))
        self.tokens[request].extend(tokens)


class Engine(Protocol):
    """What a runner builds: loading happens in its constructor."""

    def run(self, prompts: Prompts, new: int) -> Batch:
        """Greedy tokens for prompts submitted together, exactly `new` each."""

    def facts(self) -> dict[str, str]:
        """What really runs: attention path, cache format, thread library; plain text."""


def serve(build: Callable[[Task], Engine], packages: tuple[str, ...]) -> int:
    """Read the task, run it with the engine that `build` makes, write the answer. Returns the exit status."""
    answer_to = _claim_stdout()
    task = Task(**json.load(sys.stdin))
    try:
        answer = _measure(build, task)
    except UnsupportedTaskError as reason:
        answer = {"unsupported": str(reason)}
    answer |= {"schema": SCHEMA, "versions": _versions(packages), "threads": task.threads}
    with os.fdopen(answer_to, "w", encoding="utf-8") as out:
        out.write(json.dumps(answer) + "\n")
    sys.stderr.flush()
    # some engines' own threads do not end; everything that counts is written
    os._exit(0)


def _measure(build: Callable[[Task], Engine], task: Task) -> dict[str, Any]:
    began = time.perf_counter_ns()
    engine = build(task)
    loaded = time.perf_counter_ns()
    if task.warm:
        engine.run(task.warm, task.warm_new)
    warmed = time.perf_counter_ns()
    batches = [_checked(engine.run(prompts, task.new), task.new) for prompts in task.batches]
    return {
        "load_ms": (loaded - began) / 1e6,
        "warm_ms": (warmed - loaded) / 1e6,
        "peak_rss_mib": peak_rss_mib(),
        "facts": engine.facts(),
        "batches": [_times(batch) for batch in batches],
    }


def _checked(batch: Batch, new: int) -> Batch:
    short = [len(tokens) for tokens in batch.tokens if len(tokens) != new]
    if short:
        raise RuntimeError(f"a request returned {short[0]} tokens instead of {new}")
    return batch


def _times(batch: Batch) -> dict[str, Any]:
    """Milliseconds since the batch's submission."""
    stamps = [[(stamp - batch.start) / 1e6 for stamp in row] for row in batch.stamps]
    return {
        "wall_ms": max(row[-1] for row in stamps),
        "requests": [
            {"ttft_ms": row[0], "total_ms": row[-1], "tokens": tokens}
            for row, tokens in zip(stamps, batch.tokens, strict=True)
        ],
    }


def peak_rss_mib() -> float:
    """Largest resident set of this process and of its largest child so far, in MiB.

    The kernel's mark of this address space, where there is one: rusage keeps the mark across exec, so
    it could report the parent's size."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                own = int(line.split()[1]) / 1024
    return own


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _claim_stdout() -> int:
    """A descriptor of the real standard output; whatever libraries print goes to standard error from here on."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept
