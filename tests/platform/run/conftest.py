"""Fixtures for tests that run studies: a fake target, a short experiment, a fixed code identity, a store."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from counterproof.record import code_identity
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.run.register import StudyRequest, register
from counterproof.run.runner import StudyRunner

SUPPORT = Path(__file__).resolve().parents[2] / "support"
FIXED = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")

EXPERIMENT = """
defaults:
  - counterproof_schema
  - _self_
name: short
question: Is this harness sound?
target: fake
engine:
  model: fake
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
  - metric: kv_bytes_peak
    statistic: peak
    kind: exact
    margin: 0.02
    better: lower
    predict: kv_bytes
    reason: its own bytes
study: {blocks: 2, seed: 5, slowed_delay_us: 1000, equivalence_requests: 2, run_deadline_s: 60.0, attempts: 2,
  probes: false}
"""


class Notes:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run_started(self, key: Any, number: int, total: int) -> None:
        self.lines.append(f"started {key.name} {number}/{total}")

    def requests_done(self, done: int, total: int) -> None:
        self.lines.append(f"requests {done}/{total}")

    def run_ended(self, key: Any, note: str) -> None:
        self.lines.append(f"ended {key.name} {note}")

    def waiting(self, what: str) -> None:
        self.lines.append(f"waiting {what}")

    def extended(self, missing: list[Any], reason: str) -> None:
        self.lines.append(f"extended {len(missing)} {reason}")


@pytest.fixture
def measured_processes() -> Callable[[], list[str]]:
    """`measured_processes()` lists the command lines of runs and samplers that this process has left."""

    def find() -> list[str]:
        lines = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(" ".join(process.cmdline()))
        return [line for line in lines if "counterproof.run" in line or "harness_driver" in line]

    return find


@pytest.fixture
def fake_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs the target `fake` for this process and its children, as a package would."""
    place = tmp_path / "installed"
    info = place / "counterproof_fake_target-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(SUPPORT / "fake_target.py", place / "counterproof_fake_target.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counterproof-fake-target\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[counterproof.targets]\nfake = counterproof_fake_target:FakeKind\n"
    )
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return place


@pytest.fixture
def experiments(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of experiments that holds the short one beside the project's own."""
    folder = tmp_path / "experiments"
    shutil.copytree(repository / "experiments", folder)
    (folder / "short.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.setenv("COUNTERPROOF_EXPERIMENTS", str(folder))
    return folder


@pytest.fixture
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine lock of this test's own: whatever else is measured here need not be waited for."""
    monkeypatch.setenv("COUNTERPROOF_MACHINE_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def fixed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's identity as of a clean commit."""
    monkeypatch.setattr(code_identity, "identify", lambda start=None: FIXED)


@pytest.fixture
def new_study(
    store: Path, fake_target: Path, experiments: Path, own_machine: None, fixed_code: None
) -> Callable[..., StudyPaths]:
    """`new_study(*overrides, candidate=(...))` registers a study of the short experiment."""

    def make(*overrides: str, name: str = "s", candidate: tuple[str, ...] = ()) -> StudyPaths:
        return register(open_store(), StudyRequest("short", overrides, candidate, name, exploratory=True))

    return make


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def runner_of(notes: Notes) -> Callable[[StudyPaths], StudyRunner]:
    """`runner_of(paths)` makes the study's runner."""

    def make(paths: StudyPaths) -> StudyRunner:
        return StudyRunner(paths, notes)

    return make


@pytest.fixture
def opened(store: Path) -> Store:
    return open_store()
