"""The whole decoder on every instruction set: threads, layer ranges, caches and companions change no bit."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.backend import load_backend
from intaglio.compute.layers import Layout
from intaglio.compute.native import backend as native
from intaglio.compute.native import status
from intaglio.compute.native.decoder import NativeDecoder
from intaglio.compute.native.formats import FORMATS, encode, head_format
from intaglio.compute.native.library import Context
from intaglio.compute.native.model import NativeModel
from intaglio.compute.spec import read_spec
from intaglio.compute.weights import Layouts, WeightSource
from intaglio.errors import ConfigError, WorkerError
from intaglio.intake.step_plan import RowPlan, SampleSpec
from intaglio.output.sampler import choose_token
from intaglio.state.kv_store import KVStore, PoolGroup

CPU = torch.device("cpu")
SIZES = {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 6, "head_dim": 20}
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("qwen3", **SIZES)


@pytest.fixture(scope="module")
def decoders(contexts, folder, dtype):
    spec = read_spec(folder)
    model = native.load_model(contexts(1), folder, spec, dtype)
    return lambda threads, kv=dtype: NativeDecoder(spec, model, contexts(threads), kv)


def row(name, tokens, start=0, table=None, logits=None):
    every = tuple(range(len(tokens)))
    tables = ((), ()) if table is None else ((tuple(table),), ((0,) * len(table),))
    wanted = every if logits is None else logits
    return RowPlan(name, tuple(tokens), start, start if table else 0, *tables, wanted, "prefill")


def text(count, seed=0, vocabulary=259):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (count,), generator=draw).tolist()


def decoded_model(context, folder, spec, dtype, weight_format):
    """The decoder over plain fp32 panels of the weights that the encoded ones stand for."""
    form = FORMATS[weight_format]
    source = WeightSource(folder, spec, torch.float32, CPU, Layouts(Layout.ROWS, Layout.ROWS))
    model = NativeModel(context.library, spec, FORMATS["fp32"], dtype)

    def plain(linear, of=form):
        coded = encode(linear.weight, of)
        if coded.scales is not None:
            return replace(linear, weight=coded.data.float() * coded.scales[:, None])
        kind = {FORMATS["q8_0"]: "Q8_0", FORMATS["q4_1"]: "Q4_1"}[of]
        dense = gguf.quants.dequantize(coded.data.numpy(), gguf.GGMLQuantizationType[kind])
        return replace(linear, weight=torch.from_numpy(dense))

    for index, layer in enumerate(source.layers()):
        linears = {name: plain(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")}
        model.add_layer(index, replace(layer, **linears))
    outer = source.outer()
    head = plain(outer.head, head_format(form)).weight
    model.finish(outer.final_norm, (head[:128], head[128:]), outer.embedding)
    return NativeDecoder(spec, model, context, dtype)


def make_store(decoder, blocks=40, size=8, dtype=None):
    spec = decoder.spec
    group = PoolGroup(spec.layers, spec.kv_heads, spec.head_dim, dtype or decoder._kv_dtype)
    store = KVStore(group, blocks, size, CPU)
    store.data.fill_(float("nan"))
    return store


def test_threads_cache_and_layer_ranges_change_no_bit(decoders):
    tokens = text(150)
    whole = decoders(1).run([row("a", tokens)], None)
    assert torch.isfinite(whole).all()
    for threads in (1, 2, 4):
        decoder = decoders(threads)
        assert torch.equal(decoder.run([row("a", tokens)], None), whole)
        store = make_store(decoder)
        assert torch.equal(decoder.run([row("a", tokens, 0, range(20))], store), whole)
        logits = torch.empty_like(whole)
        hidden = decoder.forward([row("a", tokens)], None, last=1)
        again = decoder.forward([row("a", tokens)], None, hidden, first=1, logits=logits)
        assert again is hidden
        assert torch.equal(logits, whole)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 1 << 30),
)
def test_any_chunks_among_any_companions_change_no_bit(decoders, lengths, threads, seed):
    """Sequences advance by random chunks in random company over scattered blocks; random rows want logits."""
    decoder, draw = decoders(threads), random.Random(seed)
    texts = [text(n, seed=i) for i, n in enumerate(lengths)]
    alone = [decoder.run([row("x", t)], None) for t in texts]
    store = make_store(decoder, blocks=8 * len(texts))
    tables = draw.sample(range(8 * len(texts)), 8 * len(texts))
    done, compared = [0] * len(texts), 0
    while done != lengths:
        step, owners = [], []
        for i in draw.sample(range(len(texts)), len(texts)):
            count = min(draw.choice([0, 1, 1, 2, 7, 33]), lengths[i] - done[i])
            if count:
                wanted = tuple(at for at in range(count) if draw.random() < 0.5)
                part = texts[i][done[i] : done[i] + count]
                step.append(row(str(i), part, done[i], tables[8 * i : 8 * i + 8], wanted))
                owners.extend((i, done[i] + at) for at in wanted)
                done[i] += count
        if step:
            for values, (i, at) in zip(decoder.run(step, store), owners, strict=True):
                assert torch.equal(values, alone[i][at])
                compared += 1
    assert compared or sum(lengths) < 20


@pytest.mark.parametrize("weight_format", ["int8", "q8_0", "q4_1"])
def test_quantised_weights_keep_every_promise(contexts, checkpoint, dtype, weight_format):
    folder = checkpoint("llama", hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16)
    spec, tokens = read_spec(folder), text(60)
    plain = NativeDecoder(spec, native.load_model(contexts(1), folder, spec, dtype), contexts(1), dtype)
    model = native.load_model(contexts(1), folder, spec, dtype, weight_format)
    assert model.parameters == plain.model.parameters
    linears = spec.linear_macs_per_token() + spec.hidden * spec.vocab
    bits = {"int8": 8, "q8_0": 8.5, "q4_1": 8.5}[weight_format]
    assert model.nbytes <= linears * bits / 8 + 64 * 1024
    whole = NativeDecoder(spec, model, contexts(1), dtype).run([row("a", tokens)], None)
    for threads, chunk in ((1, 1), (2, 7), (4, 33)):
        decoder = NativeDecoder(spec, model, contexts(threads), dtype)
        store = make_store(decoder)
        parts = [
            decoder.run([row("a", tokens[s : s + chunk], s, range(8))], store) for s in range(0, 60, chunk)
        ]
        assert torch.equal(torch.cat(parts), whole)
    # The numbers are those of the same network over the decoded weights, and not those of the original.
    exact = plain.run([row("a", tokens)], None)
    same = decoded_model(contexts(1), folder, spec, dtype, weight_format).run([row("a", tokens)], None)
    error, distance = (
        ((whole - other).square().mean().sqrt() / exact.std()).item() for other in (same, exact)
    )
    assert error < (1e-5 if dtype == torch.float32 else 0.02)
    assert distance > max(0.004, 2 * error)


def test_a_store_of_another_precision_keeps_cached_and_uncached_equal(decoders, dtype):
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    decoder, tokens = decoders(2, other), text(50)
    store = make_store(decoder, dtype=other)
    plain = decoder.run([row("a", tokens)], None)
    parts = [decoder.run([row("a", tokens[s : s + 7], s, range(9))], store) for s in range(0, 50, 7)]
    assert torch.equal(torch.cat(parts), plain)
    assert not torch.equal(plain, decoders(2).run([row("a", tokens)], None))


@pytest.mark.parametrize("chosen", [(), (149,), (7, 149, 0, 7)])
def test_chosen_logits_are_those_of_all_rows_and_lie_in_the_room_given(decoders, chosen):
    """The last layer is finished for the chosen rows alone; in any order, and in rows of several requests."""
    plan, other = row("a", text(150)), row("b", text(9, 1))
    whole = decoders(1).run([plan, other], None)
    rows = [plan._replace(logit_rows=chosen), other._replace(logit_rows=(8,))]
    wanted = whole[[*chosen, 158]]
    for threads in (1, 2):
        room = torch.full((8, whole.shape[1]), float("nan"))
        logits = decoders(threads).run(rows, None, room)
        assert torch.equal(logits, wanted)
        assert logits.data_ptr() == room.data_ptr()
        assert torch.isnan(room[len(wanted) :]).all()
        assert torch.equal(decoders(threads).run(rows, None, room[:1]), wanted)
    assert decoders(1).run([plan._replace(logit_rows=())], None).shape == (0, whole.shape[1])


def test_only_the_step_s_own_slots_are_written(decoders):
    decoder = decoders(2)
    store = make_store(decoder)
    decoder.run([row("a", text(10), 0, (4, 2)), row("b", text(1), 0, (7,))], store)
    written = ~torch.isnan(store.data.float()).all(dim=(0, 2, 3, 4))
    expected = [4 * 8 + i for i in range(8)] + [2 * 8, 2 * 8 + 1, 7 * 8]
    assert torch.nonzero(written).flatten().tolist() == sorted(expected)


def test_the_backend_chooses_the_sampler_s_tokens_for_all_rows_at_once(library, folder):
    backend, _ = load_backend("invariant", folder, read_spec(folder), torch.float32, torch.float32, CPU, 1)
    draw = torch.Generator().manual_seed(5)
    rows = torch.stack([torch.randn(500, generator=draw), torch.zeros(500), 2 * torch.ones(500)])
    specs = (SampleSpec(), SampleSpec(temperature=0.7, seed=3, top_p=0.8), SampleSpec(logprobs=2))
    picks = [(row, spec) for row in range(3) for spec in specs]
    for (row, spec), ours in zip(picks, backend.choose(rows, picks), strict=True):
        theirs = choose_token(rows[row], spec)
        assert (ours.token, ours.margin, len(ours.top)) == (theirs.token, theirs.margin, len(theirs.top))
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-6)
    assert backend.choose(rows, []) == []
    backend.close()


def test_the_backend_takes_native_kernels_and_falls_back_with_a_reason(library, folder, monkeypatch):
    spec = read_spec(folder)

    def load(mode, **changes):
        return load_backend(
            mode, folder, replace(spec, **changes), torch.float32, torch.float32, CPU, threads=1
        )

    best, reason = load("invariant")
    assert (best.path, reason) == (f"invariant/cpu/native-{library.isas()[0]}", "")
    best.close()
    library_path, reason = load("fast")
    assert library_path.path.startswith("fast/")
    assert reason == ""
    monkeypatch.setattr(native, "_proven", lambda _: False)
    fallen, reason = load("invariant")
    assert fallen.path.startswith("invariant/cpu/")
    assert "native" not in fallen.path
    assert "changed bits" in reason
    monkeypatch.setattr(native, "MAX_HEAD_DIM", 8)
    assert "20 dimensions" in load("invariant")[1]
    monkeypatch.setenv(status.ISA_VARIABLE, "off")
    monkeypatch.setattr(native, "MAX_HEAD_DIM", 512)
    assert "switched off" in load("invariant")[1]


@pytest.mark.parametrize(
    ("mode", "isa", "why"),
    [
        ("fast", "", "numerics.mode=auto and invariant"),
        ("invariant", "off", "switched off"),
        ("auto", "off", "switched off"),
    ],
)
def test_quantised_weights_without_native_kernels_are_refused(library, folder, monkeypatch, mode, isa, why):
    monkeypatch.setenv(status.ISA_VARIABLE, isa)
    with pytest.raises(ConfigError, match=why) as caught:
        load_backend(mode, folder, read_spec(folder), torch.float32, torch.float32, CPU, 1, "q8_0")
    assert caught.value.field == "weights.format"


def test_a_closed_context_refuses_work(library, isa):
    context = Context(library, isa, threads=2)
    assert context.workspace_bytes >= 0
    context.close()
    context.close()
    with pytest.raises(WorkerError, match="closed"):
        context.top(torch.zeros(1, 4))
    with pytest.raises(WorkerError, match="abacus"):
        Context(library, "abacus", threads=1)


def test_a_child_after_fork_computes_the_same_without_the_parent_s_threads(library):
    code = """
import os, torch
from intaglio.compute.native import status
from intaglio.compute.native.library import Context
from intaglio.compute.native.model import linear_struct
state = status.status("")
context = Context(state.library, state.isa, threads=3)
struct, keep = linear_struct(state.library, torch.ones(300, 64))
x = torch.arange(640.0).view(10, 64)
want = context.linear(struct, x)
child = os.fork()
if child == 0:
    same = torch.equal(context.linear(struct, x), want)
    context.close()
    os._exit(0 if same else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(context.linear(struct, x), want)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
