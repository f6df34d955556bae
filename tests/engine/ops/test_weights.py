"""Loading checkpoints: what is refused, and that fusing, packing and sharding change no number."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from intaglio.compute.layers import Layout
from intaglio.compute.spec import read_spec
from intaglio.compute.weights import Layouts, load_weights
from intaglio.errors import ModelError

CPU = torch.device("cpu")
ROWS = Layouts(Layout.ROWS, Layout.ROWS)


def load(folder, dtype=torch.float32, layouts=ROWS):
    return load_weights(folder, read_spec(folder), dtype, CPU, layouts)


def changed(folder, target, *, config=(), drop=(), tensors=()):
    """A copy of a checkpoint with config keys replaced, tensors dropped and tensors replaced."""
    shutil.copytree(folder, target)
    values = json.loads((target / "config.json").read_text()) | dict(config)
    (target / "config.json").write_text(json.dumps(values))
    held = {k: v for k, v in load_file(target / "model.safetensors").items() if k not in drop}
    save_file(held | dict(tensors), target / "model.safetensors")
    return target


def test_projections_are_fused_in_order(checkpoint):
    folder = checkpoint("qwen2")
    raw, layer = load_file(folder / "model.safetensors"), load(folder).layers[1]
    attn, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    qkv = [raw[f"{attn}{p}_proj.weight"] for p in "qkv"]
    assert torch.equal(layer.qkv.weight, torch.cat(qkv))
    assert torch.equal(layer.qkv.bias, torch.cat([raw[f"{attn}{p}_proj.bias"] for p in "qkv"]))
    assert torch.equal(
        layer.gate_up.weight, torch.cat([raw[f"{mlp}gate_proj.weight"], raw[f"{mlp}up_proj.weight"]])
    )
    assert layer.out.bias is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", [Layout.ROWS, Layout.COLUMNS])
def test_embedding_rows_are_the_checkpoints(checkpoint, tied, layout):
    folder = checkpoint("llama", tie_word_embeddings=tied)
    weights = load(folder, layouts=Layouts(layout, layout))
    raw = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    ids = torch.tensor([258, 0, 7, 7])
    assert torch.equal(weights.embed(ids), raw[ids])
    assert (weights.embedding is None) == tied


def test_parameters_and_bytes_are_counted_exactly(checkpoint):
    for family in ("llama", "qwen2", "qwen3"):
        folder = checkpoint(family)
        raw = load_file(folder / "model.safetensors")
        count = sum(t.numel() for t in raw.values())
        assert load(folder).parameters == count
        if family != "qwen3":  # whose q and k norms are spread over the heads
            assert load(folder).nbytes == 4 * count
            norms = sum(t.numel() for name, t in raw.items() if "norm" in name)
            assert load(folder, torch.bfloat16).nbytes == 2 * count + 2 * norms


def test_a_checkpoint_in_several_files_loads_the_same(checkpoint, tmp_path):
    folder, target = checkpoint(), tmp_path / "sharded"
    shutil.copytree(folder, target)
    held = load_file(folder / "model.safetensors")
    (target / "model.safetensors").unlink()
    names = sorted(held)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: held[name] for name in part}, target / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    whole, parts = load(folder), load(target)
    assert parts.parameters == whole.parameters
    assert torch.equal(parts.head.weight, whole.head.weight)
    for a, b in zip(parts.layers, whole.layers, strict=True):
        assert torch.equal(a.qkv.weight, b.qkv.weight)
        assert torch.equal(a.down.weight, b.down.weight)


def test_a_missing_tensor_is_named(checkpoint, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    folder = changed(checkpoint(), tmp_path / "m", drop=[name])
    with pytest.raises(ModelError, match=name):
        load(folder)


def test_a_missing_head_is_named(checkpoint, tmp_path):
    folder = changed(checkpoint(), tmp_path / "m", config={"tie_word_embeddings": False})
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(checkpoint, tmp_path):
    name = "model.layers.0.self_attn.o_proj.weight"
    folder = changed(checkpoint(), tmp_path / "m", tensors={name: torch.zeros(96, 95)})
    with pytest.raises(ModelError, match=r"o_proj.*\(96, 95\).*\(96, 96\)"):
        load(folder)


def test_a_truncated_file_is_an_error_of_the_model(checkpoint, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(checkpoint(), folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="damaged"):
        load(folder)


def test_a_folder_without_weights_or_config_is_refused(checkpoint, tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        read_spec(tmp_path / "m")
    shutil.copy(checkpoint() / "config.json", tmp_path / "m")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    "config, word",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "unnamed"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_size": "96"}, "hidden_size"),
        ({"num_key_value_heads": 4}, "fit together"),
    ],
)
def test_what_would_change_the_numbers_is_refused(checkpoint, tmp_path, config, word):
    folder = changed(checkpoint(), tmp_path / "m", config=config)
    with pytest.raises(ModelError, match=word):
        read_spec(folder)


def test_windows_and_end_tokens_are_read_where_they_apply(checkpoint, tmp_path):
    assert read_spec(checkpoint("mistral", sliding_window=32)).windows == (32, 32)
    assert read_spec(checkpoint("qwen2", sliding_window=32)).windows == (None, None)
    kinds = ["full_attention", "sliding_attention"]
    mixed = checkpoint("qwen2", sliding_window=32, use_sliding_window=True, layer_types=kinds)
    assert read_spec(mixed).windows == (None, 32)
    folder = changed(checkpoint(), tmp_path / "m", config={"eos_token_id": 5})
    assert read_spec(folder).eos_token_ids == (5,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))
    assert read_spec(folder).eos_token_ids == (5, 9)


def test_the_shipped_model_is_read(tiny_model):
    spec, weights = read_spec(tiny_model), load(tiny_model)
    with safe_open(tiny_model / "model.safetensors", framework="pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert weights.parameters == stored
    assert len(weights.layers) == spec.layers


LOADER = """
import resource, sys, threading, torch
from pathlib import Path
from intaglio.compute.numerics import choose_layouts
from intaglio.compute.spec import read_spec
from intaglio.compute.weights import load_weights

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
spec, layouts = read_spec(folder), choose_layouts(dtype, torch.device("cpu"))
before, peak, done = resident(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident())

watcher = threading.Thread(target=watch)
watcher.start()
weights = load_weights(folder, spec, dtype, torch.device("cpu"), layouts)
done.set()
watcher.join()
print(weights.nbytes, max(peak, resident()) - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident set from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_never_holds_the_weights_twice(checkpoint, dtype):
    """A layer at a time: what is resident beyond the finished weights is about two layers and the file's pages
    of one, whatever the model's size."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "head_dim": 64}
    folder = checkpoint("llama", num_hidden_layers=12, **sizes)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(folder), dtype],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    held, grown = map(int, done.stdout.split())
    assert held > 60e6 if dtype == "bfloat16" else held > 120e6
    assert grown < 1.5 * held
