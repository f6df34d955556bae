"""Copies on a stream of their own, against streams that put off all work until somebody has to wait for it."""

from __future__ import annotations

import contextlib

import pytest
import torch

from intaglio.errors import WorkerError
from intaglio.intake.step_plan import BlockMove
from intaglio.state.block_mover import BlockMover
from intaglio.state.copy_stream import DeviceStream, device_stream
from intaglio.state.kv_store import KVStore, PoolGroup


class LazyStream:
    """Does nothing before it must: what was not ordered comes out in the wrong order."""

    def __init__(self):
        self.queue = []

    def enqueue(self, work):
        self.queue.append(work)

    def wait_stream(self, stream):
        marker = stream.queue[-1] if stream.queue else None
        self.queue.append(lambda: stream.run_to(marker))

    def synchronize(self):
        self.run_to(self.queue[-1] if self.queue else None)

    def run_to(self, marker):
        while marker is not None and marker in self.queue:
            self.queue.pop(0)()


class Device:
    """A stream that computes and one that copies."""

    def __init__(self):
        self.compute, self.side = LazyStream(), LazyStream()
        self.now = self.compute
        self.stream = DeviceStream(self.side, lambda: self.compute, self.use, self.copy)

    @contextlib.contextmanager
    def use(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    def copy(self, target, source):
        self.now.enqueue(lambda: target.copy_(source))


def test_a_copy_reads_what_was_computed_before_it_and_not_after():
    device = Device()
    block, host = torch.zeros(4), torch.zeros(4)
    device.compute.enqueue(lambda: block.fill_(1.0))
    device.stream.copy(host, block)
    device.stream.fence()
    device.compute.enqueue(lambda: block.fill_(2.0))
    device.compute.synchronize()
    assert (host.tolist(), block.tolist()) == ([1.0] * 4, [2.0] * 4)


def test_waiting_makes_the_copies_whole_and_leaves_the_computation_alone():
    device = Device()
    host, late = torch.zeros(4), torch.zeros(4)
    device.stream.copy(host, torch.ones(4))
    device.stream.fence()
    device.compute.enqueue(lambda: late.fill_(3.0))
    device.stream.wait()
    assert host.tolist() == [1.0] * 4
    assert late.tolist() == [0.0] * 4
    assert (device.stream.copies, device.stream.nbytes) == (1, 16)


def test_copies_run_on_the_side_alone_and_after_a_fence_wait_again():
    device = Device()
    source, first, second = torch.ones(2), torch.zeros(2), torch.zeros(2)
    device.stream.copy(first, source)
    device.stream.fence()
    assert len(device.side.queue) == 2
    device.compute.enqueue(lambda: source.fill_(5.0))
    device.stream.copy(second, source)
    device.stream.wait()
    assert (first.tolist(), second.tolist()) == ([1.0] * 2, [5.0] * 2)


def test_a_fence_without_copies_orders_nothing():
    device = Device()
    device.stream.fence()
    assert device.compute.queue == device.side.queue == []


def test_sizes_must_agree():
    with pytest.raises(WorkerError, match="8 bytes cannot fill 4"):
        Device().stream.copy(torch.zeros(1), torch.zeros(2))


def test_a_device_without_streams_is_named():
    with pytest.raises(WorkerError, match="device=cpu has no streams"):
        device_stream(torch.device("cpu"))


def test_blocks_go_out_and_come_back_through_late_copies():
    """The mover on such a device: what a step overwrites was copied before, what it reads has arrived."""
    device = Device()
    store = KVStore(PoolGroup(2, 1, 4, torch.float32), 4, 2, torch.device("cpu"))
    store.data.normal_(generator=torch.Generator().manual_seed(3))
    before = store.data.clone()
    for block in range(4):
        store.adopt(block, 1)
    mover = BlockMover([store], 4, stream=device.stream)
    mover.start([BlockMove("copy_out", 0, block, 1, block) for block in (1, 3)])
    device.compute.enqueue(lambda: store.data.fill_(float("nan")))
    out = mover.finish()
    assert [result.error for result in out] == ["", ""]
    device.compute.synchronize()
    assert store.data.isnan().all()
    moves = [BlockMove("copy_in", 0, b, 2, b, out[i].checksum) for i, b in enumerate((1, 3))]
    mover.start(moves)
    seen = torch.zeros_like(store.data)
    device.compute.enqueue(lambda: seen.copy_(store.data))
    device.compute.synchronize()
    assert [result.error for result in mover.finish()] == ["", ""]
    for block in (1, 3):
        slots = slice(2 * block, 2 * block + 2)
        assert torch.equal(seen[:, slots], before[:, slots])
        assert store.holds(block, 2)
    assert device.stream.nbytes == 4 * store.block_bytes
