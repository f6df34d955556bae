"""Blocks side by side: which machine measures what, what is refused, and what a node sends back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import EvidenceError, ExecutionError, RefusedError
from counterproof.record import canonical, hardware
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import fanout, ray_node, ray_site
from counterproof.run.places import Place
from counterproof.run.runner import StudyRunner
from counterproof.run.shared_progress import SharedProgress
from counterproof.run.site import LocalSite

pytestmark = pytest.mark.timeout(120)
ARMS = ("baseline", "candidate")


class NamedSite(LocalSite):
    """This machine under another name, with a lock of its own, as a second machine would be."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.measured: list[str] = []

    @property
    def machine(self) -> str:
        return self._name

    def turn(self, on_wait: Callable[[], None]) -> Any:
        return nullcontext()

    def execute(self, spec: Any, *rest: Any) -> None:
        self.measured.append(Path(spec.folder).name)
        super().execute(spec, *rest)


def started(run: str, machine: str, kind: str = "a") -> list[Mapping[str, Any]]:
    return [
        {"kind": "run_started", "run": run, "machine": machine, "hardware": kind},
        {"kind": "run_sealed", "run": run},
    ]


def blocks(*numbers: int | None) -> list[Place]:
    return [Place(number, arm) for number in numbers for arm in ARMS]


def layout(waves: Any) -> list[list[tuple[int | None, str, int]]]:
    return [[(share.block, share.site.machine, len(share.places)) for share in wave] for wave in waves]


def test_waves_take_one_whole_block_a_machine_in_the_order_of_the_plan() -> None:
    sites = [NamedSite("m1"), NamedSite("m2")]
    found = layout(fanout.waves(blocks(None, 0, 1, 2), sites, []))
    assert found == [[(None, "m1", 2)], [(0, "m1", 2), (1, "m2", 2)], [(2, "m1", 2)]]
    alone = layout(fanout.waves(blocks(None, 0, 1), sites[:1], []))
    assert alone == [[(None, "m1", 2)], [(0, "m1", 2)], [(1, "m1", 2)]]


def test_a_block_goes_on_where_it_was_begun() -> None:
    sites = [NamedSite("m1"), NamedSite("m2")]
    events = [*started("00-baseline-1", "m2"), *started("01-baseline-1", "m2")]
    missing = [Place(0, "candidate"), Place(1, "candidate"), *blocks(2)]
    assert layout(fanout.waves(missing, sites, events)) == [
        [(0, "m2", 1)],
        [(1, "m2", 1), (2, "m1", 2)],
    ]
    with pytest.raises(RefusedError, match="block 0 was begun on machine m9"):
        list(fanout.waves(missing, sites, started("00-baseline-1", "m9")))


def test_no_candidate_of_a_wave_is_measured_before_the_first_baseline_is_sealed() -> None:
    order: list[Place] = []
    inside = threading.Barrier(2, timeout=30)
    sites = [NamedSite("m1"), NamedSite("m2")]

    def run(place: Place, site: Any) -> None:
        order.append(place)
        if len(order) > 1 and place.arm == "candidate":
            # Both machines measure at the same time, or this breaks.
            inside.wait()

    missing = [*blocks(0), Place(1, "candidate"), Place(1, "baseline")]
    (wave,) = fanout.waves(missing, sites, [])
    fanout.run_wave(wave, [], run)
    assert order[0] == Place(0, "baseline")
    assert sorted(map(str, order)) == sorted(map(str, missing))


def test_an_error_ends_the_other_machines_after_their_present_run() -> None:
    seen: list[Place] = []
    second_runs = threading.Event()

    def run(place: Place, site: Any) -> None:
        seen.append(place)
        if place.block == 0:
            assert second_runs.wait(30)
            raise ExecutionError("broken")
        second_runs.set()
        # Longer than it takes the harness to hear of the other machine's error.
        threading.Event().wait(4 * fanout.POLL_SECONDS)

    (wave,) = fanout.waves(blocks(0, 1), [NamedSite("m1"), NamedSite("m2")], [])
    with pytest.raises(ExecutionError, match="broken"):
        fanout.run_wave(wave, started("05-baseline-1", "m1"), run)
    assert sorted(map(str, seen)) == ["block 0 baseline", "block 1 baseline"]


