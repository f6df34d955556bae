"""The worker behind its two records: what it counts, what it refuses row by row, and what it leaves alone."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from intaglio.cluster.runner import Runner
from intaglio.compute.accounting import CostModel
from intaglio.compute.spec import read_spec
from intaglio.config import from_flat
from intaglio.errors import ConfigError, ModelError, WorkerError
from intaglio.intake.step_plan import SampleSpec, StepPlan

PROMPT = [5, 250, 17, 17, 3, 99, 101, 7, 42, 11, 200, 13, 8, 1, 77, 76, 75, 21, 22]
GREEDY = SampleSpec(position=19)


@pytest.fixture(params=("fast", "invariant"))
def mode(request):
    return request.param


@pytest.fixture
def driver(drive, checkpoint, mode):
    return drive.Driver(drive.make_worker(checkpoint(), blocks=16, numerics__mode=mode))


def test_description_is_plain_and_exact(drive, checkpoint):
    folder = checkpoint("qwen3")
    facts = drive.make_worker(folder, dtype="bf16", kv_cache__memory_mib=1, numerics__mode="fast").describe()
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert facts["architecture"] == "qwen3"
    assert (facts["layers"], facts["vocab_size"], facts["max_positions"]) == (2, 259, 512)
    assert facts["kv_bytes_per_token"] == (2 * 2 * 2 * 16 * 2,)
    assert facts["kv_blocks_fit"] == (1 << 20) // (16 * 256)
    assert facts["eos_token_ids"] == (2,)
    assert str(facts["kernel_path"]).startswith("fast/cpu/")
    assert drive.make_worker(folder, kv_cache__enabled=False).describe()["kv_blocks_fit"] == 0


def test_kv_format_sets_the_bytes_and_not_the_arithmetic(drive, checkpoint):
    rows = {}
    for kind in ("auto", "fp32", "bf16"):
        worker = drive.make_worker(checkpoint(), kv_cache__format=kind)
        rows[kind] = drive.Driver(worker).cached_logits(PROMPT, [7, 12], range(2))
        assert worker.describe()["kv_format"] == ("fp32" if kind == "auto" else kind)
        assert worker.describe()["kv_bytes_per_token"] == (2 * 2 * 2 * 16 * (2 if kind == "bf16" else 4),)
    assert np.array_equal(rows["auto"], rows["fp32"])
    assert 0 < np.abs(rows["bf16"] - rows["fp32"]).max() < 0.1


@pytest.mark.parametrize("cache", [True, False])
def test_counted_work_is_the_arithmetic_of_the_plan(driver, checkpoint, cache):
    table = range(2) if cache else None
    tokens, _ = driver.greedy([7], 20, table=table)
    assert len(tokens) == 20
    assert driver.tokens == (20 if cache else 210)
    assert driver.kv_written == (20 * 512 if cache else 0)
    read = [result.kv_bytes_read for result in driver.results]
    assert read == [512 * (i + 1) if cache else 0 for i in range(20)]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_flops_match_a_count_of_the_operations_really_run(drive, checkpoint, family):
    """Against torch's own counter over an unmasked reference that computes every causal pair and no more."""
    folder = checkpoint(family, sliding_window=5) if family == "mistral" else checkpoint()
    spec, driver = read_spec(folder), drive.Driver(drive.make_worker(folder, numerics__mode="fast"))
    plan = driver.row("a", PROMPT, 0, (0, 1), logit_rows=[3, 18])
    with FlopCounterMode(display=False) as counter:
        x = torch.zeros(len(PROMPT), spec.hidden)
        for _ in range(spec.layers):
            x @ torch.zeros(spec.hidden, spec.q_width + 2 * spec.kv_width)
            for query in range(len(PROMPT)):
                seen = min(query + 1, 5) if family == "mistral" else query + 1
                scores = torch.zeros(spec.heads, 1, spec.head_dim) @ torch.zeros(
                    spec.heads, spec.head_dim, seen
                )
                scores @ torch.zeros(spec.heads, seen, spec.head_dim)
            torch.zeros(len(PROMPT), spec.q_width) @ torch.zeros(spec.q_width, spec.hidden)
            x @ torch.zeros(spec.hidden, 2 * spec.intermediate)
            torch.zeros(len(PROMPT), spec.intermediate) @ torch.zeros(spec.intermediate, spec.hidden)
        torch.zeros(2, spec.hidden) @ torch.zeros(spec.hidden, spec.vocab)
    assert CostModel(spec).step([plan], 0).flops == counter.get_total_flops()
    driver.execute([plan], cache=True)
    assert driver.results[-1].flops == counter.get_total_flops()


