"""Blocks between the device and host memory: right bytes, and the speed of pinned memory and a stream of its own."""

from __future__ import annotations

import time

import torch
from report import Report

from intaglio.intake.step_plan import BlockMove
from intaglio.state.block_mover import BlockMover
from intaglio.state.copy_stream import device_stream
from intaglio.state.kv_store import KVStore, PoolGroup

BLOCKS, BLOCK_TOKENS = 256, 64
GROUP = PoolGroup(32, 8, 128, torch.bfloat16)
WAYS = ("pageable inline", "pinned stream")


def names(interpreted: bool) -> list[str]:
    """What `run` checks and measures."""
    return [f"{what} {way}" for way in WAYS for what in ("round trip", "damage is seen", "out", "in")] + [
        "overlap"
    ]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`."""
    for way in WAYS:
        store = KVStore(GROUP, BLOCKS, BLOCK_TOKENS, device)
        store.data.normal_()
        pinned = way.startswith("pinned")
        mover = BlockMover([store], BLOCKS, stream=device_stream(device) if pinned else None, pinned=pinned)
        _round_trip(store, mover, way, report)
        del store, mover
        torch.cuda.empty_cache()
    _overlap(device, report)


def _round_trip(store: KVStore, mover: BlockMover, way: str, report: Report) -> None:
    before = store.data.clone()
    for block in range(BLOCKS):
        store.adopt(block, 1)
    out = [BlockMove("copy_out", 0, block, 1, block) for block in range(BLOCKS)]
    went = _timed(mover, out, f"out {way}", report)
    store.data.fill_(float("nan"))
    back = [BlockMove("copy_in", 0, b, 2, b, went[b].checksum) for b in range(BLOCKS)]
    came = _timed(mover, back, f"in {way}", report)
    errors = [result.error for result in (*went, *came) if result.error]
    equal = torch.equal(store.data, before) and all(store.holds(block, 2) for block in range(BLOCKS))
    report.check(f"round trip {way}", equal and not errors, bytes=sum(result.nbytes for result in came))
    wrong = mover_results(mover, [BlockMove("copy_in", 0, 0, 3, 0, went[0].checksum ^ 1)])
    report.check(f"damage is seen {way}", bool(wrong[0].error) and not store.holds(0, 3))


def mover_results(mover: BlockMover, moves: list[BlockMove]) -> tuple[object, ...]:
    """One step's moves alone."""
    mover.start(moves)
    return mover.finish()


def _timed(mover: BlockMover, moves: list[BlockMove], name: str, report: Report) -> tuple[object, ...]:
    """The copies' own rate, and the rate with the checksums that the host takes."""
    mover_results(mover, moves[:4])
    torch.cuda.synchronize()
    began = time.perf_counter()
    mover.start(moves)
    torch.cuda.synchronize()
    copied = time.perf_counter() - began
    results = mover.finish()
    whole = time.perf_counter() - began
    nbytes = sum(result.nbytes for result in results)
    report.figure(name, nbytes / copied / 1e9, "GB/s", bytes=nbytes, with_checksums=nbytes / whole / 1e9)
    return results


def _overlap(device: torch.device, report: Report) -> None:
    """A product beside a copy, against the two one after the other."""
    stream = device_stream(device)
    host = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(host, device=device)
    left = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)

    def compute() -> None:
        for _ in range(16):
            left @ left

    def once(copy: bool, work: bool) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        if copy:
            stream.copy(target, host)
        if work:
            compute()
        stream.fence()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    once(True, True)
    copy, work, both = (
        min(once(c, w) for _ in range(5)) for c, w in ((True, False), (False, True), (True, True))
    )
    hidden = (copy + work - both) / min(copy, work)
    report.figure("overlap", hidden, "of the shorter", copy_s=copy, work_s=work, both_s=both)
