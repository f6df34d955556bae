"""Three parties of a review, each with a home and keys of its own, and a measuring machine that is a few lines of arithmetic.

`Parties(folder)` makes the homes. `with parties.of("author"): ...` acts as one of them. `Machine(...)` stands in for
`replay.measure`: it verifies the packet as the real one does, follows the schedule, and writes estimates.json.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from counterproof.cli import main
from counterproof.errors import ExecutionError
from counterproof.record import atomic, canonical
from counterproof_review.packet import extract, layout, schedule
from counterproof_review.packet.executor import ESTIMATES
from counterproof_review.packet.replay import Measured, Options
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.trust import keys, private, registry

ROLES = ("author", "reviewer", "steward")
MEASURE = ("counterproof_review.packet.replay.measure", "counterproof_review.protocol.author_steps.measure")


class Parties:
    """Homes, keys and a registry that everybody trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys: dict[str, keys.KeyPair] = {}
        for role in ROLES:
            (folder / role).mkdir(parents=True)
            with self.of(role):
                self.keys[role] = keys.new(f"key-of-{role}")
        steward = self.keys["steward"]
        people = [(self.keys[role].public(), role) for role in ("author", "reviewer")]
        self.registry = folder / "registry.dsse.json"
        self.registry.write_bytes(registry.create(steward, people))
        for role in ROLES:
            with self.of(role):
                private.trust(steward.key_id)

    @contextlib.contextmanager
    def of(self, role: str) -> Iterator[None]:
        """Act as one party: its home, its keys, its user."""
        home = self.folder / role
        named = {
            "HOME": str(home),
            "COUNTERPROOF_KEYS": str(home / "keys"),
            "USER": f"user-{role}",
            "LOGNAME": f"user-{role}",
        }
        with mock.patch.dict(os.environ, named):
            yield

    def do(self, role: str, *arguments: str | Path) -> int:
        """Run one command as a party; returns its exit code."""
        with self.of(role):
            return main([str(argument) for argument in arguments])


@dataclass
class Machine:
    """A machine on which the candidate takes `ratio` times the baseline's time.

    sees_salt  whether a delay of a step shows; crash_after: runs before it fails (None: never)
    """

    ratio: float = 0.5
    noise: float = 0.005
    drift: float = 0.0  # log difference of two equal arms
    sees_salt: bool = True
    same_output: bool = True
    tokens: float = 1.0  # the candidate's output length over the baseline's
    hardware: dict[str, Any] = field(
        default_factory=lambda: {"cpu.model": "Synthetic CPU", "cpu.logical": 2, "os.machine": "x86_64"}
    )
    crash_after: int | None = None
    inert: bool = False  # the candidate's flag does nothing
    seed: int = 0
    calls: int = 0

    def measure(self, archive: Any, options: Options, _say: Any, _progress: Any) -> Measured:
        """As `replay.measure`, without an engine."""
        report = Verification()
        verify(archive, report)
        folder = extract.empty_folder(options.folder)
        blocks = options.blocks or int(report.packet["blocks"])
        nonce = options.nonce or bytes(32)
        self.calls += 1
        places = schedule.runs(report.root, nonce, blocks, report.arms)
        runs = [self._run(report, block, arm) for block, arm in places]
        whole = self.crash_after is None
        kept = runs if whole else runs[: self.crash_after]
        atomic.write_json(folder / ESTIMATES, {"runs": kept, "failed": []})
        if not whole:
            raise ExecutionError("the machine went away")
        digest = canonical.sha256_file(folder / ESTIMATES)
        return Measured(
            report, {"runs": kept, "failed": []}, blocks, self.hardware, {"probe": "refused"}, digest, nonce
        )

    def _noise(self, report: Verification, block: int, arm: str) -> float:
        """This run's noise, in log units: the same whatever the nonce and the opaque names are, which are random.

        One A/A comparison in a hundred fails its gate by chance; drawn in the order of the runs, this one would, too.
        """
        config = report.arms[arm]
        same = sorted(name for name, other in report.arms.items() if other == config)
        kind = (
            2 * bool(config["inject.step_delay_us"]) + 4 * bool(config["kv_cache.enabled"]) + same.index(arm)
        )
        return float(np.random.default_rng([self.seed, self.calls, block, kind]).normal(0.0, self.noise))

    def _run(self, report: Verification, block: int, arm: str) -> dict[str, Any]:
        config = report.arms[arm]
        is_candidate = bool(config["kv_cache.enabled"]) and not self.inert
        delay = config["inject.step_delay_us"] / 1000 if self.sees_salt else 0.0
        step = 10.0 * (self.ratio if is_candidate else 1.0) * math.exp(self._noise(report, block, arm))
        if self.drift and not is_candidate and not delay:
            # One of two equal arms, by its name alone.
            equal = sorted(a for a, c in report.arms.items() if c == config)
            step *= math.exp(self.drift) if arm == equal[-1] else 1.0
        output = "other" if is_candidate and not self.same_output else "same"
        count = report.packet["requests"][block]
        return {
            "arm": arm,
            "block": block,
            "value": step + delay,
            "reason": None,
            "samples": count,
            "failed_requests": 0,
            "output_tokens": int(100 * (self.tokens if is_candidate else 1.0)),
            "step_ms": step + delay,
            "outputs_sha256": [output] * count,
            "effective_sha256": canonical.sha256_json([is_candidate, config["inject.step_delay_us"]]),
            "manifest_sha256": "0" * 64,
            "tokens_computed": 1,
            "seconds": 0.0,
        }

    @contextlib.contextmanager
    def working(self) -> Iterator[Machine]:
        """Let this machine do every measurement."""
        with contextlib.ExitStack() as stack:
            for place in MEASURE:
                stack.enter_context(mock.patch(place, self.measure))
            yield self


def arms_of(packet: Path) -> list[str]:
    """The opaque names in a packet."""
    from counterproof_review.packet.reader import Archive

    with Archive.open(packet) as opened:
        return sorted(
            name.removeprefix(layout.ARMS).removesuffix(".json")
            for name in opened.members
            if name.startswith(layout.ARMS)
        )
