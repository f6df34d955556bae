"""When the Triton kernels are taken, and that what stands in the way is said, counted, and never fatal."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from intaglio.compute import backend
from intaglio.compute.gpu import backend as gpu
from intaglio.compute.gpu import status
from intaglio.compute.spec import read_spec
from intaglio.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("INTAGLIO_TRITON", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)


def test_a_cpu_takes_them_only_where_the_interpreter_is_asked_for_twice(monkeypatch):
    assert not status.wanted(CPU)
    monkeypatch.setenv("INTAGLIO_TRITON", "interpret")
    assert status.wanted(CPU)
    assert "TRITON_INTERPRET=1" in status.status(CPU).reason
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = status.status(CPU)
    assert (found.usable, found.interpreted, found.name) == (True, True, "triton-interpreter")


@pytest.mark.parametrize("capability, name", [((8, 0), "triton-sm80"), ((9, 0), "triton-sm90"), ((7, 5), "")])
def test_a_device_is_named_by_what_it_computes_with(monkeypatch, capability, name):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = status.status(CUDA)
    assert status.wanted(CUDA)
    assert (found.usable, found.name, found.interpreted) == (bool(name), name, False)
    assert name or "need 8.0" in found.reason


def test_they_can_be_switched_off_and_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "counterproof[gpu]" in status.status(CUDA).reason
    monkeypatch.setenv("INTAGLIO_TRITON", "off")
    assert status.status(CUDA).reason == "INTAGLIO_TRITON=off"
    monkeypatch.setenv("INTAGLIO_TRITON", "on")
    with pytest.raises(ConfigError, match="must be one of auto, off, interpret"):
        status.status(CUDA)


def test_what_they_cannot_hold_is_the_reason(monkeypatch, checkpoint):
    usable = status.Status(True, name="triton-sm90")
    monkeypatch.setattr(gpu.gpu_status, "status", lambda device: usable)
    spec = read_spec(checkpoint())
    wide = SimpleNamespace(head_dim=512)
    arguments = (torch.float32, torch.float32, CUDA)
    assert "at most 256" in gpu.load("fast", checkpoint(), wide, *arguments)[1]
    loaded, reason = gpu.load("fast", checkpoint(), spec, torch.float32, torch.uint8, CUDA)
    assert loaded is None
    assert "KV cache of torch.uint8" in reason


@pytest.mark.parametrize("mode, settled", [("fast", "fast"), ("invariant", "invariant"), ("auto", "fast")])
def test_on_cuda_the_torch_path_is_taken_with_the_reason(monkeypatch, checkpoint, mode, settled):
    made = []
    monkeypatch.setattr(backend, "TorchBackend", lambda *given: made.append(given) or "torch's")
    asked = []
    monkeypatch.setattr(backend.gpu, "load", lambda *given: asked.append(given) or (None, "on purpose"))
    spec, fp32 = read_spec(checkpoint()), torch.float32
    got = backend.load_backend(mode, checkpoint(), spec, fp32, fp32, CUDA, 1)
    assert got == ("torch's", "on purpose")
    assert asked[0][0] == made[0][0] == settled
    monkeypatch.setattr(backend.gpu, "load", lambda *given: ("triton's", ""))
    taken, reason = backend.load_backend(mode, checkpoint(), spec, fp32, fp32, CUDA, 1)
    assert taken == "triton's"
    assert bool(reason) == (mode == "auto")
    assert len(made) == 1
