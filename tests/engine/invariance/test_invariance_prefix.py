"""Prefix hits in invariant mode: what was not computed again is bit for bit what would have been.

Crossed with chunks, companions and preemption, in both formats and on both kinds of kernels. Each test asserts the
work that was saved, and the inverse test shows that fast mode does not keep the promise.
"""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.compute.native import status
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams
from intaglio.state.block_pool import BlockState

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
BLOCK = 8


@pytest.fixture(scope="module", params=["native", "torch"])
def kernels(request):
    """Both ways to the same promise: the native kernels (skipped where they cannot be had) and torch's operators."""
    if request.param == "native" and not status.available():
        pytest.skip(f"no native kernels: {status.status().reason}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setenv(status.ISA_VARIABLE, "off")
        yield request.param


@pytest.fixture(params=["fp32", "bf16"])
def start(request, kernels, tiny_model):
    """start(overrides...) makes an engine with the prefix cache on; it is closed afterwards."""
    made = []

    def make(*overrides, mode="invariant", prefix="true"):
        fixed = [f"model={tiny_model}", f"dtype={request.param}", "threads.count=1", f"numerics.mode={mode}"]
        fixed += [f"prefix_cache.enabled={prefix}", f"kv_cache.block_tokens={BLOCK}"]
        made.append(Engine(parse_overrides([*fixed, *overrides])))
        if mode == "invariant":
            assert ("native" in str(made[-1].effective_config()["kernel_path"])) == (kernels == "native")
        return made[-1]

    yield make
    for engine in made:
        engine.check_integrity()
        engine.close()


def text(count, seed=0):
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def same(ours, theirs):
    assert ours.error is None
    assert theirs.error is None
    assert len(ours.logits) == len(theirs.logits) == len(ours.token_ids) == len(theirs.token_ids)
    return ours.token_ids == theirs.token_ids and all(map(np.array_equal, ours.logits, theirs.logits))


def ask(engine, prompts, params=GREEDY):
    return engine.generate(prompts, params, return_logits=True)


@pytest.fixture
def missed(start):
    """missed(prompts) -> their outputs without a prefix cache, each alone."""
    engine = start(prefix="false")

    def alone(prompts, params=GREEDY):
        outputs = [ask(engine, [prompt], params)[0] for prompt in prompts]
        assert engine.counters()["prefix_hit_tokens"] == 0
        return outputs

    return alone


@pytest.mark.parametrize("chunk", ["1", "5", "16", "null"])
def test_a_hit_and_a_miss_are_equal_in_any_chunks(start, missed, chunk):
    shared = text(43)
    prompts = [[*shared, *text(tail, seed=tail)] for tail in (1, 6, 21)] + [shared]
    engine = start(f"scheduler.prefill_chunk={chunk}")
    ask(engine, [shared])
    before = engine.counters()["tokens_computed"]
    hits = [ask(engine, [prompt])[0] for prompt in prompts]
    # Of the 43 shared tokens 40 fill five blocks; alone, the prompt recomputes its last tokens.
    assert [output.cached_tokens for output in hits] == [40, 40, 40, 40]
    assert engine.counters()["tokens_computed"] - before == sum(len(p) - 40 + 11 for p in prompts)
    assert all(map(same, hits, missed(prompts)))


def test_companions_that_share_or_not_change_nothing(start, missed):
    shared = text(64)
    prompts = [[*shared, *text(3 + i, seed=i)] for i in range(5)] + [text(30, seed=90), text(7, seed=91)]
    engine = start()
    outputs = ask(engine, prompts)
    # Sent together: one computes the eight common blocks, the other four hit them.
    assert sorted(output.cached_tokens for output in outputs) == [0, 0, 0, 64, 64, 64, 64]
    assert engine.counters()["prefix_hit_blocks"] == 4 * 8
    assert all(map(same, outputs, missed(prompts)))


def test_a_full_hit_of_whole_blocks_recomputes_the_last_one(start, missed):
    prompt = text(6 * BLOCK)
    engine = start()
    first, second = (ask(engine, [prompt])[0] for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 5 * BLOCK)
    (alone,) = missed([prompt])
    assert same(first, alone)
    assert same(second, alone)


@pytest.mark.parametrize("chunk", ["7", "null"])
def test_preempted_requests_find_their_blocks_and_go_on_equal(start, missed, chunk):
    shared = text(24)
    prompts = [[*shared, *text(5 + i, seed=i)] for i in range(4)]
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=7)
    engine = start("kv_cache.blocks=24", f"scheduler.prefill_chunk={chunk}")
    outputs = ask(engine, prompts, params)
    counters = engine.counters()
    assert counters["preemptions"] > 0
    computed = sum(len(p) + 39 - o.cached_tokens for p, o in zip(prompts, outputs, strict=True))
    assert counters["tokens_computed"] == computed + counters["tokens_recomputed"]
    assert counters["prefix_hit_tokens"] > sum(output.cached_tokens for output in outputs)
    assert all(map(same, outputs, missed(prompts, params)))


