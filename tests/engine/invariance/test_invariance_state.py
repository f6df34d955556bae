"""The invariance matrix of reused state: whatever way a request's KV came to be, alone or together, the same bits.

Each way of computing changes how the KV of a prompt arises. Every pair of them is compared through whole engines,
token by token and logit by logit, and each has to prove that it really took its way.
"""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.errors import ContextMismatchError
from intaglio.intake.request import SamplingParams

DTYPES = ("fp32", "bf16")
COUNT, DOCUMENT_TOKENS, NEW = 3, 100, 30
PARAMS = SamplingParams(max_tokens=NEW, ignore_eos=True)
STORED = DOCUMENT_TOKENS // 16 * 16
# What every request needs in all: its prompt and all new tokens but the last.
OWN = 7
EACH = DOCUMENT_TOKENS + OWN + NEW - 1


def text(count, seed):
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


DOCUMENT = text(DOCUMENT_TOKENS, 1)
QUESTIONS = [text(OWN, 10 + i) for i in range(COUNT)]
PROMPTS = [DOCUMENT + question for question in QUESTIONS]


class Ways:
    """The ways of computing the same three requests, each asserting the work it did."""

    def __init__(self, model, dtype, mode, folder):
        self.fixed = [f"model={model}", f"dtype={dtype}", f"numerics.mode={mode}", "threads.count=1"]
        self.contexts = ["context_cache.enabled=true", f"context_cache.folder={folder}"]

    def engine(self, *overrides):
        return Engine(parse_overrides([*self.fixed, *overrides]))

    def alone(self):
        """One after the other, each prompt in one piece."""
        with self.engine() as engine:
            outputs = [engine.generate([prompt], PARAMS, return_logits=True)[0] for prompt in PROMPTS]
            assert engine.counters()["tokens_computed"] == COUNT * EACH
            assert engine.counters()["steps"] == COUNT * NEW
        return outputs

    def batch(self):
        """All in the same steps."""
        with self.engine() as engine:
            outputs = engine.generate(PROMPTS, PARAMS, return_logits=True)
            assert engine.counters()["tokens_computed"] == COUNT * EACH
            assert engine.counters()["steps"] == NEW
        return outputs

    def chunk(self):
        """Prompts in pieces of 13 tokens."""
        with self.engine("scheduler.prefill_chunk=13") as engine:
            outputs = engine.generate(PROMPTS, PARAMS, return_logits=True)
            assert engine.counters()["tokens_computed"] == COUNT * EACH
            assert engine.counters()["steps"] == -(-(DOCUMENT_TOKENS + OWN) // 13) + NEW - 1
        return outputs

    def prefix_hit(self):
        """The document's blocks found where an earlier request left them."""
        with self.engine("prefix_cache.enabled=true") as engine:
            engine.generate([DOCUMENT], SamplingParams(max_tokens=1, ignore_eos=True))
            before = engine.counters()["tokens_computed"]
            outputs = engine.generate(PROMPTS, PARAMS, return_logits=True)
            assert engine.counters()["tokens_computed"] - before == COUNT * (EACH - STORED)
            assert engine.counters()["prefix_hit_tokens"] == COUNT * STORED
        return outputs

    def context(self):
        """The document by id, resident since it was created."""
        with self.engine(*self.contexts) as engine:
            info = engine.contexts.create(DOCUMENT)
            before = engine.counters()["tokens_computed"]
            outputs = engine.generate(QUESTIONS, PARAMS, return_logits=True, context=info.id)
            assert before == STORED
            assert engine.counters()["tokens_computed"] - before == COUNT * (EACH - STORED)
            assert engine.counters()["context_hit_tokens"] == COUNT * STORED
            assert engine.counters()["context_loads"] == 0
        return outputs

    def restored(self):
        """The document by id, saved by one engine and loaded by another."""
        with self.engine(*self.contexts) as engine:
            info = engine.contexts.create(DOCUMENT)
        with self.engine(*self.contexts) as engine:
            outputs = engine.generate(QUESTIONS, PARAMS, return_logits=True, context=info.id)
            counters = engine.counters()
            assert counters["context_loads"] == 1
            assert (
                counters["context_load_bytes"]
                == STORED * engine.effective_config()["kv_cache.bytes_per_token"]
            )
            assert counters["tokens_computed"] == COUNT * (EACH - STORED)
        return outputs

    def recomputed(self):
        """A pool too small for all: the last arrivals give up their blocks and compute again."""
        with self.engine("kv_cache.blocks=16") as engine:
            outputs = engine.generate(PROMPTS, PARAMS, return_logits=True)
            counters = engine.counters()
            assert counters["preemptions"] > 0 and counters["tokens_recomputed"] > 0
            assert counters["tokens_computed"] == COUNT * EACH + counters["tokens_recomputed"]
        return outputs

    def swapped(self):
        """The same pool, and host memory for the blocks given up: they come back."""
        with self.engine("kv_cache.blocks=16", "host_tier.enabled=true") as engine:
            outputs = engine.generate(PROMPTS, PARAMS, return_logits=True)
            counters = engine.counters()
            assert (
                counters["preemptions"] > 0 and counters["swap_in_blocks"] == counters["swap_out_blocks"] > 0
            )
            assert counters["tokens_recomputed"] == counters["swap_failures"] == 0
            assert counters["tokens_computed"] == COUNT * EACH
        return outputs


NAMES = ("alone", "batch", "chunk", "prefix_hit", "context", "restored", "recomputed", "swapped")


@pytest.fixture(scope="module", params=DTYPES)
def computed(request, tiny_model, tmp_path_factory):
    """Every way's outputs in invariant mode, computed once per dtype."""
    ways = Ways(tiny_model, request.param, "invariant", tmp_path_factory.mktemp("contexts"))
    return {name: getattr(ways, name)() for name in NAMES}


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES, 2)), ids="-".join)
def test_two_ways_give_the_same_bits(computed, pair):
    for ours, theirs in zip(computed[pair[0]], computed[pair[1]], strict=True):
        assert ours.error is None and theirs.error is None
        assert ours.prompt_token_ids == theirs.prompt_token_ids
        assert ours.token_ids == theirs.token_ids
        assert len(ours.logits) == len(theirs.logits) == NEW
        assert all(np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


def test_fast_mode_really_differs(tiny_model, tmp_path):
    """The inverse: were fast mode's bits the same in every way, the equalities above would prove nothing."""
    differing = set()
    for dtype in DTYPES:
        ways = Ways(tiny_model, dtype, "fast", tmp_path / dtype)
        alone = ways.alone()
        for name in NAMES[1:]:
            for ours, theirs in zip(getattr(ways, name)(), alone, strict=True):
                if not all(np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True)):
                    differing.add((dtype, name))
    assert differing, (
        "fast mode gave the same bits in every way on this processor, so the equalities of invariant mode are no "
        "evidence here; run the tests on another processor"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_ways_together_give_the_same_bits(tiny_model, tmp_path, dtype):
    """Contexts, swap, prefix cache and chunks at once, in a pool that is too small."""
    ways = Ways(tiny_model, dtype, "invariant", tmp_path)
    mixed = ("host_tier.enabled=true", "prefix_cache.enabled=true", "scheduler.prefill_chunk=13")
    with ways.engine(*ways.contexts, *mixed, "kv_cache.blocks=12") as engine:
        info = engine.contexts.create(DOCUMENT)
        names = [engine.add(q, PARAMS, return_logits=True, context=info.id) for q in QUESTIONS]
        names += [engine.add(p, PARAMS, return_logits=True) for p in PROMPTS]
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        outputs = [engine.output(name) for name in names]
        counters = engine.counters()
    with ways.engine() as engine:
        plain = engine.generate(PROMPTS, PARAMS, return_logits=True)
    assert counters["context_hit_tokens"] > 0
    assert counters["prefix_hit_tokens"] > 0
    assert counters["preemptions"] > 0 and counters["swap_in_blocks"] > 0
    for ours, theirs in zip(outputs, plain * 2, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert all(np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


def test_a_context_of_another_model_is_refused(tiny_model, tmp_path):
    """The same weights with another rotary base: nothing in the blocks shows it, so the identity must."""
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    config["rope_theta"] = 500.0
    (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ways = Ways(tiny_model, "fp32", "invariant", tmp_path / "contexts")
    with ways.engine(*ways.contexts) as engine:
        info = engine.contexts.create(DOCUMENT)
    with (
        Ways(other, "fp32", "invariant", "").engine(*ways.contexts) as engine,
        pytest.raises(ContextMismatchError, match="model, rope"),
    ):
        engine.add(QUESTIONS[0], PARAMS, context=info.id)