def test_a_study_on_two_machines_is_recorded_and_verified_as_on_one(
    new_study: Callable[..., StudyPaths], notes: Any
) -> None:
    paths = new_study("study.blocks=2", "study.equivalence_requests=0")
    sites = [NamedSite("m1"), NamedSite("m2")]
    StudyRunner(paths, SharedProgress(notes), sites).run_missing()
    study = verify_study(paths.folder)
    assert len(study.runs) == 8
    placed = hardware.placed(study.journal)
    assert {run: machine for run, (machine, _) in placed.items()} == {
        **dict.fromkeys(sites[0].measured, "m1"),
        **dict.fromkeys(sites[1].measured, "m2"),
    }
    assert {name[:2] for name in sites[0].measured} == {"00"}
    assert {name[:2] for name in sites[1].measured} == {"01"}
    assert len({kind for _, kind in placed.values()}) == 1


def test_a_block_on_two_machines_is_refused_by_the_runner_and_by_whoever_reads_it(
    new_study: Callable[..., StudyPaths], notes: Any
) -> None:
    paths = new_study("study.blocks=1", "study.equivalence_requests=0")
    StudyRunner(paths, notes, [NamedSite("m1")]).run_place(Place(0, "baseline"))
    runner = StudyRunner(paths, notes, [NamedSite("m2")])
    with pytest.raises(RefusedError, match="begun on machine m1"):
        runner.run_place(Place(0, "candidate"))
    with pytest.raises(RefusedError, match="begun on machine m1"):
        runner.run_missing()
    split = [*started("00-baseline-1", "m1"), *started("00-candidate-1", "m2")]
    with pytest.raises(EvidenceError, match="block 0 was measured on more than one machine"):
        hardware.check(split)


def test_hardware_classes_are_never_pooled() -> None:
    mixed = [*started("00-baseline-1", "m1", "fast"), *started("01-baseline-1", "m2", "slow")]
    with pytest.raises(EvidenceError, match="different hardware classes") as caught:
        hardware.check(mixed)
    assert caught.value.details == ["fast: first 00-baseline-1", "slow: first 01-baseline-1"]
    hardware.check([*started("00-baseline-1", "m1"), *started("01-baseline-1", "m2")])
    own = {"cpu.model": "A", "cpu.logical": 2, "memory.total_bytes": 1, "python.version": "3"}
    assert hardware.class_of(own) == hardware.class_of({**own, "python.version": "4"})
    for change in ({"cpu.model": "B"}, {"memory.total_bytes": 2}, {"gpu.0.name": "G"}):
        assert hardware.class_of(own) != hardware.class_of({**own, **change})


def test_a_journal_of_mixed_classes_makes_the_study_refused(
    build_study: Callable[..., Path],
) -> None:
    folder = build_study(blocks=1, requests=2, equivalence=False)
    verify_study(folder)
    events = Journal(folder / "journal.jsonl").events()
    (folder / "journal.jsonl").unlink()
    writer = Journal(folder / "journal.jsonl")
    for number, event in enumerate(events):
        facts = {k: v for k, v in event.items() if k not in {"seq", "prev", "time_utc", "kind", "hash"}}
        if event["kind"] == "run_started":
            facts |= {"machine": "m1", "hardware": f"class-{number % 4}"}
        writer.append(event["kind"], **facts)
    with pytest.raises(EvidenceError, match="different hardware classes"):
        verify_study(folder)


def test_what_a_node_sends_is_checked_before_it_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "raw").mkdir(parents=True)
    target.mkdir()
    (source / "raw" / "tokens.jsonl").write_bytes(b"1\n")
    (source / "log.txt").write_bytes(b"said\n")
    sent = ray_node.ship(source)
    ray_site.unpack(target, sent["files"], sent["sha256"])
    assert {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()} == set(sent["files"])
    assert canonical.sha256_file(target / "log.txt") == canonical.sha256_file(source / "log.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = [
        ({**sent["files"], "log.txt": b"lied\n"}, sent["sha256"], "damaged on its way"),
        ({"log.txt": b"said\n"}, sent["sha256"], "other files than it hashed"),
        ({"../x": b"x"}, {"../x": canonical.sha256_bytes(b"x")}, "not inside"),
        ({"/x": b"x"}, {"/x": canonical.sha256_bytes(b"x")}, "not inside"),
    ]
    for files, hashes, words in bad:
        with pytest.raises(ExecutionError, match=words):
            ray_site.unpack(empty, files, hashes)
    assert not any(empty.iterdir())