def test_flops_of_chunks_add_up_to_those_of_the_whole(checkpoint, drive):
    driver = drive.Driver(drive.make_worker(checkpoint("mistral", sliding_window=6)))
    driver.cached_logits(PROMPT, [19], range(2))
    whole = driver.results[-1].flops
    driver.cached_logits(PROMPT, [1, 5, 2, 11], range(2, 4))
    assert sum(result.flops for result in driver.results[1:]) == whole


def test_one_mixed_step_equals_the_rows_apart(driver, mode):
    """Prefill, chunk and decode in one flat batch."""
    apart = {
        "a": driver.cached_logits(PROMPT, [19], (0, 1)),
        "b": driver.cached_logits(PROMPT, [8, 11], (2, 3))[8:],
        "c": driver.cached_logits(PROMPT, [18, 1], (4, 5))[18:],
    }
    driver.cached_logits(PROMPT[:8], [8], (8, 9))
    driver.cached_logits(PROMPT[:18], [18], (12, 10))
    steps = driver.steps
    rows = driver.execute(
        [
            driver.row("c", PROMPT[18:], 18, (12, 10)),
            driver.row("a", PROMPT, 0, (6, 7)),
            driver.row("b", PROMPT[8:], 8, (8, 9)),
        ],
        cache=True,
    )
    assert driver.steps == steps + 1
    assert driver.results[-1].tokens_computed == 19 + 11 + 1
    native = "native" in str(driver.worker.describe()["kernel_path"])
    assert native <= (mode == "invariant")
    assert driver.results[-1].events == (() if native else (("kv_gather", "1"),))
    for row in rows:
        np.testing.assert_allclose(row.logits, apart[row.request_id], atol=2e-5, rtol=1e-4)


def test_only_chosen_logit_rows_come_back(driver):
    full = driver.uncached_logits(PROMPT)
    (some,) = driver.execute([driver.row("a", PROMPT, logit_rows=[2, 18])], cache=False)
    np.testing.assert_allclose(some.logits, full[[2, 18]], atol=1e-5, rtol=1e-4)
    (none,) = driver.execute(
        [driver.row("a", PROMPT, 0, (0, 1), logit_rows=[], want_logits=False)], cache=True
    )
    assert none.logits is None
    assert none.tokens == ()
    assert none.error == ""


def test_result_of_a_sampled_row(driver):
    row = driver.row("a", PROMPT, sample=GREEDY._replace(logprobs=2), logit_rows=[18])
    (result,) = driver.execute([row], cache=False)
    logits = result.logits[0].astype(np.float64)
    assert result.logits.dtype == np.float32
    order = np.argsort(-logits)
    assert result.tokens == (int(order[0]),)
    logsum = math.log(np.exp(logits - logits.max()).sum()) + logits.max()
    assert result.logprobs[0] == pytest.approx(logits.max() - logsum, abs=1e-5)
    assert result.margins[0] == pytest.approx(logits[order[0]] - logits[order[1]], abs=1e-6)
    assert [token for token, _ in result.top_logprobs[0]] == order[:2].tolist()
    spans = driver.results[-1].spans
    assert [name for name, _, _ in spans] == ["forward", "sample"]
    assert all(duration > 0 for _, _, duration in spans)
    assert spans[0][1] + spans[0][2] == spans[1][1]


def bad_rows(driver):
    good = driver.row("bad", PROMPT, 0, (4, 5))
    return {
        "tokens must": [
            good._replace(tokens=()),
            good._replace(tokens=(1, 259)),
            good._replace(tokens=(-1, 2)),
        ],
        "logit_rows": [good._replace(logit_rows=(19,)), good._replace(logit_rows=(), sample=GREEDY)],
        "draft": [good._replace(draft=(3,))],
        "positions": [
            driver.row("bad", PROMPT, 500, (4, 5)),
            good._replace(start=-1, context_len=-1),
        ],
        "context_len": [good._replace(context_len=3), good._replace(block_tables=(), generations=())],
        "cannot hold": [driver.row("bad", PROMPT, 0, (4,))],
        "outside": [driver.row("bad", PROMPT, 0, (4, 16))],
        "stale": [driver.row("bad", PROMPT, 16, (4, 5, 6))],
    }


