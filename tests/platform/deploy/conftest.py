"""Fixtures for deployments: a study of the tiny model in which everything is proven, a stand-in reviewer, fixed code."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from counterproof.decide.deploy import reviewer
from counterproof.record import canonical, code_identity
from counterproof.record.deployment_ledger import DRILLED, DeploymentLedger
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import verify_plan
from counterproof.run import judge
from counterproof.workload import sealed
from intaglio.config import flatten, from_flat

CODE = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")
STUDY = "20260102-030405-kv_cache"
ENGINE = from_flat({"model": "tiny", "dtype": "fp32", "threads.count": 1, "kv_cache.enabled": False})


@dataclass
class Reviewed:
    """A reviewer that says what a test tells it to."""

    finding_now: reviewer.Finding = field(
        default_factory=lambda: reviewer.Finding("REPLICATED", "as claimed", 0, "a" * 64)
    )
    signed: reviewer.SignedOverride | None = None
    asked: list[Path] = field(default_factory=list)

    def finding(self, study: Path) -> reviewer.Finding:
        self.asked.append(study)
        return self.finding_now

    def override(self, store: Path, file: Path) -> reviewer.SignedOverride:
        assert self.signed is not None
        assert store.is_dir()
        assert file.name == "override.json"
        return self.signed


@dataclass(frozen=True)
class Shelf:
    """A store with one study; `review` is what its reviewer says."""

    store: Store
    review: Reviewed

    @property
    def paths(self) -> StudyPaths:
        return self.store.study(STUDY)

    @property
    def ledger(self) -> DeploymentLedger:
        return DeploymentLedger(self.store.root)

    @property
    def plan(self) -> dict[str, Any]:
        return verify_plan(self.paths)[0]

    def drilled(self, **fields: Any) -> dict[str, Any]:
        """Write a drill of this study into the ledger."""
        plan, digest, _ = verify_plan(self.paths)
        usual = {
            "study": plan["study"],
            "plan_sha256": digest,
            "code": CODE.as_dict(),
            "passed": True,
            "reason": "",
            "seconds": 1.5,
            "drained_seconds": 2.0,
            "requests": 40,
            "failed": 0,
            "latency": "equivalent",
        }
        return self.ledger.append(DRILLED, **{**usual, **fields})

    def judged(self) -> dict[str, Any]:
        """Judge it with what ledger and reviewer say now; returns the decision."""
        return judge.judge(self.paths).decision

    def signed(self, **fields: Any) -> reviewer.SignedOverride:
        """An override of two people for everything that can be waived."""
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
        usual = reviewer.SignedOverride(
            study=STUDY,
            plan_sha256=verify_plan(self.paths)[1],
            scope="kv_cache",
            waives=("EXPIRED", "STALE_DRILL"),
            reason="the old configuration loses its licence tomorrow",
            expires_utc=end.isoformat(timespec="seconds"),
            signers=("alice", "bob"),
            sha256="b" * 64,
        )
        self.review.signed = replace(usual, **fields)
        return self.review.signed


def _prompts() -> list[sealed.SealedRequest]:
    return [
        sealed.SealedRequest(i, tuple(range(5 + i, 29 + i)), 16, seed=i, ignore_eos=True) for i in range(6)
    ]


def _config(model: Any, arm: str) -> dict[str, Any]:
    values = {f"engine.{path}": value for path, value in flatten(ENGINE).items()}
    values["engine.kv_cache.enabled"] = arm == "candidate"
    values["engine.inject.step_delay_us"] = model.slowed_delay_us if arm == "slowed" else 0
    return {**values, "workload.requests": model.requests}


@pytest.fixture(scope="session")
def template(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's folder, to be copied: everything is proven, and its arms are real configurations of the engine."""
    root = tmp_path_factory.mktemp("deployable") / "store"
    plan_of = synthetic.plan_of
    digest = sealed.sha256(_prompts())
    model = synthetic.StudyModel(study=STUDY, run_sd=0.004, step_sd=0.01, new_tokens=6, prompt_tokens=16)
    with (
        mock.patch.object(synthetic, "_config", _config),
        mock.patch.object(synthetic, "_workload_sha", return_value=digest),
        mock.patch.object(synthetic, "plan_of", lambda m: {**plan_of(m), "code": CODE.as_dict()}),
    ):
        folder = synthetic.build(root, model)
    sealed.write(folder / "workloads" / "00.parquet", _prompts())
    return folder


@pytest.fixture(scope="session")
def stores(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores to be copied: `new` (not judged), `held` (judged without a drill), `ready` (drilled and judged)."""
    base = tmp_path_factory.mktemp("stores")
    made = {name: base / name for name in ("new", "held", "ready")}
    for root in made.values():
        shutil.copytree(template, root / "studies" / STUDY)
    review = Reviewed()
    with (
        mock.patch.object(reviewer, "installed", return_value=review),
        mock.patch.object(code_identity, "identify", return_value=CODE),
    ):
        held, ready = (Shelf(Store(made[name]), review) for name in ("held", "ready"))
        assert held.judged()["decision"] == "HOLD"
        ready.drilled()
        decision = ready.judged()
    assert decision["decision"] == "PROMOTE", decision["because"]
    return made


@pytest.fixture
def taken(stores: dict[str, Path], store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shelf]:
    """`taken("ready")` makes one of `stores` this test's own, with a reviewer that says it was replicated."""

    def take(name: str) -> Shelf:
        shutil.copytree(stores[name], store, dirs_exist_ok=True)
        review = Reviewed()
        monkeypatch.setattr(reviewer, "installed", lambda: review)
        monkeypatch.setattr(code_identity, "identify", lambda: CODE)
        return Shelf(open_store(), review)

    return take


@pytest.fixture
def shelf(taken: Callable[[str], Shelf]) -> Shelf:
    """Replicated, neither drilled nor judged yet."""
    return taken("new")


@pytest.fixture
def held(taken: Callable[[str], Shelf]) -> Shelf:
    """Judged: HOLD, for want of a drill and of nothing else."""
    return taken("held")


@pytest.fixture
def promotable(taken: Callable[[str], Shelf]) -> Shelf:
    """Drilled and judged: may be promoted."""
    return taken("ready")


@pytest.fixture
def edited() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    """`edited(file, change)` changes a JSON file as an author with an editor would."""

    def change_file(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        content = canonical.read_json(path)
        change(content)
        path.write_bytes(canonical.pretty(content))

    return change_file
