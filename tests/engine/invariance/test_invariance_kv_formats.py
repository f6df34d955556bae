"""Quantised KV crossed with everything that moves work about: in invariant mode no bit of a logit may change.

A token's codes depend on that token alone, so it does not matter with whom, in which chunk or after which hit or
preemption it was computed. Each test asserts the work done, and that the format really was in use.
"""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.compute.native import status
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.errors import ContextMismatchError
from intaglio.intake.request import SamplingParams

FORMATS = ("fp8", "int8", "int4")
PER_TOKEN = {"fp8": 576, "int8": 576, "int4": 320}
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
LONG = SamplingParams(max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module", params=["native", "torch"])
def kernels(request):
    """Both ways to the same promise: the native kernels (skipped where they cannot be had) and torch's operators."""
    if request.param == "native" and not status.available():
        pytest.skip(f"no native kernels: {status.status().reason}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setenv(status.ISA_VARIABLE, "off")
        yield request.param


@pytest.fixture(params=FORMATS)
def start(request, kernels, tiny_model):
    """`start(overrides...)` makes an engine of the format; `start.form` names it."""

    def make(*overrides, form=request.param, dtype="fp32", mode="invariant"):
        fixed = [f"model={tiny_model}", f"dtype={dtype}", f"numerics.mode={mode}", "threads.count=1"]
        made = Engine(parse_overrides([*fixed, f"kv_cache.format={form}", *overrides]))
        if mode == "invariant":
            assert ("native" in made.effective_config()["kernel_path"]) == (kernels == "native")
        return made

    make.form = request.param
    return make


def text(count, seed=0):
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def assert_same(ours, theirs):
    assert ours.error is None
    assert theirs.error is None
    assert ours.token_ids == theirs.token_ids
    assert len(ours.logits) == len(theirs.logits) == len(ours.token_ids)
    assert all(np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


@pytest.fixture
def alone(start):
    """`alone(prompts)`: the outputs of each prompt by itself, in one chunk, with blocks to spare."""

    def run(prompts, dtype="fp32", params=GREEDY):
        with start(dtype=dtype) as engine:
            return [engine.generate([p], params, return_logits=True)[0] for p in prompts]

    return run


def test_the_format_is_in_use_and_its_bytes_are_exact(start):
    with start("kv_cache.blocks=8") as engine:
        engine.generate([text(40)], SamplingParams(max_tokens=1))
        effective = engine.effective_config()
        assert effective["kv_cache.format"] == start.form
        assert effective["kv_cache.bytes_per_token"] == PER_TOKEN[start.form]
        assert effective["kv_cache.pool_bytes"] == 8 * 16 * PER_TOKEN[start.form]
        assert engine.counters()["kv_bytes_written"] == 40 * PER_TOKEN[start.form]
        used = [gauges["kv_bytes_used"] for _, gauges in engine.drain_gauges()]
        assert max(used) == 3 * 16 * PER_TOKEN[start.form]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_chunks_and_companions_change_no_bit_while_the_format_does(start, alone, dtype):
    prompts = [text(75, seed=i) for i in range(3)]
    truth = alone(prompts, dtype)
    for chunk in (1, 16, 33):
        with start(f"scheduler.prefill_chunk={chunk}", dtype=dtype) as engine:
            for ours, theirs in zip(engine.generate(prompts, GREEDY, return_logits=True), truth, strict=True):
                assert_same(ours, theirs)
            assert engine.counters()["tokens_computed"] == 3 * (75 + 23)
            assert engine.counters()["steps"] == -(-75 // chunk) + 23
    with start(form="auto", dtype=dtype) as engine:
        (plain,) = engine.generate(prompts[:1], GREEDY, return_logits=True)
    assert not np.array_equal(plain.logits[1], truth[0].logits[1])


def test_preemption_by_recomputing_changes_no_bit(start, alone):
    prompts = [text(20, seed=i) for i in range(3)]
    with start("kv_cache.blocks=9") as engine:
        outputs = engine.generate(prompts, LONG, return_logits=True)
        counters = engine.counters()
    assert counters["preemptions"] > 0
    assert counters["tokens_computed"] == 3 * (20 + 59) + counters["tokens_recomputed"] > 3 * (20 + 59)
    for ours, theirs in zip(outputs, alone(prompts, params=LONG), strict=True):
        assert_same(ours, theirs)


def test_preemption_by_swapping_changes_no_bit(start, alone):
    prompts = [text(20, seed=i) for i in range(3)]
    with start("kv_cache.blocks=9", "host_tier.enabled=true") as engine:
        outputs = engine.generate(prompts, LONG, return_logits=True)
        counters = engine.counters()
    assert counters["swap_out_blocks"] >= counters["swap_in_blocks"] > 0
    assert (
        counters["swap_bytes"]
        == (counters["swap_out_blocks"] + counters["swap_in_blocks"]) * 16 * PER_TOKEN[start.form]
    )
    assert counters["swap_failures"] == 0
    for ours, theirs in zip(outputs, alone(prompts, params=LONG), strict=True):
        assert_same(ours, theirs)


def test_a_prefix_hit_changes_no_bit(start, alone):
    """The second request reads blocks that the first one wrote, in another chunking and company."""
    shared = text(48, seed=9)
    prompts = [shared + text(n, seed=n) for n in (7, 20, 33)]
    with start("prefix_cache.enabled=true", "scheduler.prefill_chunk=29") as engine:
        first = engine.generate(prompts[:1], GREEDY, return_logits=True)
        before = engine.counters()
        later = engine.generate(prompts[1:], GREEDY, return_logits=True)
        after = engine.counters()
    assert after["prefix_hit_tokens"] - before["prefix_hit_tokens"] == 2 * 48
    assert after["tokens_computed"] - before["tokens_computed"] == 20 + 33 + 2 * 23
    for ours, theirs in zip([*first, *later], alone(prompts), strict=True):
        assert_same(ours, theirs)


def test_a_saved_context_changes_no_bit(start, alone, tmp_path):
    document, question = text(60, seed=4), text(11, seed=5)
    folder = [f"context_cache.folder={tmp_path}", "context_cache.enabled=true"]
    with start(*folder) as engine:
        made = engine.contexts.create(document)
    with start(*folder) as engine:
        name = engine.add(question, GREEDY, return_logits=True, context=made.id)
        while engine.has_work:
            engine.step()
        ours, counters = engine.output(name), engine.counters()
    assert counters["context_hit_tokens"] >= 48
    assert counters["tokens_computed"] <= 71 - 48 + 23
    assert_same(ours, alone([document + question])[0])


def test_a_context_saved_in_another_format_is_refused(start, tmp_path):
    folder = [f"context_cache.folder={tmp_path}", "context_cache.enabled=true"]
    with start(*folder) as engine:
        made = engine.contexts.create(text(40))
    with start(*folder, form="int8" if start.form != "int8" else "fp8") as engine:
        with pytest.raises(ContextMismatchError):
            engine.add(text(5), GREEDY, context=made.id)
        assert engine.counters()["context_hit_tokens"] == 0


def test_fast_mode_reads_the_same_formats(start):
    """Fast mode promises no bits, but it must store and read the same format with the same bytes."""
    prompt = text(50)
    with start(mode="fast") as engine:
        (ours,) = engine.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True), return_logits=True)
        assert engine.effective_config()["kernel_path"].startswith("fast/")
        assert engine.counters()["kv_bytes_written"] == 57 * PER_TOKEN[start.form]
    with start() as engine:
        (theirs,) = engine.generate(
            [prompt], SamplingParams(max_tokens=8, ignore_eos=True), return_logits=True
        )
    assert ours.error is None
    assert np.abs(ours.logits[0] - theirs.logits[0]).max() < 0.05 * np.abs(theirs.logits[0]).max()
