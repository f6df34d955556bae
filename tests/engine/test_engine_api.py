"""The engine with a real model: what the stand-in model of the policy tests cannot show."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.config import EngineConfig, Scalar, field_types, from_flat
from intaglio.engine import Engine
from intaglio.errors import ConfigError, EmptyPromptError, ModelError, RequestError, SamplingParamsError
from intaglio.intake.request import RequestOutput, SamplingParams

PROMPTS = [
    "The import statement",
    "A class definition is",
    "if",
    "for x in range(10):",
    "Floating point numbers",
]
LONG = SamplingParams(max_tokens=24, ignore_eos=True)


def configure(model: Path, **values: Scalar) -> EngineConfig:
    flat: dict[str, Scalar] = {
        "model": str(model), "dtype": "fp32", "threads.count": 1, "numerics.mode": "invariant"
    }  # fmt: skip
    return from_flat(flat | {name.replace("__", "."): value for name, value in values.items()})


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    """fp32, invariant, with a KV cache."""
    with Engine(configure(tiny_model)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the shared engine holds no block and no request."""
    yield
    if "engine" in request.fixturenames:
        engine: Engine = request.getfixturevalue("engine")
        engine.check_integrity()
        gauges = engine.gauges()
        assert (gauges["running"], gauges["waiting"], gauges["kv_blocks_used"]) == (0, 0, 0)


def same(one: RequestOutput, other: RequestOutput) -> bool:
    """Bitwise: ids, text, log probabilities and, where both have them, logits."""
    logits = one.logits is None or other.logits is None or len(one.logits) == len(other.logits)
    if logits and one.logits is not None and other.logits is not None:
        logits = all(np.array_equal(a, b) for a, b in zip(one.logits, other.logits))
    fields = ("token_ids", "text", "finish_reason", "logprobs", "margins", "top_logprobs")
    return logits and all(getattr(one, name) == getattr(other, name) for name in fields)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_with_and_without_a_cache_100_and_5050_tokens_give_the_same_bits(
    tiny_model: Path, dtype: str
) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    outputs, counters = [], []
    for enabled in (True, False):
        with Engine(configure(tiny_model, dtype=dtype, kv_cache__enabled=enabled)) as engine:
            start = engine.tokenizer.encode("The")[:1]
            outputs += engine.generate([start], params, return_logits=True)
            counters.append(engine.counters())
            assert engine.effective_config()["kv_cache.enabled"] is enabled
    assert [c["tokens_computed"] for c in counters] == [100, 5050]
    assert [c["tokens_generated"] for c in counters] == [100, 100]
    assert (counters[0]["kv_bytes_written"] > 0, counters[1]["kv_bytes_written"]) == (True, 0)
    assert outputs[0].logits is not None
    assert len(outputs[0].logits) == 100
    assert same(outputs[0], outputs[1])


def test_bad_requests_change_no_bit_of_their_companions(engine: Engine) -> None:
    alone = [engine.generate([prompt], LONG, return_logits=True)[0] for prompt in PROMPTS[:3]]
    size = engine.tokenizer.vocab_size
    bad: list[tuple[Any, SamplingParams]] = [
        ("", LONG), ([size], LONG), ([1, True], LONG), ("\ud800", LONG), ([1] * 100_000, LONG),
        ("x", replace(LONG, temperature=math.nan)), ("x", replace(LONG, top_p=0.0)),
        ("x", replace(LONG, max_tokens=0)), ("x", replace(LONG, max_tokens=10**9)),
        ("x", replace(LONG, temperature=-1.0)),
    ]  # fmt: skip
    pairs = [*bad[:5], (PROMPTS[0], LONG), *bad[5:8], (PROMPTS[1], LONG), *bad[8:], (PROMPTS[2], LONG)]
    before = engine.counters()
    outputs = engine.generate([p for p, _ in pairs], [s for _, s in pairs], return_logits=True)
    good = [output for output in outputs if output.error is None]
    assert all(same(one, other) for one, other in zip(good, alone, strict=True))
    errors = [output.error for output in outputs if output.error is not None]
    assert len(errors) == len(bad)
    assert all(isinstance(error, RequestError) and error.code != "request" for error in errors)
    after = engine.counters()
    assert after["requests_rejected"] - before["requests_rejected"] == len(bad)
    assert after["blocks_allocated"] - after["blocks_freed"] == 0
    with pytest.raises(EmptyPromptError):
        engine.generate([""], on_error="raise")


