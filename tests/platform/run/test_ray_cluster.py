"""A local Ray cluster: independent blocks on two nodes, records as if measured here, an unlike node refused."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from counterproof.errors import SetupError
from counterproof.measure.load import load_study
from counterproof.plan.compose import engine_of
from counterproof.record import hardware, journal
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import judge
from counterproof.run.machine_lock import VARIABLE
from counterproof.run.ray_site import ray_sites
from counterproof.run.runner import StudyRunner
from counterproof.run.shared_progress import SharedProgress

pytestmark = [pytest.mark.timeout(280), pytest.mark.slow]
END_SECONDS = 60.0

# The nodes' processes must tell the same fixed code as this one, whatever is being edited meanwhile.
FIXED = """
from counterproof.record import code_identity
_fixed = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")
code_identity.identify = lambda start=None: _fixed
"""


@pytest.fixture
def cluster(
    new_study: Callable[..., StudyPaths], fake_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """`add(name)` starts a node that counts as a machine of its own; everything is ended with a deadline."""
    if importlib.util.find_spec("ray") is None:
        if os.environ.get("COUNTERPROOF_NEEDS_RAY"):
            pytest.fail("Ray is not installed, and this run of the tests was told to need it")
        pytest.skip("Ray is not installed: pip install 'counterproof[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    (fake_target / "sitecustomize.py").write_text(FIXED, encoding="utf-8")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Nodes(Cluster(), monkeypatch, tmp_path)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        # Everything of Ray's, the note of the cluster's address included, lies there.
        monkeypatch.setenv("RAY_TMPDIR", place)
        try:
            yield nodes
        finally:
            started = psutil.Process().children(recursive=True)
            ray.shutdown()
            nodes.cluster.shutdown()
            _end(started)


class Nodes:
    def __init__(self, cluster: Any, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.cluster = cluster
        self._patch = patch
        self._folder = folder

    def add(self, name: str) -> None:
        """A node inherits this process's environment and affinity as they are now."""
        own = os.environ[VARIABLE]
        self._patch.setenv(VARIABLE, str(self._folder / f"{name}.lock"))
        extra: dict[str, Any] = {"resources": {name: 1}, "num_cpus": 1, "include_dashboard": False}
        self.cluster.add_node(**extra)
        self._patch.setenv(VARIABLE, own)
        self._patch.setenv("RAY_ADDRESS", self.cluster.address)


def _end(started: list[psutil.Process]) -> None:
    """Wait for processes that are ending; kill those still there past half of the deadline."""
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS / 2)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(alive, timeout=END_SECONDS / 2)
    assert not alive


def engine(paths: StudyPaths) -> Any:
    plan = verify_study(paths.folder).plan
    return plan, engine_of(plan["arms"]["baseline"]["config"])


def test_blocks_fan_out_over_two_nodes_and_an_unlike_node_is_refused(
    cluster: Nodes, new_study: Callable[..., StudyPaths], notes: Any
) -> None:
    paths = new_study("study.blocks=3", "study.equivalence_requests=0")
    cluster.add("one")
    cluster.add("two")
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        # A node that may use one processor less is hardware of another class.
        os.sched_setaffinity(0, set(sorted(cores)[1:]))
        try:
            cluster.add("narrow")
        finally:
            os.sched_setaffinity(0, cores)
    plan, config = engine(paths)
    with ray_sites(plan, Journal(paths.journal), config) as sites:
        assert len(sites) == 2
        assert len({site.machine for site in sites}) == 2
        StudyRunner(paths, SharedProgress(notes), sites).run_missing()
        by_node = {site.machine: site.node for site in sites}
    study = verify_study(paths.folder)
    events = study.journal
    assert len(study.runs) == 12
    placed = hardware.placed(events)
    machines: dict[str, set[str]] = {}
    for run, (machine, _) in placed.items():
        machines.setdefault(run[:2], set()).add(machine)
    assert all(len(found) == 1 for found in machines.values()), machines
    assert set.union(*machines.values()) == set(by_node)
    assert len({kind for _, kind in placed.values()}) == 1
    _check_overlap(events, placed)
    refused = [event for event in events if event["kind"] == "node_refused"]
    assert len(refused) == (1 if len(cores) > 1 else 0)
    for event in refused:
        assert "not of the class" in event["reason"]
        assert any(detail.startswith("cpu.affinity") for detail in event["details"])
    _check_records(paths)
    assert judge.judge(paths).comparison["blocks"] == [0, 1, 2]


def _check_overlap(events: Any, placed: dict[str, tuple[str, str]]) -> None:
    """Some run was going on on the one machine while one started on the other; never two on one machine."""
    running: set[str] = set()
    most = 0
    for event in events:
        if event["kind"] == "run_started":
            running.add(event["run"])
            here = [placed[run][0] for run in running]
            assert len(set(here)) == len(here)
            most = max(most, len(running))
        elif event["kind"] == "run_sealed":
            running.discard(event["run"])
    assert most == 2


def _check_records(paths: StudyPaths) -> None:
    """What came back is what a local run leaves: every file, every token, an outside sampler's rows."""
    data = load_study(paths.folder)
    for run in data.runs.values():
        assert run.requests["status"].tolist() == ["ok"] * 3
        assert len(run.tokens) == 12
        assert {"sampler", "engine"} == set(run.resources["source"])
        assert run.counters["tokens_generated"] == 12
        assert (run.sealed.folder / "log.txt").is_file()
        assert not (run.sealed.folder / "raw").exists()
    assert len({run.manifest["env_id"] for run in data.runs.values()}) == 1


def test_no_fitting_node_is_a_set_up_error_that_says_why(
    cluster: Nodes, new_study: Callable[..., StudyPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.blocks=1", "study.equivalence_requests=0")
    plan, config = engine(paths)
    monkeypatch.setenv("COUNTERPROOF_FAKE_MODEL", "another")
    cluster.add("one")
    monkeypatch.delenv("COUNTERPROOF_FAKE_MODEL")
    with (
        pytest.raises(SetupError, match="no node") as caught,
        ray_sites(plan, Journal(paths.journal), config),
    ):
        pass
    assert any("model.weights_sha256" in detail for detail in caught.value.details)
    assert [event["kind"] for event in journal.read(paths.journal).events] == [
        "study_started",
        "node_refused",
    ]
