"""Many synthetic studies at once, and one with very many tokens, for tests and benchmarks of a store's scale.

`fill(store, 2000, blocks=2)` writes sealed, judged studies: a few are really built and judged, the others are their
copies under names of their own, with plan, manifests and journal hashed anew, so that each one verifies. Every file
is written out; nothing is a link. Nothing is flushed to the disk.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterproof.record import canonical
from counterproof.record.schema import TABLES
from counterproof.record.store import StudyPaths
from counterproof.run import judge

TEMPLATES = 4
OUTCOME = {"compared": "comparison.json", "decided": "decision.json"}
REPORTS = ("report.html", "report.md")
Replace = Callable[[str], dict[str, bytes]]


def _sibling(name: str) -> ModuleType:
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


synthetic = _sibling("synthetic_study")


def fill(store: Path, studies: int, *, blocks: int = 2, requests: int = 6, new_tokens: int = 24) -> int:
    """Write so many judged studies into the store. Returns the number of runs that they hold together."""
    with tempfile.TemporaryDirectory() as place, mock.patch("os.fsync"):
        templates = []
        for number in range(min(TEMPLATES, studies)):
            model = synthetic.StudyModel(
                study=f"template-{number}",
                blocks=blocks,
                requests=requests,
                new_tokens=new_tokens,
                seed=number,
            )
            folder = synthetic.build(Path(place), model)
            judge.judge(StudyPaths(folder))
            templates.append(Template(folder))
        for number in range(studies):
            templates[number % len(templates)].copy(store / "studies" / f"scale-{number:05d}")
        return sum(len(templates[number % len(templates)].runs) for number in range(studies))


def build_long(store: Path, study: str, tokens: int, *, blocks: int = 6) -> int:
    """Write one sealed study, not judged, whose timed runs hold so many tokens together (rounded up).

    Returns how many they are.
    """
    model = synthetic.StudyModel(study="template", blocks=blocks, requests=1, new_tokens=2, equivalence=False)
    runs = blocks * len(model.arms)
    requests = max(1, tokens // runs // 400)
    per_request = -(-tokens // (runs * requests))
    rng = np.random.default_rng(11)

    def replace(_run: str) -> dict[str, bytes]:
        return {"tokens.parquet": _parquet("tokens.parquet", _tokens(rng, requests, per_request))}

    with tempfile.TemporaryDirectory() as place, mock.patch("os.fsync"):
        Template(synthetic.build(Path(place), model)).copy(store / "studies" / study, replace)
    return runs * requests * per_request


class Template:
    """A study in memory, to be written again under other names."""

    def __init__(self, folder: Path) -> None:
        self._name = folder.name
        self._plan = canonical.read_json(folder / "plan.json")
        lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        self._events = [json.loads(line) for line in lines]
        self._outcome = {
            name: (folder / name).read_bytes()
            for name in (*OUTCOME.values(), *REPORTS)
            if (folder / name).is_file()
        }
        self.runs = {path.name: _files(path) for path in sorted((folder / "runs").iterdir())}

    def copy(self, folder: Path, replace: Replace | None = None) -> None:
        """Write the study as `folder`; `replace(run)` gives files whose content is another there."""
        study = folder.name
        (folder / "runs").mkdir(parents=True)
        plan = canonical.pretty({**self._plan, "study": study})
        (folder / "plan.json").write_bytes(plan)
        plan_sha = canonical.sha256_bytes(plan)
        sealed = {}
        for run, files in self.runs.items():
            changed = {} if replace is None else replace(run)
            sealed[run] = _write_run(folder / "runs" / run, files, changed, study, plan_sha)
        hashes = {}
        for name, data in self._outcome.items():
            own = data.replace(f'"study": "{self._name}"'.encode(), f'"study": "{study}"'.encode())
            (folder / name).write_bytes(own)
            hashes[name] = canonical.sha256_bytes(own)
        lines = _journal(self._events, study, plan_sha, sealed, hashes)
        (folder / "journal.jsonl").write_bytes(lines)


def _files(run: Path) -> dict[str, bytes]:
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def _write_run(
    folder: Path, files: dict[str, bytes], changed: dict[str, bytes], study: str, plan_sha: str
) -> str:
    """Write a sealed run; returns its manifest's sha256."""
    (folder / "config").mkdir(parents=True)
    manifest = json.loads(files["manifest.json"]) | {"study": study, "plan_sha256": plan_sha}
    for name, data in changed.items():
        manifest["files"][name] = {"sha256": canonical.sha256_bytes(data), "size": len(data)}
    seal = canonical.pretty(manifest)
    for name, data in {**files, **changed, "manifest.json": seal}.items():
        with (folder / name).open("wb") as stream:
            stream.write(data)
    return canonical.sha256_bytes(seal)


def _journal(
    events: list[dict[str, Any]], study: str, plan_sha: str, sealed: dict[str, str], hashes: dict[str, str]
) -> bytes:
    """The template's events about another study, chained anew."""
    lines, previous = [], "0" * 64
    for event in events:
        own = {**event, "prev": previous}
        del own["hash"]
        if own["kind"] == "study_started":
            own |= {"study": study, "plan_sha256": plan_sha}
        elif own["kind"] == "run_sealed":
            own["manifest_sha256"] = sealed[own["run"]]
        elif own["kind"] in OUTCOME:
            own["sha256"] = hashes[OUTCOME[own["kind"]]]
        elif own["kind"] == "reported":
            own["files"] = {name: hashes[name] for name in REPORTS}
        own["hash"] = previous = canonical.sha256_json(own)
        lines.append(canonical.dumps(own) + b"\n")
    return b"".join(lines)


def _tokens(rng: np.random.Generator, requests: int, per_request: int) -> dict[str, np.ndarray[Any, Any]]:
    """Tokens of a run: each request's gaps are 10 ms and a little noise."""
    count = requests * per_request
    gaps = rng.normal(10e6, 1e5, (requests, per_request)).astype(np.int64)
    return {
        "request_index": np.repeat(np.arange(requests, dtype=np.int32), per_request),
        "token_index": np.tile(np.arange(per_request, dtype=np.int32), requests),
        "token_id": rng.integers(0, 50_000, count, dtype=np.int32),
        "time_ns": gaps.cumsum(axis=1).reshape(-1),
        "logprob": -rng.random(count),
        "margin": rng.random(count),
    }


def _parquet(name: str, columns: dict[str, np.ndarray[Any, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({k: pa.array(v) for k, v in columns.items()}, schema=TABLES[name])
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