def test_a_prompt_that_can_never_fit_the_pool(tiny_model: Path) -> None:
    config = configure(tiny_model, kv_cache__blocks=4, kv_cache__block_tokens=4)
    with Engine(config) as engine:
        outputs = engine.generate([[5] * 17, [5] * 3, [6] * 16], LONG)
        codes = [output.error.code if output.error else None for output in outputs]
        assert codes == ["kv_capacity", None, None]
        assert [output.finish_reason for output in outputs[1:]] == ["length", "length"]
        assert [len(output.token_ids) for output in outputs[1:]] == [14, 1]
        kinds = [event["kind"] for event in engine.drain_events()]
        assert kinds.count("kv_exhausted") == 2
        engine.check_integrity()
        assert engine.gauges()["kv_blocks_used"] == 0


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_preemption_by_recompute_changes_no_bit(tiny_model: Path, dtype: str) -> None:
    wide = configure(tiny_model, dtype=dtype)
    narrow = configure(
        tiny_model, dtype=dtype, kv_cache__block_tokens=4, kv_cache__blocks=14, scheduler__prefill_chunk=5
    )
    with Engine(wide) as engine:
        wanted = engine.generate(PROMPTS, LONG, return_logits=True)
        assert engine.counters()["preemptions"] == 0
        computed = engine.counters()["tokens_computed"]
    with Engine(narrow) as engine:
        outputs = engine.generate(PROMPTS, LONG, return_logits=True)
        counters = engine.counters()
        engine.check_integrity()
    assert counters["preemptions"] > 0
    assert counters["tokens_recomputed"] > 0
    assert counters["tokens_computed"] == computed + counters["tokens_recomputed"]
    assert all(same(one, other) for one, other in zip(outputs, wanted, strict=True))


@pytest.mark.parametrize("moment", [1, 2, 7])
def test_abort_mid_stream_from_another_thread(engine: Engine, moment: int) -> None:
    wanted, companion_wanted = (engine.generate([prompt], LONG)[0] for prompt in (PROMPTS[1], PROMPTS[0]))
    companion = engine.add(PROMPTS[0], LONG)
    stream = engine.stream(PROMPTS[1], LONG)
    seen = [next(stream) for _ in range(moment)]
    request_id = seen[0].request_id
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(engine.abort(request_id)))
    thread.start()
    thread.join(timeout=30)
    assert answers == [True]
    seen += stream
    assert [event.finish_reason for event in seen] == [None] * moment + ["abort"]
    output = engine.output(request_id)
    assert output.token_ids == wanted.token_ids[:moment]
    assert output.text == "".join(event.text for event in seen)
    while engine.has_work:
        engine.step()
    assert same(engine.output(companion), companion_wanted)


def test_random_aborts_while_another_thread_drives(engine: Engine) -> None:
    """The abort may fall anywhere: before, during and after a step. Each request still ends exactly once."""
    wanted = {prompt: engine.generate([prompt], LONG)[0].token_ids for prompt in PROMPTS}
    ids = {engine.add(prompt, LONG): prompt for prompt in PROMPTS * 3}
    victims = list(ids)[::2]
    endings: list[str] = []

    def drive() -> None:
        while engine.has_work:
            endings.extend(event.request_id for event in engine.step() if event.finish_reason)

    thread = threading.Thread(target=drive)
    thread.start()
    for victim in victims:
        engine.abort(victim)
    thread.join(timeout=120)
    assert not thread.is_alive()
    while engine.has_work:  # an abort may have come after the driver's last look
        endings.extend(event.request_id for event in engine.step() if event.finish_reason)
    assert sorted(endings) == sorted(ids)
    for request_id, prompt in ids.items():
        output = engine.output(request_id)
        assert output.token_ids == wanted[prompt][: len(output.token_ids)]
        assert output.finish_reason == ("length" if len(output.token_ids) == 24 else "abort")
        assert request_id in victims or output.finish_reason == "length"