def test_a_bad_row_is_its_own_error_and_its_neighbours_are_untouched(driver):
    want = driver.cached_logits(PROMPT, [19], (0, 1))
    driver.worker.store.data.fill_(float("nan"))
    for word, rows in bad_rows(driver).items():
        for row in rows:
            good = driver.row("good", PROMPT, 0, (0, 1), sample=GREEDY)
            results = {r.request_id: r for r in driver.execute([row, good], cache=True)}
            assert word in results["bad"].error, (word, results["bad"].error)
            assert results["bad"].tokens == ()
            assert results["good"].error == ""
            assert np.array_equal(results["good"].logits, want)
            assert torch.isnan(driver.worker.store.data[:, 2 * 16 :]).all()
            assert driver.results[-1].tokens_computed == 19


def test_a_step_of_bad_rows_alone_computes_nothing(driver):
    (result,) = driver.execute([driver.row("bad", [999], 0, (0,))], cache=True)
    assert "tokens must" in result.error
    assert driver.results[-1].tokens_computed == driver.results[-1].flops == 0


def test_uncached_rows_must_be_whole(driver):
    (result,) = driver.execute([driver.row("a", PROMPT, 3)], cache=False)
    assert "must start at 0" in result.error


def test_nan_logits_are_that_rows_error_and_no_token(driver):
    """A poisoned context stands for any overflow: the row that reads it fails, its neighbour does not."""
    for name, table in (("a", (0, 1)), ("b", (2, 3))):
        driver.execute([driver.row(name, PROMPT, 0, table)], cache=True)
    driver.worker.store.poison_free([2])
    rows = [driver.row(n, [9], 19, t, sample=GREEDY) for n, t in (("a", (0, 1)), ("b", (2, 3)))]
    sound, broken = driver.execute(rows, cache=True)
    assert sound.error == ""
    assert len(sound.tokens) == 1
    assert "not finite" in broken.error
    assert broken.tokens == ()


def test_a_cached_plan_without_a_store_breaks_the_step(drive, checkpoint):
    driver = drive.Driver(drive.make_worker(checkpoint(), kv_cache__enabled=False))
    with pytest.raises(WorkerError, match="configure_kv"):
        driver.execute([driver.row("a", PROMPT, 0, (0, 1))], cache=True)
    with pytest.raises(ConfigError, match="enabled"):
        driver.worker.configure_kv(4)


def test_a_store_that_cannot_be_allocated_is_a_configuration_error(drive, checkpoint):
    with pytest.raises(ConfigError, match="do not fit"):
        drive.make_worker(checkpoint(), blocks=1 << 50)


def test_runner_checks_that_the_answer_is_to_its_plan(checkpoint, drive, monkeypatch):
    folder = checkpoint()
    runner = Runner(from_flat({"model": str(folder), "dtype": "fp32", "threads.count": 1}), folder)
    row = drive.Driver(runner.worker).row("a", PROMPT, sample=GREEDY, logit_rows=[18])
    plan = StepPlan(7, (row,), False)
    honest = runner.execute(plan)
    assert honest.step == 7
    assert len(honest.rows[0].tokens) == 1
    other = honest.rows[0]
    for lie in (
        replace(honest, digest="0" * 32),
        replace(honest, step=8),
        replace(honest, rows=()),
        replace(honest, rows=(replace(other, request_id="b"),)),
    ):
        monkeypatch.setattr(runner.worker, "execute", lambda _, lie=lie: lie)
        with pytest.raises(WorkerError, match="step 7"):
            runner.execute(plan)
    monkeypatch.undo()
    assert runner.execute(plan).rows[0].tokens == other.tokens
    runner.close()


def test_cuda_is_refused_where_there_is_none(checkpoint, drive):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match="device=cpu"):
        drive.make_worker(checkpoint(), device="cuda")


def test_a_model_folder_without_weights_is_a_model_error(drive, tmp_path):
    with pytest.raises(ModelError):
        drive.make_worker(tmp_path)
