"""Memory that runs out: a KV pool that cannot hold the requests it has admitted."""

from __future__ import annotations

from counterproof.record.verify import verify_plan
from counterproof.run.faults.bench import BASELINE, Bench, Watch
from counterproof.run.faults.fault import NOT_APPLICABLE, NOT_RECOVERED, RECOVERED, Outcome
from counterproof.run.places import Place

CONCURRENCY = 4
ENABLED, BLOCK = "engine.kv_cache.enabled", "engine.kv_cache.block_tokens"


class PoolExhausted:
    """Requests are preempted and computed again; their answers stay the same."""

    name = "pool_exhausted"
    what = f"the KV pool holds one request and a bit, and {CONCURRENCY} are sent at once"

    def strike(self, bench: Bench) -> Outcome:
        load = f"workload.concurrency={CONCURRENCY}"
        plan = verify_plan(bench.study(f"{self.name}-look", load))[0]
        arms = ("baseline", *(["candidate"] if "candidate" in plan["arms"] else []))
        arm = next((name for name in arms if plan["arms"][name]["config"].get(ENABLED)), None)
        if arm is None:
            return Outcome(NOT_APPLICABLE, "no arm has a KV pool")
        workload, place = plan["workload"], Place(0, arm)
        tokens = int(workload["prompt_tokens"]) + int(workload["max_new_tokens"])
        largest = -(-tokens // int(plan["arms"][arm]["config"][BLOCK]))
        blocks = largest + max(1, largest // 2)
        expected = bench.reference(load, place=place)
        paths = bench.study(self.name, load, f"engine.kv_cache.blocks={blocks}")
        answers = bench.run(paths, Watch(), BASELINE if arm == "baseline" else place)
        preempted = answers.counters.get("preemptions")
        same = answers.tokens == expected.tokens
        if not preempted:
            detail = (
                "the engine does not count preemptions" if preempted is None else "the pool held them all"
            )
            return Outcome(NOT_APPLICABLE, detail, outputs_identical=same)
        again = answers.counters["tokens_computed"] - expected.counters["tokens_computed"]
        return Outcome(
            RECOVERED if same and answers.failed == 0 else NOT_RECOVERED,
            f"{preempted} preemptions in {blocks} blocks, all by the scheduler in the step that had no room",
            None,
            None,
            answers.failed,
            answers.counters.get("tokens_recomputed", again),
            same,
        )