def test_stop_strings_across_token_borders(engine: Engine) -> None:
    (free,) = engine.generate([PROMPTS[0]], LONG)
    for left in range(1, len(free.text) - 4, 5):
        stop = free.text[left : left + 4]
        events = list(engine.stream(PROMPTS[0], replace(LONG, stop=(stop,))))
        output = engine.output(events[0].request_id)
        assert output.finish_reason == "stop"
        assert output.text == free.text[: free.text.index(stop)] == "".join(event.text for event in events)
        assert output.token_ids == free.token_ids[: len(output.token_ids)]


def test_output_text_is_what_the_ids_decode_to(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.5, seed=11, ignore_eos=True)
    for output in engine.generate(PROMPTS, params):
        assert output.text == engine.tokenizer.decode(output.token_ids)
        assert len(output.token_times_ns) == len(output.margins) == len(output.logprobs) == 30


def test_a_seeded_request_does_not_depend_on_its_companions(engine: Engine) -> None:
    params = SamplingParams(max_tokens=16, temperature=1.0, top_p=0.9, seed=77, ignore_eos=True, logprobs=3)
    (alone,) = engine.generate([PROMPTS[2]], params)
    others = [SamplingParams(max_tokens=n, temperature=1.0, ignore_eos=True) for n in (3, 9, 20, 5)]
    outputs = engine.generate([*PROMPTS[:2], PROMPTS[2], *PROMPTS[3:]], [*others[:2], params, *others[2:]])
    assert same(outputs[2], alone)
    assert [len(top) for top in alone.top_logprobs] == [3] * 16
    different = engine.generate([PROMPTS[2]], replace(params, seed=78))[0]
    assert different.token_ids != alone.token_ids


def test_logits_explain_the_greedy_choice(engine: Engine) -> None:
    (output,) = engine.generate([PROMPTS[3]], LONG, return_logits=True)
    assert output.logits is not None
    for token, margin, row in zip(output.token_ids, output.margins, output.logits, strict=True):
        best, second = np.sort(row)[::-1][:2]
        assert token == int(np.argmax(row))
        assert margin == pytest.approx(float(best) - float(second), abs=1e-6)
    assert engine.generate([PROMPTS[3]], LONG)[0].logits is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_trace_closes_and_switching_it_off_changes_nothing(tiny_model: Path, enabled: bool) -> None:
    runs = []
    for traced in (True, False):
        config = configure(tiny_model, kv_cache__enabled=enabled, trace__enabled=traced)
        with Engine(config) as engine:
            outputs = engine.generate(PROMPTS, LONG, return_logits=True)
            runs.append((outputs, engine.trace.drain(), engine.counters()))
    (outputs, spans, counters), (untraced, none, _) = runs
    assert none == []
    assert all(same(one, other) for one, other in zip(outputs, untraced, strict=True))
    for output in outputs:
        walls = [span.wall_ns for span in spans if span.request_id == output.request_id]
        assert sum(walls) == output.done_ns - output.enqueued_ns
    compute = [span for span in spans if span.stage == "compute"]
    assert {span.phase for span in compute} == {"prefill", "decode"}
    assert sum(span.tokens for span in compute) == counters["tokens_computed"]
    assert sum(span.flops for span in compute) == counters["flops"] > 0
    assert sum(span.bytes for span in compute) == counters["kv_bytes_written"] + counters["kv_bytes_read"]
    assert sum(span.tokens for span in spans if span.phase == "sample") == counters["tokens_generated"]