@pytest.mark.parametrize("preemption", [False, True])
def test_what_nobody_owns_is_never_read(start, missed, preemption):
    """All free blocks and all slots behind a request's tokens hold NaN before every step."""
    shared = text(21)
    prompts = [[*shared, *text(4 + i, seed=i)] for i in range(4)]
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    engine = start(f"kv_cache.blocks={18 if preemption else 64}", "scheduler.prefill_chunk=6")
    store, pool = engine._loaded.runner.worker.store, engine._pools.pools[0]
    compute, poisoned = engine._stepper._runner_execute, 0

    def execute(plan):
        nonlocal poisoned
        valid = {b: BLOCK for b in range(store.blocks) if pool.state(b) is BlockState.CACHED}
        for request_id in engine._scheduler.live_ids():  # also those that have no row in this step
            sequence = engine._scheduler.get(request_id)
            for index, block in enumerate(sequence.block_tables[0] if sequence.block_tables else ()):
                held = min(BLOCK, max(0, sequence.computed - index * BLOCK))
                valid[block] = max(held, valid.get(block, 0))
        for block in range(store.blocks):
            begin = block * BLOCK + valid.get(block, 0)
            store.data[:, begin : (block + 1) * BLOCK].fill_(float("nan"))
            poisoned += (block + 1) * BLOCK - begin
        return compute(plan)

    engine._stepper._runner_execute = execute
    outputs = ask(engine, prompts, params)
    again = ask(engine, prompts, params)
    assert poisoned > 0
    assert (engine.counters()["preemptions"] > 0) == preemption
    assert engine.counters()["prefix_hit_tokens"] > 0
    alone = missed(prompts, params)
    assert all(map(same, outputs, alone))
    assert all(map(same, again, alone))


def test_fast_mode_does_not_keep_the_promise(start):
    """The mode is needed: one token left to compute is another product for a library than all of them."""
    shared = text(40)
    prompts = [[*shared, 5 + i] for i in range(8)]
    missing, hitting = start(mode="fast", prefix="false"), start(mode="fast")
    alone = [ask(missing, [prompt])[0] for prompt in prompts]
    ask(hitting, [shared])
    hits = [ask(hitting, [prompt])[0] for prompt in prompts]
    assert all(output.cached_tokens == 40 for output in hits)
    assert not all(map(same, hits, alone))


def test_a_hit_in_fast_mode_is_told_by_its_margins_and_logprobs(start):
    """Field case 12: hit and miss may part in fast mode. Every token comes with its margin and log-probability, from
    which it can be told by how much they moved; texts part only where the margin was less than that."""
    shared = text(40)
    prompts = [[*shared, 5 + i] for i in range(8)]
    missing, hitting = start(mode="fast", prefix="false"), start(mode="fast")
    misses = [ask(missing, [prompt])[0] for prompt in prompts]
    ask(hitting, [shared])
    hits = [ask(hitting, [prompt])[0] for prompt in prompts]
    moved = []
    for hit, miss in zip(hits, misses, strict=True):
        assert (hit.cached_tokens, miss.cached_tokens) == (40, 0)
        for output in (hit, miss):
            best = np.sort(np.asarray(output.logits, dtype=np.float32), axis=1)[:, -2:]
            assert np.allclose(output.margins, best[:, 1] - best[:, 0], rtol=0, atol=1e-6)
            assert len(output.logprobs) == len(output.token_ids) == GREEDY.max_tokens
        for at, (ours, theirs) in enumerate(zip(hit.token_ids, miss.token_ids, strict=True)):
            shift = float(np.abs(hit.logits[at] - miss.logits[at]).max())
            if ours != theirs:
                assert miss.margins[at] <= 2 * shift
                break
            moved.append(abs(hit.logprobs[at] - miss.logprobs[at]))
            assert moved[-1] <= 2 * shift + 1e-6
    assert max(moved) > 0
