"""`doctor`: is this machine fit to measure on, and is everything there?"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from counterproof.commands import console
from counterproof.errors import EXIT_OK, EXIT_SETUP, CounterproofError
from counterproof.plan import locate
from counterproof.record import code_identity, environment, machine
from counterproof.record.store import open_store
from counterproof.run import roofline
from counterproof.run.machine_lock import machine_lock
from counterproof.run.targets import registry
from counterproof.run.targets.protocol import TargetKind
from intaglio.config import EngineConfig, from_flat

OK, WARN, FAIL = "ok", "warning", "FAIL"
MIN_FREE_BYTES = 2 << 30
MIN_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class Finding:
    """One check. `advice` says what to do unless the status is ok."""

    check: str
    status: str
    detail: str
    advice: str = ""


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    doctor = subparsers.add_parser(
        "doctor", help="check clocks, threads, memory, disk, versions, and invariant numerics"
    )
    doctor.add_argument(
        "--roofline",
        action="store_true",
        help="measure memory bandwidth, matrix products, loopback and disk (about 15 s) and keep them in the store, "
        "so that reports can place every arm against what the machine can do",
    )
    doctor.set_defaults(func=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.roofline:
        return _roofline()
    findings = [finding for check in CHECKS for finding in check()]
    print(console.table(("check", "status", "found"), [(f.check, f.status, f.detail) for f in findings]))
    for finding in findings:
        if finding.status != OK and finding.advice:
            console.note(f"{finding.check}: {finding.advice}")
    return EXIT_SETUP if any(finding.status == FAIL for finding in findings) else EXIT_OK


def _roofline() -> int:
    store = open_store()
    with machine_lock(lambda: console.note("waiting for another measured run on this machine")):
        found = roofline.measure(store, EngineConfig(), lambda what: console.note(f"measuring {what} ..."))
    rates = found["rates"]
    rows = [("memory, read", f"{rates['memory_bytes_s'] / 1e9:.1f} GB/s")]
    rows += [(f"matrix products, {d}", f"{v / 1e9:.1f} GFLOP/s") for d, v in rates["flops_s"].items()]
    rows += [
        ("loopback", f"{rates['loopback_bytes_s'] / 1e9:.2f} GB/s"),
        ("loopback, round trip", f"{rates['loopback_round_trip_us']:.1f} us"),
        ("disk, write and sync", f"{rates['disk_write_bytes_s'] / 1e6:.0f} MB/s"),
        ("disk, one synced append", f"{rates['disk_sync_ms']:.2f} ms"),
    ]
    print(console.table(("roof", "measured"), rows))
    console.note(f"kept in {store.root / roofline.FILE}; every study registered from now on carries it")
    return EXIT_OK


def check_clocks() -> Iterator[Finding]:
    """Resolution of the monotonic clock, and how late a sleep of 1 ms wakes up."""
    info = time.get_clock_info("perf_counter")
    good = info.monotonic and info.resolution <= 1e-6
    yield Finding(
        "clock",
        OK if good else FAIL,
        f"{info.implementation}, resolution {info.resolution:.0e} s",
        "times cannot be trusted without a monotonic clock of at least 1 us",
    )
    late = []
    for _ in range(50):
        began = time.perf_counter_ns()
        time.sleep(0.001)
        late.append((time.perf_counter_ns() - began) / 1e6 - 1.0)
    typical, worst = statistics.median(late), max(late)
    yield Finding(
        "timer",
        OK if typical < 1.0 else WARN,
        f"a sleep of 1 ms is late by {typical:.2f} ms (median), {worst:.2f} ms (worst of 50)",
        "something else is using the cores; wait for it to end",
    )


def check_cores() -> Iterator[Finding]:
    """Usable cores, quota, load and clock speed."""
    identity = machine.identity()
    usable = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    yield Finding("cores", OK, f"{identity['cpu.model']}, {usable} usable, quota {identity['cpu.quota']}")
    yield Finding(
        "load",
        OK if load < 0.25 * usable else WARN,
        f"{load:.2f} over the last minute",
        "other work widens every interval; measure on a quiet machine",
    )
    clock = machine.cpu_mhz()
    governor = identity["cpu.governor"]
    yield Finding(
        "frequency",
        WARN if governor in ("powersave", "ondemand", "schedutil") else OK,
        f"{'unknown' if clock is None else f'{clock:.0f} MHz'}, governor {governor}",
        "set the governor to performance if you may",
    )


def check_memory() -> Iterator[Finding]:
    """Memory, swap and disk."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    yield Finding(
        "memory",
        OK if memory.available >= MIN_MEMORY_BYTES else WARN,
        f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available",
        "SmolLM2 needs about 2 GiB",
    )
    if swap.used:
        yield Finding("swap", WARN, f"{swap.used / 2**20:.0f} MiB in use", "swapping distorts latencies")
    store = open_store()
    place = next(path for path in (store.root, *store.root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    yield Finding(
        "store",
        FAIL if not writable else OK if free >= MIN_FREE_BYTES else WARN,
        f"{store.root}, {free / 2**30:.1f} GiB free{'' if writable else ', not writable'}",
        "set COUNTERPROOF_STORE to a folder with room that you may write",
    )


def check_code() -> Iterator[Finding]:
    """Versions, the code's identity, experiments."""
    code = code_identity.identify()
    state = f"{len(code.dirty_files)} uncommitted changes" if code.dirty else "clean"
    yield Finding(
        "code",
        WARN if code.dirty else OK,
        f"{code.kind} {code.sha[:18]}, {state}",
        "commit them, or measure with --exploratory",
    )
    folder = locate.experiments_folder()
    yield Finding("experiments", OK, ", ".join(locate.experiment_names(folder)))
    common = environment.common_identity({}, {})
    versions = [f"{k.removeprefix('library.')} {v}" for k, v in common.items() if k.startswith("library.")]
    missing = [text for text in versions if "not installed" in text]
    yield Finding(
        "versions",
        FAIL if missing else OK,
        f"Python {common['python.version']}, {', '.join(versions)}",
        "install the project's dependencies",
    )


def check_engine() -> Iterator[Finding]:
    """Models, and with the tiny one, in both dtypes, the self-test of invariant mode and what the default runs."""
    kind = registry.find(registry.INTAGLIO_LOCAL)
    for model in ("tiny", "smollm2-135m"):
        try:
            kind.planner(from_flat({"model": model}))
            yield Finding(f"model {model}", OK, "there")
        except CounterproofError as error:
            status = FAIL if model == "tiny" else WARN
            yield Finding(f"model {model}", status, "not there", str(error))
    for dtype in ("fp32", "bf16"):
        yield _numerics(kind, dtype)


def _numerics(kind: TargetKind, dtype: str) -> Finding:
    """Whether invariant mode can be had, by which kernels, and whether numerics.mode=auto takes it."""
    began = time.perf_counter()
    try:
        target = kind.start(from_flat({"model": "tiny", "dtype": dtype, "numerics.mode": "invariant"}))
    except CounterproofError as error:
        return Finding(f"invariant {dtype}", FAIL, "the self-test failed", str(error))
    path = target.effective_config().get("kernel_path")
    fallen = [e for e in target.drain().events if e["kind"] == "fallback" and e["path"] == "kernel_path"]
    target.close()
    seconds = time.perf_counter() - began
    default = "fast" if fallen else "invariant"
    return Finding(
        f"invariant {dtype}",
        WARN if fallen else OK,
        f"self-test passed in {seconds:.1f} s, kernels {path}; numerics.mode=auto runs {default}",
        "; ".join(f"not the native kernels: {event.get('reason')}" for event in fallen),
    )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_clocks,
    check_cores,
    check_memory,
    check_code,
    check_engine,
)
