"""What a model takes of memory, measured as the peak of a fresh process."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from intaglio.compute import resident
from intaglio.compute.layers import Layout, RopeTable
from intaglio.compute.native.backend import load_model
from intaglio.compute.native.decoder import NativeDecoder
from intaglio.compute.native.library import Context
from intaglio.compute.spec import read_spec
from intaglio.compute.stack import Stack, copy_rows
from intaglio.compute.weights import Layouts, WeightSource
from intaglio.intake.step_plan import RowPlan
from intaglio.models import catalogue

# Beside weights and KV: 200 MB, of which a vocabulary of 49,152 takes about 12 that the tiny one here does not.
ALLOWANCE = 188_000_000
PROMPT = 512
# So many that a request takes more than importing the libraries does, in every format.
LAYERS = 24
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
RUN = """
import json, re, sys
from intaglio.compute import resident
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake import tokenizer
from intaglio.intake.request import SamplingParams

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

class Watched(tokenizer.Tokenizer):
    def __init__(self, folder):
        seen["torch_before_tokenizer"] = "torch" in sys.modules
        super().__init__(folder)

seen = {}
tokenizer.Tokenizer = Watched
engine = Engine(parse_overrides(sys.argv[2:]))
seen["files"] = status("RssFile")
resident.drop_code()
seen["least_files"] = status("RssFile")
prompt = [3 + i % 200 for i in range(int(sys.argv[1]))]
(output,) = engine.generate([prompt], SamplingParams(max_tokens=50, ignore_eos=True))
facts = engine.effective_config()
seen |= {
    "peak": resident.peak(),
    "mark": status("VmHWM"),
    "weights": facts["model.weight_bytes"],
    "kv": facts["kv_cache.bytes_per_token"] * (len(prompt) + len(output.token_ids)),
    "path": facts["kernel_path"],
    "tokens": len(output.token_ids),
}
print(json.dumps(seen))
"""

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux's /proc")


@pytest.mark.parametrize("options", [("dtype=bf16",), ("dtype=fp32",), ("dtype=bf16", "weights.format=q8_0")])
def test_one_request_peaks_at_weights_and_its_keys_and_little_else(library, checkpoint, options):
    folder = checkpoint("llama", **SIZES | {"num_hidden_layers": LAYERS})
    shutil.copy(catalogue.resolve("tiny") / catalogue.TOKENIZER, folder)
    command = [sys.executable, "-c", RUN, str(PROMPT), f"model={folder}", "numerics.mode=invariant"]
    done = subprocess.run(
        [*command, "threads.count=2", *options, "scheduler.max_running=1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "native" in seen["path"]
    assert seen["tokens"] == 50
    assert seen["weights"] > 20 << 20
    assert seen["weights"] < seen["peak"] <= seen["weights"] + seen["kv"] + ALLOWANCE
    assert seen["peak"] == seen["mark"]
    # What loading has touched of the libraries is gone, and torch came into the memory that parsing had left.
    assert seen["files"] <= seen["least_files"] + (2 << 20)
    assert not seen["torch_before_tokenizer"]


def test_a_step_s_room_is_that_of_its_activations(library, checkpoint):
    folder = checkpoint("llama", **SIZES)
    spec = read_spec(folder)
    context = Context(library, library.isas()[0], threads=2)
    decoder = NativeDecoder(spec, load_model(context, folder, spec, torch.float32), context, torch.float32)

    def room(count: int) -> int:
        tokens = tuple(3 + i % 200 for i in range(count))
        row = RowPlan("a", tokens, 0, 0, (), (), (count - 1,), "prefill", want_logits=False)
        decoder.run([row], None)
        return context.workspace_bytes

    short, long = room(256), room(1024)
    context.close()
    # fp32: hidden states, normed inputs, q with k and v, attention's outputs, the MLP's middle, own keys and values
    q, kv = spec.q_width, spec.kv_width
    per_token = 4 * (2 * spec.hidden + (q + 2 * kv) + q + spec.intermediate + 2 * kv)
    assert 0 < long - short <= (1024 - 256) * per_token + (64 << 10)


def test_the_first_requests_find_their_rotary_angles(library, checkpoint, monkeypatch):
    folder = checkpoint("llama", **SIZES)
    spec = read_spec(folder)
    context = Context(library, library.isas()[0], threads=1)
    decoder = NativeDecoder(spec, load_model(context, folder, spec, torch.float32), context, torch.float32)
    grown: list[int] = []
    monkeypatch.setattr(RopeTable, "_grow", lambda _, positions: grown.append(positions))
    decoder.run(
        [RowPlan("a", tuple(range(3, 403)), 0, 0, (), (), (399,), "prefill", want_logits=False)], None
    )
    context.close()
    assert grown == []


def of_mapping(belongs) -> int:
    """Resident bytes of the mappings that `belongs(start, end, path)` picks."""
    total, current = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split(None, 5)
        if "-" in words[0] and not words[0].endswith(":"):
            start, _, end = words[0].partition("-")
            current = belongs(int(start, 16), int(end, 16), words[5] if len(words) > 5 else "")
        elif current and line.startswith("Rss:"):
            total += int(words[1]) * 1024
    return total


def test_rows_read_from_a_mapped_file_leave_the_process_again(tmp_path):
    rows, width = 4096, 1024
    path = tmp_path / "weights"
    values = torch.arange(rows * width, dtype=torch.int32).view(rows, width).float()
    path.write_bytes(values.numpy().tobytes())
    storage = torch.UntypedStorage.from_file(str(path), False, values.nbytes)
    view = torch.tensor([], dtype=torch.float32).set_(storage, 0, (rows, width))

    def held() -> int:
        return of_mapping(lambda start, end, _: start <= view.data_ptr() < end)

    stack = Stack([view[:1000], view[1000:]], torch.float32, None)
    for start in range(0, rows, 512):
        assert torch.equal(stack.run(start, start + 512), values[start : start + 512])
    assert held() < values.nbytes // 8
    assert torch.equal(stack.run(900, 1100), values[900:1100])
    target = torch.empty_like(values)
    copy_rows(target, view)
    assert torch.equal(target, values)
    assert held() < values.nbytes // 8


def test_a_layer_of_many_small_tensors_is_never_resident_as_a_whole(checkpoint):
    folder = checkpoint("llama", **SIZES)
    spec = read_spec(folder)
    source = WeightSource(
        folder, spec, torch.bfloat16, torch.device("cpu"), Layouts(Layout.ROWS, Layout.ROWS)
    )
    file = str(folder / "model.safetensors")
    before = of_mapping(lambda _, __, path: path == file)
    for layer in source.layer_rows():
        read = 0
        for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
            for start in range(0, linear.out_features, 256):
                rows = linear.run(start, min(start + 256, linear.out_features))
                read += 4 * rows.numel()
        assert read > 10 << 20
        assert of_mapping(lambda _, __, path: path == file) - before < read // 8


def test_memory_that_is_no_file_is_never_dropped():
    memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held = torch.frombuffer(memory, dtype=torch.uint8)
    plain = torch.full((4 << 20,), 3, dtype=torch.uint8)
    held.fill_(7)
    spans = [(one.data_ptr(), one.numel()) for one in (held, plain)]
    assert resident.mapped(spans) == (False, False)
    for one, value in ((held, 7), (plain, 3)):
        copied = Stack([one.view(-1, 1024)], torch.uint8, None).run(0, 2048)
        assert bool((copied == value).all())
        assert bool((one == value).all())


def test_dropped_libraries_go_on_working():
    before = torch.arange(1000.0).sin()
    assert resident.drop_code() > 0
    assert torch.equal(torch.arange(1000.0).sin(), before)
    assert resident.settle() > 0
    assert torch.equal(torch.arange(1000.0).sin(), before)
