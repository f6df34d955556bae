"""Time is taken when a device has done its work, not when it was told to (field case harness-36).

The device here is a stand-in whose work is done only when somebody waits for it.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from intaglio.cluster import worker as worker_module
from intaglio.compute import backend, device_queue
from intaglio.compute.gpu import backend as gpu_backend

WORK_NS = 30_000_000


class LateStream:
    """A stream whose outstanding work takes 30 ms of a made time, paid for by whoever waits first."""

    def __init__(self) -> None:
        self.now = 0
        self.outstanding = 0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        self.now += self.outstanding
        self.outstanding = 0


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    made = LateStream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made)
    return made


def test_only_a_device_with_a_queue_is_waited_for(stream: LateStream) -> None:
    device_queue.settle(torch.device("cpu"))
    assert stream.waits == 0
    device_queue.settle(torch.device("cuda:0"))
    assert stream.waits == 1


def test_both_backends_wait_by_the_same_function() -> None:
    assert backend.settle is gpu_backend.settle is device_queue.settle


def test_the_layers_time_is_counted_with_the_layers(drive, checkpoint, stream, monkeypatch):
    """Without the wait the 30 ms would stand in the sampler's span, the first to look at a logit."""
    worker = drive.make_worker(checkpoint(), blocks=8, numerics__mode="fast")
    own, choose = worker._backend, worker._backend.choose
    run_graph = own._graph.run

    def launched(batch):
        stream.outstanding = WORK_NS
        return run_graph(batch)

    def looked_at(logits, picks):
        stream.synchronize()
        return choose(logits, picks)

    monkeypatch.setattr(own._graph, "run", launched)
    monkeypatch.setattr(own, "choose", looked_at)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(perf_counter_ns=lambda: stream.now))
    monkeypatch.setattr(backend, "settle", lambda device: device_queue.settle(torch.device("cuda:0")))
    driver = drive.Driver(worker)
    driver.greedy([5, 250, 17], 1, table=range(1))
    spans = {name: took for name, _, took in driver.results[-1].spans}
    assert spans == {"forward": WORK_NS, "sample": 0}
    assert stream.waits >= 2
    worker.close()
