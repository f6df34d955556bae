"""Other machines through Ray: which nodes may measure a study, and a run sent there and its files brought back.

Ray carries Python objects between machines that trust each other: use it on a cluster of your own only. Its worker
processes run at a lower priority unless the nodes are started with `RAY_worker_niceness=0`; such a node is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from counterproof.errors import (
    EXIT_INPUT,
    EXIT_SETUP,
    CounterproofError,
    ExecutionError,
    InputError,
    SetupError,
)
from counterproof.record import canonical
from counterproof.record.difference import differences
from counterproof.record.journal import Journal
from counterproof.run import ray_node
from counterproof.run.executor import Progress
from counterproof.run.machine_lock import WAIT_SECONDS
from counterproof.run.spec import RunSpec
from intaglio.config import EngineConfig, ThreadsConfig, flatten

SURVEY_SECONDS = 180.0
# On top of the run's own deadline and of the wait for the machine: starting a worker, sending files both ways.
MARGIN_SECONDS = 180.0
POLL_SECONDS = 0.5


class RaySite:
    """A node of a Ray cluster. `facts`: what `ray_node.survey` said of it."""

    def __init__(self, node: str, facts: Mapping[str, Any]) -> None:
        self.node = node
        self._facts = facts
        self._cancelled = threading.Event()

    @property
    def machine(self) -> str:
        return str(self._facts["machine"])

    def common(self, target: str, engine: EngineConfig) -> dict[str, Any]:
        """Asked anew for each run: the code there could have been changed since the last one. Raises SetupError."""
        try:
            answer = self.ask(SURVEY_SECONDS, ray_node.survey, target, dict(flatten(engine)))
        except ExecutionError as error:
            # No run has begun, so there is none to be repeated.
            raise SetupError(str(error)) from None
        if "error" in answer:
            raise SetupError(f"node {self.node} cannot measure: {answer['error']}")
        common: dict[str, Any] = answer["common"]
        return common

    def hardware(self, common: Mapping[str, Any]) -> str:
        del common
        return str(self._facts["hardware"])

    def turn(self, on_wait: Callable[[], None]) -> AbstractContextManager[Any]:
        """The node itself holds its machine's lock while it measures."""
        del on_wait
        return nullcontext()

    def execute(self, spec: RunSpec, threads: ThreadsConfig, deadline_s: float, progress: Progress) -> None:
        """Raises ExecutionError when the node is lost or what it sent is not what it hashed, else what the run raised
        there; `spec.folder` then holds whatever the run left."""
        del progress
        fields, files = ray_node.request_files(spec)
        limit = deadline_s + WAIT_SECONDS + MARGIN_SECONDS
        answer = self.ask(limit, ray_node.measure, fields, files, dataclasses.asdict(threads), deadline_s)
        unpack(Path(spec.folder), answer["files"], answer["sha256"])
        if answer["error"] is not None:
            raise _error(answer["error"])

    def cancel(self) -> None:
        self._cancelled.set()

    def ask(self, limit_s: float, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Call a function of `ray_node` there. Raises ExecutionError when no answer comes."""
        import ray

        if self._cancelled.is_set():
            raise KeyboardInterrupt
        reference = _remote(self.node, function).remote(*arguments)
        deadline = time.monotonic() + limit_s
        try:
            while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
                if self._cancelled.is_set():
                    raise KeyboardInterrupt
                if time.monotonic() > deadline:
                    raise ExecutionError(f"node {self.node} did not answer within {limit_s:g} s")
        except BaseException:
            # Ends the worker there, and with it the processes that measure.
            ray.cancel(reference, force=True)
            raise
        try:
            answer: dict[str, Any] = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise ExecutionError(f"node {self.node} was lost or failed: {_first_line(error)}") from None
        return answer


@contextlib.contextmanager
def ray_sites(plan: Mapping[str, Any], journal: Journal, engine: EngineConfig) -> Iterator[list[RaySite]]:
    """The nodes that may measure this study, in the order of their machines' names.

    The cluster is the one at `$RAY_ADDRESS`, else the one that runs here. A node that is not what the study was
    registered with (code, libraries, model, hardware class), or that shares its machine with another, is refused with
    an event in the journal. Raises SetupError when Ray, a cluster or a fitting node is missing.
    """
    with _connected() as nodes:
        sites: dict[str, RaySite] = {}
        refusals: list[str] = []
        for node in nodes:
            site, reason, details = _admit(node, plan, engine, sites)
            if site is not None:
                sites[site.machine] = site
                continue
            journal.append("node_refused", node=node, reason=reason, details=details)
            refusals += [f"node {node}: {reason}", *(f"  {detail}" for detail in details)]
        if not sites:
            raise SetupError("no node of the Ray cluster may measure this study", details=refusals)
        yield [site for _, site in sorted(sites.items())]


def unpack(folder: Path, files: Mapping[str, bytes], sha256: Mapping[str, str]) -> None:
    """Write what a node sent. Raises ExecutionError for content that its hash does not fit, a missing file, or a name
    that would leave the folder; then nothing was written."""
    if files.keys() != sha256.keys():
        raise ExecutionError("a node sent other files than it hashed")
    for name, data in files.items():
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise ExecutionError(
                f"a node sent a file of the name {name!r}, which is not inside the run's folder"
            )
        if canonical.sha256_bytes(data) != sha256[name]:
            raise ExecutionError(f"{name} was damaged on its way from the node")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@contextlib.contextmanager
def _connected() -> Iterator[list[str]]:
    """Ids of the nodes that are alive. Leaves the cluster afterwards, unless this process was in it before."""
    try:
        import ray
    except ImportError:
        raise SetupError(
            "Ray is not installed", details=["to install it: pip install 'counterproof[ray]'"]
        ) from None
    own = not ray.is_initialized()
    if own:
        address = os.environ.get("RAY_ADDRESS") or "auto"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            # Ray would leave at once where the harness first ends and accounts for what is going on.
            signal.signal(signal.SIGTERM, handler)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SetupError(
                f"no Ray cluster can be reached: {_first_line(error)}",
                details=["start one (ray start --head), or name it in RAY_ADDRESS"],
            ) from None
    try:
        yield sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    finally:
        if own:
            ray.shutdown()


def _admit(
    node: str, plan: Mapping[str, Any], engine: EngineConfig, sites: Mapping[str, RaySite]
) -> tuple[RaySite | None, str, list[str]]:
    """The node's site, or why there is none."""
    asking = RaySite(node, {"machine": ""})
    try:
        facts = asking.ask(SURVEY_SECONDS, ray_node.survey, plan["target"], dict(flatten(engine)))
    except ExecutionError as error:
        return None, str(error), []
    if "error" in facts:
        return None, facts["error"], []
    found = [str(difference) for difference in differences(plan["environment"], facts["common"])]
    if found:
        return None, "it is not of the class that the study was registered on; blocks are never pooled", found
    if facts["nice"] > os.getpriority(os.PRIO_PROCESS, 0):
        details = ["start Ray there with RAY_worker_niceness=0"]
        return None, f"it would measure at the lower priority {facts['nice']}", details
    if facts["machine"] in sites:
        return None, f"it is the same machine as node {sites[facts['machine']].node}", []
    for other in sites.values():
        if other.hardware({}) != facts["hardware"]:
            return (
                None,
                f"it is of another hardware class than node {other.node}; blocks are never pooled",
                [],
            )
    return RaySite(node, facts), "", []


def _remote(node: str, function: Callable[..., dict[str, Any]]) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A run claims its whole machine by a lock of ours, so Ray need not count processors; nor repeat anything.
    return ray.remote(function).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )


def _error(error: Mapping[str, Any]) -> CounterproofError:
    kinds: dict[int, type[CounterproofError]] = {EXIT_INPUT: InputError, EXIT_SETUP: SetupError}
    return kinds.get(error["code"], ExecutionError)(error["message"], details=list(error["details"]))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
