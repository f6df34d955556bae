"""Stores for the dashboard's tests: synthetic sealed studies, judged by the harness's own comparison and decision."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from counterproof.record import atomic, canonical
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof.run.judge import evaluate
from counterproof_dashboard.commands import APP

SUPPORT = Path(__file__).resolve().parents[1] / "support"
GAIN = "20260102-030405-kv_cache"
KILLED = "20260103-000000-kv_cache"
EXPLORATORY = "20260104-000000-null"
INVALID = "20260105-000000-invalid"
LOST = "20260106-000000-lost"
DEADLINE = 60


def _synthetic() -> ModuleType:
    key = "counterproof_tests_synthetic_study"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SUPPORT / "synthetic_study.py")
        if spec is None or spec.loader is None:
            raise ImportError(key)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


def conclude(folder: Path) -> Path:
    """Compare and decide the study as the harness does, and journal both."""
    paths = StudyPaths(folder)
    found = evaluate(paths)
    journal = Journal(paths.journal)
    journal.append("compared", sha256=atomic.write_json(paths.comparison, found.comparison))
    decision = found.decision["decision"]
    journal.append("decided", sha256=atomic.write_json(paths.decision, found.decision), decision=decision)
    return folder


@pytest.fixture(scope="session")
def rewrite() -> Callable[[Path, str, Callable[[dict[str, Any]], None]], None]:
    """`rewrite(folder, "comparison", change)` changes the file and journals its new hash, as another writer would."""

    def change_and_journal(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        data = canonical.read_json(folder / f"{name}.json")
        change(data)
        kind = {"comparison": "compared", "decision": "decided"}[name]
        Journal(folder / "journal.jsonl").append(
            kind, sha256=atomic.write_json(folder / f"{name}.json", data)
        )

    return change_and_journal


@pytest.fixture(scope="session")
def judged(synthetic: ModuleType) -> Callable[..., Path]:
    """`judged(store, field=value, ...)` builds a synthetic study, compares and decides it; returns its folder."""

    def build(store: Path, **fields: Any) -> Path:
        return conclude(synthetic.build(store, synthetic.StudyModel(**fields)))

    return build


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module that builds sealed synthetic studies."""
    return _synthetic()


@pytest.fixture(scope="session")
def gallery(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a gain, a study with a killed run, an exploratory one, an invalid one and a lost one. Read only."""
    root = tmp_path_factory.mktemp("gallery") / "store"
    model = synthetic.StudyModel
    conclude(synthetic.build(root, model(study=GAIN, new_tokens=8)))
    killed = model(study=KILLED, seed=9, decode_ratio=0.7, new_tokens=8, killed=((1, "candidate"),))
    conclude(synthetic.build(root, killed))
    conclude(
        synthetic.build(
            root, model(study=EXPLORATORY, seed=9, decode_ratio=1.0, new_tokens=8, exploratory=True)
        )
    )
    conclude(synthetic.build(root, model(study=INVALID, seed=10, new_tokens=8, candidate_failures=2)))
    synthetic.build(root, model(study=LOST, new_tokens=8, missing=((5, "slowed"), (5, "candidate"))))
    return root


@pytest.fixture
def own(gallery: Path, tmp_path: Path) -> Callable[..., Path]:
    """`own(GAIN, ...)` copies these studies of the gallery into this test's store and returns the store."""

    def copy(*names: str) -> Path:
        root = tmp_path / "store"
        for name in names:
            shutil.copytree(gallery / "studies" / name, root / "studies" / name)
        return root

    return copy


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """`open_page(store, "compare", study=[...])` runs a page without errors and returns it."""

    def run(store: Path, page: str = "experiments", **query: Any) -> AppTest:
        monkeypatch.setenv("COUNTERPROOF_STORE", str(store))
        app = AppTest.from_file(str(APP), default_timeout=DEADLINE)
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        if page != "experiments":
            app.switch_page(f"pages/{page}.py")
            for name, value in query.items():
                app.query_params[name] = value
            app.run()
        assert not app.exception, [e.value for e in app.exception]
        return app

    return run


@pytest.fixture(scope="session")
def specs_of() -> Callable[[AppTest], dict[str, dict[str, Any]]]:
    """`specs_of(app)`: the page's charts by title, with the rows that the server sends under `datasets`."""

    def read(app: AppTest) -> dict[str, dict[str, Any]]:
        found = {}
        for chart in app.get("vega_lite_chart"):
            spec = json.loads(chart.proto.spec)
            tables = {
                part.name: pa.ipc.open_stream(part.data.data).read_pandas() for part in chart.proto.datasets
            }
            spec["datasets"] = {name: table.to_dict("records") for name, table in tables.items()}
            found[spec["title"]["text"]] = spec
        return found

    return read
