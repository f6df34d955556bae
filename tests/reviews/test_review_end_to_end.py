"""Whole reviews with real processes: a study that ran, a packet replayed cold and blind, and every way it should end.

The engine is a target whose steps have a known length, so that what is true is known: the author's candidate takes a
quarter of the baseline's time. The reviewer's own code decides what the reviewer finds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.record import code_identity
from counterproof.record.store import open_store
from counterproof.run.register import StudyRequest, register
from counterproof_review.protocol import folder as folders

SUPPORT = Path(__file__).resolve().parents[1] / "support"
FIXED = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")
DISTRIBUTION = "counterproof_timed_target-1.0.dist-info"
ROLES = ("author", "reviewer", "steward")
TRUTH: dict[str, Any] = {"gain": 4.0, "deaf": False, "noise": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    "true": {},
    "inflated": {"gain": 1.0},
    "deaf": {"deaf": True},
    "noisy": {"noise": 1.0},
}
DEADLINE = 300
EXPERIMENT = """
defaults:
  - counterproof_schema
  - _self_
name: timed
question: Is this review sound?
target: timed
engine:
  model: MODEL
  dtype: fp32
  threads: {count: 1}
factor:
  path: engine.kv_cache.enabled
  baseline: false
  candidate: true
  lossless: true
  attacks: arithmetic
  bottleneck: none, this is a test
  moves: {effective: [kv_cache.blocks, kv_cache.bytes_per_token, kv_cache.pool_bytes], environment: [], model: []}
workload:
  builder: pydoc_questions
  requests: 3
  prompt_tokens: 40
  max_new_tokens: 4
  warmup_requests: 1
primary: {metric: tpot_ms, statistic: mean, better: lower, sesoi: 0.05}
guardrails:
  - {metric: outputs, statistic: identical, kind: exact, margin: 0.0, better: equal}
study: {blocks: 6, seed: 5, slowed_delay_us: 2000, equivalence_requests: 2, run_deadline_s: 60.0, attempts: 2,
  probes: false}
"""


class Review:
    """One review below `base`: three homes, three folders, each party with a store and a target of its own."""

    def __init__(self, parties: Any, base: Path) -> None:
        self.parties, self.base = parties, base
        self.place = {role: base / f"of-{role}" for role in ROLES}

    @contextlib.contextmanager
    def as_(self, role: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, self.parties.of(role):
            patch.setenv("COUNTERPROOF_STORE", str(self.base / f"store-of-{role}"))
            patch.setenv("PYTHONPATH", str(self.base / f"code-of-{role}"), prepend=os.pathsep)
            patch.syspath_prepend(str(self.base / f"code-of-{role}"))
            yield

    def do(self, role: str, step: str, *arguments: Any) -> int:
        """Take one step as one party, then hand its bundle to the others."""
        with self.as_(role):
            code = self.parties.do(role, "review", step, *arguments, "--review", self.place[role])
        self.hand_on(role)
        return int(code)

    def hand_on(self, role: str) -> None:
        """Give a party's bundle to the others."""
        bundle = self.base / f"from-{role}.zip"
        assert self.parties.do(role, "review", "export", bundle, "--review", self.place[role]) == 0
        for other in ROLES:
            if other != role:
                taken = self.parties.do(other, "review", "import", bundle, "--review", self.place[other])
                assert taken == 0

    def start_replay(self) -> subprocess.Popen[bytes]:
        """ACCEPT, and the reviewer's replay in a process of its own, on a machine of its own as far as locks go."""
        assert self.do("reviewer", "accept", "--independent") == 0
        argv = [
            sys.executable,
            "-m",
            "counterproof",
            "review",
            "replay",
            "--review",
            str(self.place["reviewer"]),
        ]
        with self.as_("reviewer"):
            env = {**os.environ, "COUNTERPROOF_MACHINE_LOCK": str(self.base / "machine.lock")}
        with (self.base / "replay.log").open("wb") as log:
            return subprocess.Popen(
                argv, env=env, cwd=self.base, stdout=log, stderr=log, start_new_session=True
            )

    def install(self, role: str, **way: Any) -> None:
        """Put the target among a party's code, as a package would; `way`: how it differs from the truth."""
        place = self.base / f"code-of-{role}"
        shutil.rmtree(place, ignore_errors=True)
        info = place / DISTRIBUTION
        info.mkdir(parents=True)
        shutil.copy(SUPPORT / "fake_target.py", place / "counterproof_fake_target.py")
        shutil.copy(SUPPORT / "timed_target.py", place / "counterproof_timed_target.py")
        (place / "timed_target.json").write_text(json.dumps({**TRUTH, **way}))
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: counterproof-timed-target\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            "[counterproof.targets]\ntimed = counterproof_timed_target:TimedKind\n"
        )

    def finish(self) -> dict[str, Any]:
        """From the end of the replay to both signatures; every run of the packet was made again."""
        self.hand_on("reviewer")
        with self.parties.of("reviewer"):
            (end,) = folders.read(self.place["reviewer"]).state.ends
        assert len(end.body["runs"]) == 24
        assert all(run["samples"] == 3 and run["output_tokens"] == 12 for run in end.body["runs"])
        assert end.body["network"] != "open"
        guess = min(end.body["runs"], key=lambda run: float(run["value"]))["arm"]
        assert self.do("reviewer", "freeze", "--guess", guess, "--confidence", "0.9") == 0
        assert self.do("author", "reveal") == 0
        assert self.do("reviewer", "challenge", "--none", "the estimate alone is looked at here") == 0
        assert self.do("reviewer", "verdict") == 0
        assert self.do("steward", "verdict") == 0
        found: dict[str, Any] = json.loads((self.place["author"] / "verdict.json").read_text())
        return found


