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

from intaglio.compute.resident import drop_code, drop_mapped
from intaglio.compute.stack import Stack
from intaglio.models import catalogue

ALLOWANCE = 200 << 20
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 12,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
RUN = """
import json, re, sys
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

engine = Engine(parse_overrides(sys.argv[1:]))
(output,) = engine.generate([list(range(3, 203))], SamplingParams(max_tokens=50, ignore_eos=True))
facts = engine.effective_config()
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(json.dumps({
    "peak": int(peak[1]) * 1024,
    "weights": facts["model.weight_bytes"],
    "kv": facts["kv_cache.bytes_per_token"] * (200 + len(output.token_ids)),
    "path": facts["kernel_path"],
    "tokens": len(output.token_ids),
}))
"""

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux's /proc")


@pytest.mark.parametrize("options", [("dtype=bf16",), ("dtype=fp32",), ("dtype=bf16", "weights.format=q8_0")])
def test_one_request_peaks_at_weights_and_its_keys_and_little_else(library, checkpoint, options):
    folder = checkpoint("llama", **SIZES)
    shutil.copy(catalogue.resolve("tiny") / catalogue.TOKENIZER, folder)
    command = [sys.executable, "-c", RUN, f"model={folder}", "numerics.mode=invariant", "threads.count=2"]
    done = subprocess.run(
        [*command, *options, "scheduler.max_running=1"],
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


def resident(address: int) -> int:
    """Resident bytes of the mapping that starts at or before an address."""
    current = 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            start, _, end = head.partition("-")
            current = int(start, 16) <= address < int(end, 16)
        elif current and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no mapping holds {address:#x}")


def test_rows_read_from_a_mapped_file_leave_the_process_again(tmp_path):
    rows, width = 4096, 1024
    path = tmp_path / "weights"
    values = torch.arange(rows * width, dtype=torch.int32).view(rows, width).float()
    path.write_bytes(values.numpy().tobytes())
    storage = torch.UntypedStorage.from_file(str(path), False, values.nbytes)
    view = torch.tensor([], dtype=torch.float32).set_(storage, 0, (rows, width))
    stack = Stack([view[:1000], view[1000:]], torch.float32, None)
    for start in range(0, rows, 512):
        assert torch.equal(stack.run(start, start + 512), values[start : start + 512])
    assert resident(view.data_ptr()) < values.nbytes // 8
    assert torch.equal(stack.run(900, 1100), values[900:1100])


def test_memory_that_is_no_file_is_never_dropped():
    memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held = torch.frombuffer(memory, dtype=torch.uint8)
    held.fill_(7)
    assert drop_mapped(held.data_ptr(), held.numel()) == 0
    assert bool((held == 7).all())
    plain = torch.full((4 << 20,), 3, dtype=torch.uint8)
    assert drop_mapped(plain.data_ptr(), plain.numel()) == 0
    assert bool((plain == 3).all())


def test_dropped_libraries_go_on_working():
    before = torch.arange(1000.0).sin()
    assert drop_code() > 0
    assert torch.equal(torch.arange(1000.0).sin(), before)
