"""Quantised keys and values on every instruction set: the codec's own bytes, read where they lie, invariantly."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.native import backend as native
from intaglio.compute.native.decoder import NativeDecoder
from intaglio.compute.native.kv_ops import attend, write
from intaglio.compute.spec import read_spec
from intaglio.intake.step_plan import RowPlan
from intaglio.state.kv_codec import code_type
from intaglio.state.kv_store import KVStore, PoolGroup

CPU = torch.device("cpu")
FORMATS = ("fp8", "int8", "int4")
NAN = float("nan")
PATTERNS = ("noise", "zeros", "denormal", "huge", "outlier", "constant", "spoiled")


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pattern(name, *shape, seed=0):
    x = noise(*shape, seed=seed)
    if name == "zeros":
        return torch.zeros(shape).copysign(x)
    if name == "constant":
        return torch.full(shape, -0.7)
    if name == "outlier":
        x[..., 1] *= 1000
    if name == "spoiled":
        x[0, 0, 0, 1], x[1, 1, 0, 1], x[2, 0, 0, 0] = NAN, float("inf"), -float("inf")
    return x * {"denormal": 1e-41, "huge": 1e38}.get(name, 1.0)


def make_store(form, kv_heads, dim, *, blocks=8, size=16, layers=1):
    store = KVStore(PoolGroup(layers, kv_heads, dim, code_type(form)), blocks, size, CPU)
    store.poison_free(range(blocks))
    return store


def exact(q, keys, values, context, window=None):
    """(out, lse) in float64 by the definition; keys and values [kv_heads, length, d]."""
    n, heads, dim = q.shape
    groups = heads // keys.shape[0]
    keys, values = (x.double().repeat_interleave(groups, 0) for x in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", q.double(), keys) / math.sqrt(dim)
    at, key = torch.arange(context, context + n)[:, None], torch.arange(keys.shape[1])[None]
    seen = key <= at
    if window:
        seen &= key > at - window
    scores.masked_fill_(~seen, -math.inf)
    return torch.einsum("hqk,hkd->qhd", scores.softmax(-1), values), torch.logsumexp(scores, -1).t()


def near(ours, truth, bits):
    return bool(((ours.double() - truth).abs().max() <= 2.0**-bits * truth.abs().max()).item())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", PATTERNS)
def test_native_stores_write_the_codec_s_own_bytes(context, form, name):
    for dim in (2, 8, 20, 64, 128):
        fresh = pattern(name, 24, 2, 3, dim, seed=dim)
        ours, theirs = (make_store(form, 3, dim, layers=2) for _ in range(2))
        slots = [5, *range(40, 63)]
        write(context, ours, 1, slots, fresh)
        theirs.write(1, theirs.map_slots(slots), fresh)
        assert torch.equal(ours.data, theirs.data)
        assert not torch.equal(ours.data[1, slots], torch.full_like(ours.data[1, slots], 255))


@pytest.mark.parametrize("form", FORMATS)
def test_every_code_is_read_as_the_codec_reads_it(context, form):
    """One visible key has weight 1, so attention returns its value."""
    for dim in (8, 20, 64):
        fresh = torch.cat([pattern(n, 4, 2, 2, dim) for n in ("noise", "zeros", "denormal", "outlier")])
        store = make_store(form, 2, dim)
        write(context, store, 0, range(16), fresh)
        for token in range(16):
            rows = [(0, 1, 0, (token // 16,))]
            moved = make_store(form, 2, dim)
            moved.data[0, 0] = store.data[0, token]
            out, _ = attend(context, noise(1, 4, dim), moved, rows)
            _, values = moved.read(0, moved.run((0,), 1))
            assert torch.equal(out[0], values[:, 0].repeat_interleave(2, 0) + 0.0)


@settings(max_examples=30)
@given(data=st.data())
def test_any_block_table_reads_only_what_its_queries_see(contexts, data):
    """Error against float64 over the numbers that the codec stands for; all else in the store is NaN."""
    form, rounded = data.draw(st.sampled_from(FORMATS)), data.draw(st.booleans())
    kv_heads, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    dim, size = 2 * data.draw(st.integers(1, 66)), data.draw(st.sampled_from([1, 7, 16, 100]))
    context, count = data.draw(st.integers(0, 150)), data.draw(st.integers(1, 40))
    window = data.draw(st.one_of(st.none(), st.integers(1, 80)))
    length = context + count
    blocks = -(-length // size)
    table = data.draw(st.permutations(range(blocks + 2)))[:blocks]
    store = make_store(form, kv_heads, dim, blocks=blocks + 2, size=size)
    first = 0 if window is None else max(0, context - window + 1)
    fresh = noise(length, 2, kv_heads, dim, seed=1)
    write(contexts(1), store, 0, store.slots(table, first, length), fresh[first:])
    straight = make_store(form, kv_heads, dim, blocks=1, size=length)
    write(contexts(1), straight, 0, range(length), fresh)
    q = noise(count, kv_heads * groups, dim)
    q = q.bfloat16().float() if rounded else q
    threads = data.draw(st.sampled_from([1, 2]))
    out, lse = attend(
        contexts(threads), q, store, [(0, count, context, table)], window=window, rounded=rounded
    )
    keys, values = straight.read(0, straight.run((0,), length))
    truth = exact(q, keys, values, context, window)
    assert near(out, truth[0], 5 if rounded else 17)
    assert torch.isfinite(lse).all()
    again = attend(contexts(1), q, straight, [(0, count, context, (0,))], window=window, rounded=rounded)
    assert torch.equal(out, again[0])
    assert torch.equal(lse, again[1])


@pytest.mark.parametrize("form", FORMATS)
def test_a_spoiled_token_is_seen_by_its_own_row_alone(context, form):
    q, store = noise(3, 2, 16), make_store(form, 1, 16)
    fresh = noise(96, 2, 1, 16, seed=1)
    rows = [(i, 1, 20, (2 * i, 2 * i + 1)) for i in range(3)]
    write(context, store, 0, range(96), fresh)
    clean = attend(context, q, store, rows)[0]
    fresh[32 + 5, :, 0, 7] = float("inf")
    write(context, store, 0, range(96), fresh)
    dirty = attend(context, q, store, rows)[0]
    assert torch.isnan(dirty[1]).all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


def row(name, tokens, start=0, table=None):
    every = tuple(range(len(tokens)))
    tables = ((), ()) if table is None else ((tuple(table),), ((0,) * len(table),))
    return RowPlan(name, tuple(tokens), start, start if table else 0, *tables, every, "prefill")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_decoder_keeps_its_bits_over_chunks_companions_threads_and_blocks(
    contexts, checkpoint, form, dtype
):
    sizes = {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 6, "head_dim": 20}
    folder = checkpoint("qwen3", **sizes)
    spec, tokens = read_spec(folder), torch.arange(150).mul(7).remainder(259).tolist()
    model = native.load_model(contexts(1), folder, spec, dtype)
    plain = NativeDecoder(spec, model, contexts(1), dtype).run([row("a", tokens)], None)
    whole = NativeDecoder(spec, model, contexts(1), code_type(form)).run([row("a", tokens)], None)
    assert torch.isfinite(whole).all()
    assert not torch.equal(whole, plain)
    for threads, chunk, table in ((1, 1, range(20)), (2, 33, range(39, 19, -1)), (4, 64, range(3, 23))):
        decoder = NativeDecoder(spec, model, contexts(threads), code_type(form))
        group = PoolGroup(spec.layers, spec.kv_heads, spec.head_dim, code_type(form))
        store = KVStore(group, 60, 8, CPU)
        store.poison_free(range(60))
        for start in range(0, 150, chunk):
            part = tokens[start : start + chunk]
            other = row("b", tokens[: 1 + start % 40], 0, range(40, 46))
            logits = decoder.run([other, row("c", part, start, table)], store)[-len(part) :]
            assert torch.equal(logits, whole[start : start + chunk])