@pytest.fixture(scope="module")
def issued(
    parties_module: ModuleType, fake_model: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A review up to ISSUE: the folder with everything of it. Copy it, never change it."""
    base = tmp_path_factory.mktemp("issued")
    shutil.copytree(repository / "experiments", base / "experiments")
    (base / "experiments" / "timed.yaml").write_text(EXPERIMENT.replace("MODEL", str(fake_model)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_identity, "identify", lambda start=None: FIXED)
        patch.setenv("COUNTERPROOF_EXPERIMENTS", str(base / "experiments"))
        patch.setenv("COUNTERPROOF_MACHINE_LOCK", str(base / "machine.lock"))
        patch.setenv("INTAGLIO_MODELS", str(fake_model.parent))
        review = Review(parties_module.Parties(base / "homes"), base)
        for role in ROLES:
            registry = review.parties.registry
            assert review.parties.do(role, "review", "init", review.place[role], "--registry", registry) == 0
            review.install(role)
        with review.as_("author"):
            register(open_store(), StudyRequest("timed", (), (), "claim", exploratory=True))
        assert review.do("author", "prereg", "claim", "--registered") == 0
        assert review.do("reviewer", "commit") == 0
        assert review.do("steward", "witness") == 0
        with review.as_("author"):
            assert review.parties.do("author", "resume", "claim") == 0
        assert review.do("author", "issue", "claim") == 0
        shutil.rmtree(base / "store-of-author")
        yield base


@pytest.fixture(scope="module")
def reviewed(
    issued: Path, parties_module: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """`reviewed(name)`: the verdict when the reviewer's machine is `WAYS[name]` different from the author's.

    The replays run side by side: most of their time goes into starting processes, and steps are stamped as they were
    meant, so that none disturbs another.
    """
    reviews: dict[str, Review] = {}
    replays: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, way in WAYS.items():
            base = tmp_path_factory.mktemp(name) / "review"
            shutil.copytree(issued, base)
            parties = object.__new__(parties_module.Parties)
            parties.folder = base / "homes"
            parties.registry = parties.folder / "registry.dsse.json"
            reviews[name] = Review(parties, base)
            reviews[name].install("reviewer", **way)
            replays[name] = reviews[name].start_replay()

        def finish(name: str) -> dict[str, Any]:
            code = replays[name].wait(DEADLINE)
            assert code == 0, (reviews[name].base / "replay.log").read_text()
            return reviews[name].finish()

        yield finish
    finally:
        for process in replays.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_true_gain_is_replicated(reviewed: Callable[[str], dict[str, Any]]) -> None:
    found = reviewed("true")
    assert (found["verdict"], found["grows"]) == ("REPLICATED", True), found["reason"]
    assert found["theta_replay"] == pytest.approx(4.0, rel=0.02)
    assert found["theta_author"] == pytest.approx(4.0, rel=0.02)
    assert found["guess"]["right"] is True
    assert found["attempts"][0]["blocks"] == 6


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("inflated", "NOT_REPLICATED", "smallest effect"),
        ("deaf", "INVALID", "known delay"),
        ("noisy", "INVALID", "A/A"),
    ],
)
def test_what_the_reviewer_finds_decides(
    reviewed: Callable[[str], dict[str, Any]], name: str, verdict: str, says: str
) -> None:
    found = reviewed(name)
    assert found["verdict"] == verdict, found["reason"]
    assert says in found["reason"]
    assert found["grows"] is False
    assert found["theta_author"] == pytest.approx(4.0, rel=0.02)
