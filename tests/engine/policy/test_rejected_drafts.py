"""Of proposed tokens only those that were accepted count as computed and are found by others (field case 17).

The stand-in model verifies drafts as a speculating worker would: all of a draft is written into the store, and the
tokens behind the first wrong one stay there as garbage until they are written over.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from intaglio.intake.request import SamplingParams
from intaglio.intake.step_plan import RowPlan, RowResult

NEW, BLOCK = 14, 4
PARAMS = SamplingParams(max_tokens=NEW, ignore_eos=True)
PROMPT = [97, 98, 99, 100, 101]


def drafting(fake: ModuleType, engine: Any, right: int, length: int) -> list[tuple[int, int]]:
    """Let every decoding row carry a draft of up to `length` tokens of which `right` are what the model would say,
    as far as its last block has room. Returns a list that grows by (proposed, accepted) of every such row."""
    truth = [*PROMPT, *fake.reference(PROMPT, PARAMS)[0]]
    made: list[tuple[int, int]] = []
    plan = engine._scheduler.plan

    def drafted(row: RowPlan) -> RowPlan:
        room = len(row.block_tables[0]) * BLOCK - row.start - 1
        left = PARAMS.max_tokens - (row.start + 1 - len(PROMPT)) - 1
        count = min(length, room, left)
        if row.phase != "decode" or count < 1:
            return row
        coming = truth[row.start + 1 : row.start + 1 + count]
        guess = tuple(token if i < right else 122 - token % 2 for i, token in enumerate(coming))
        tokens = (*row.tokens, *guess)
        return row._replace(tokens=tokens, draft=guess, logit_rows=tuple(range(len(tokens))))

    def planned() -> Any:
        step = plan()
        if step is None:
            return None
        rows = tuple(drafted(row) for row in step.plan.rows)
        return replace(step, plan=replace(step.plan, rows=rows))

    def answered(row: RowPlan, use_cache: bool) -> RowResult:
        if not row.draft:
            return plain(row, use_cache)
        held = engine.fake._write_and_read(0, row)
        assert all(engine.fake._write_and_read(g, row) == held for g in range(len(row.block_tables)))
        said, first = [], row.start + 1
        for i in range(len(row.draft) + 1):
            said.append(fake.next_token(held[: first + i], row.sample))
            if i < len(row.draft) and row.draft[i] != said[-1]:
                break
        made.append((len(row.draft), len(said) - 1))
        return RowResult(
            row.request_id, tokens=tuple(said), logprobs=(-0.5,) * len(said), margins=(1.0,) * len(said)
        )

    plain = engine.fake._row
    engine._scheduler.plan, engine.fake._row = planned, answered
    return made


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_only_accepted_tokens_of_a_draft_are_committed_to_the_cache(
    fake: ModuleType, make: Any, right: int
) -> None:
    """Field case 17: drafts wrong from the first, second or third token on, or wholly right. A second request hits
    what was committed, and says the same as one without any cache."""
    engine = make(prefix_cache__enabled=True)
    made = drafting(fake, engine, right, 3)
    (first,) = engine.generate([PROMPT], PARAMS)
    truth = fake.reference(PROMPT, PARAMS)[0]
    assert first.token_ids == truth
    assert made and all(accepted == min(right, proposed) for proposed, accepted in made)
    rejected = sum(proposed - accepted for proposed, accepted in made)
    assert (rejected > 0) == (right < 3)
    # Every step computes its rows' tokens, rejected ones too; what is kept is the text and nothing else.
    assert engine.counters()["tokens_computed"] == len(PROMPT) + NEW - 1 + rejected
    assert engine.gauges()["kv_blocks_cached"] == (len(PROMPT) + NEW - 1) // BLOCK
    engine.check_integrity()
    longer = [*PROMPT, *truth]
    (second,) = engine.generate([longer], PARAMS)
    assert second.cached_tokens == (len(longer) - 1) // BLOCK * BLOCK
    assert second.token_ids == fake.reference(longer, PARAMS)[0]