def test_gauges_tell_of_each_step(tiny_model: Path) -> None:
    with Engine(configure(tiny_model, scheduler__max_running=2, kv_cache__block_tokens=8)) as engine:
        outputs = engine.generate(PROMPTS, LONG)
        samples = engine.drain_gauges()
        counters = engine.counters()
        assert engine.drain_gauges() == []
        per_token = engine.effective_config()["kv_cache.bytes_per_token"]
    assert len(samples) == counters["steps"] + 1  # and one when it fell idle
    assert [time_ns for time_ns, _ in samples] == sorted(time_ns for time_ns, _ in samples)
    assert max(values["running"] for _, values in samples) == 2
    assert samples[0][1]["waiting"] == len(PROMPTS) - 2
    assert set(samples[-1][1].values()) == {0, samples[-1][1]["kv_blocks_total"]}
    for _, values in samples:
        assert values["kv_bytes_used"] == values["kv_blocks_used"] * 8 * int(str(per_token))
    longest = max(len(output.prompt_token_ids) for output in outputs) + 24 - 1
    assert max(values["kv_blocks_used"] for _, values in samples) >= -(-longest // 8)


def test_the_effective_configuration_says_what_runs(tiny_model: Path, engine: Engine) -> None:
    effective = engine.effective_config()
    assert set(field_types()) <= set(effective)
    assert effective["threads.count"] == 1
    assert effective["numerics.mode"] == "invariant"
    assert effective["kv_cache.format"] == "fp32"
    assert effective["scheduler.max_model_len"] == engine.effective_config()["scheduler.max_model_len"] > 100
    assert str(effective["kernel_path"]).startswith("invariant")
    assert effective["model.parameters"] == 853_120
    assert effective["model.weight_bytes"] == 4 * 853_120
    assert effective["kv_cache.pool_bytes"] == (
        int(str(effective["kv_cache.blocks"])) * 16 * int(str(effective["kv_cache.bytes_per_token"]))
    )
    for part in ("model.sha256", "model.weights_sha256", "model.tokenizer_sha256"):
        assert len(str(effective[part])) == 64
    config = configure(tiny_model, kv_cache__enabled=False, scheduler__max_model_len=64)
    with Engine(config) as uncached:
        other = uncached.effective_config()
        assert (other["kv_cache.blocks"], other["kv_cache.bytes_per_token"]) == (0, 0)
        assert other["scheduler.max_model_len"] == 64
        changed = {path for path in effective if effective[path] != other[path]}
    assert changed == {
        "kv_cache.enabled", "kv_cache.blocks", "kv_cache.bytes_per_token", "kv_cache.pool_bytes",
        "scheduler.max_model_len",
    }  # fmt: skip


def test_configurations_that_cannot_run(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.max_model_len"):
        Engine(configure(tiny_model, scheduler__max_model_len=1 << 20))
    with pytest.raises(ModelError):
        Engine(configure(tmp_path))
    with pytest.raises(SamplingParamsError), Engine(configure(tiny_model)) as engine:
        engine.add("x", SamplingParams(max_tokens=1, seed=-3))


def test_engines_in_one_process_keep_their_own_thread_count(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's thread count is one for the process, so the engine built last would change the others."""
    import torch

    from intaglio.cluster.worker import Worker

    seen: list[int] = []
    execute = Worker.execute

    def spy(self: Any, plan: Any) -> Any:
        seen.append(torch.get_num_threads())
        return execute(self, plan)

    before = torch.get_num_threads()
    monkeypatch.setattr(Worker, "execute", spy)
    try:
        with (
            Engine(configure(tiny_model, numerics__mode="fast")) as one,
            Engine(configure(tiny_model, numerics__mode="fast", threads__count=2)) as two,
        ):
            for engine in (one, two, one):
                engine.generate("if", SamplingParams(max_tokens=1))
            assert [engine.effective_config()["threads.count"] for engine in (one, two)] == [1, 2]
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 1]
