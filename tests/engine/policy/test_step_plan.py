"""A step plan is plain data: it crosses to another process whole, and its digest says whether it did."""

from __future__ import annotations

import pickle
import subprocess
import sys
from array import array
from typing import Any

import pytest

from intaglio.errors import WorkerError
from intaglio.intake.request import SamplingParams
from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import BlockMove, RowPlan, SampleSpec, StepPlan, TableDigest

SPEC = SampleSpec(0.5, 3, 0.9, 0.1, 1.1, (1 << 64) - 1, 0, 7, None, (1, 2))


def row(**values: Any) -> RowPlan:
    tables, numbers = (array("i", [4, 5]), array("i", [0, 1])), (array("q", [1, 1]), array("q", [2, 1]))
    base = RowPlan("a", (1, 2), 4, 4, tables, numbers, (1,), "prefill", SPEC)
    changed = base._replace(**values)
    return changed._replace(table_digest=TableDigest.of(changed.block_tables, changed.generations))


def plan(*rows: RowPlan, step: int = 3, **values: Any) -> StepPlan:
    return StepPlan(step=step, rows=rows or (row(),), use_cache=True, **values)


def test_a_plan_crosses_to_another_process_whole() -> None:
    sent = plan(
        row(), row(request_id="b", sample=None, logit_rows=()), moves=(BlockMove("save", 0, 1, 2, 3),)
    )
    digest = sent.digest()
    code = (
        "import pickle, sys\n"
        "plan = pickle.load(sys.stdin.buffer)\n"
        "assert plan._known == []\n"
        "plan.check_tables()\n"
        "print(plan.digest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(sent), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().strip() == digest
    assert pickle.loads(pickle.dumps(sent)) == sent


OTHER_ROWS = [
    {"request_id": "b"},
    {"tokens": (1, 3)},
    {"tokens": (1,), "logit_rows": (0,)},
    {"start": 5},
    {"context_len": 5},
    {"block_tables": (array("i", [4, 6]), array("i", [0, 1]))},
    {"generations": (array("q", [1, 2]), array("q", [2, 1]))},
    {"logit_rows": (0,)},
    {"logit_rows": (0, 1)},
    {"phase": "decode"},
    {"sample": None},
    {"draft": (2,)},
    {"want_logits": True},
    *({"sample": SPEC._replace(**{name: value})} for name, value in (
        ("temperature", 0.6), ("top_k", 4), ("top_p", 0.8), ("min_p", 0.2), ("repetition_penalty", 1.2),
        ("seed", 5), ("sample_index", 1), ("position", 8), ("logprobs", 0), ("history", (1, 3)),
    )),
]  # fmt: skip


@pytest.mark.parametrize("changes", OTHER_ROWS, ids=str)
def test_the_digest_tells_any_change_of_a_row(changes: dict[str, Any]) -> None:
    assert plan(row(**changes)).digest() != plan().digest()


def test_the_digest_tells_any_change_of_the_plan() -> None:
    others = [
        plan(step=4),
        plan(row(), row(request_id="b")),
        StepPlan(3, (row(),), use_cache=False),
        plan(moves=(BlockMove("copy_in", 0, 1, 2, 3),)),
        plan(moves=(BlockMove("copy_in", 0, 1, 2, 4),)),
    ]
    assert len({other.digest() for other in [plan(), *others]}) == 6
    assert plan().digest() == plan().digest()


def test_every_field_of_row_and_sample_is_covered() -> None:
    """A field added later has to be digested too."""
    changed = {name for changes in OTHER_ROWS for name in changes if name != "sample"}
    assert changed | {"sample", "table_digest"} == set(RowPlan._fields)
    assert len([c for c in OTHER_ROWS if c.get("sample")]) == len(SampleSpec._fields)


@pytest.mark.parametrize("damage", ["block", "generation", "length"])
def test_a_table_that_arrives_changed_is_told_apart(damage: str) -> None:
    good = row()
    plan(good).check_tables()
    tables, numbers = good.block_tables, good.generations
    if damage == "block":
        tables = (array("i", [4, 7]), tables[1])
    elif damage == "generation":
        numbers = (numbers[0], array("q", [2, 2]))
    else:
        tables, numbers = tuple(t[:1] for t in tables), tuple(n[:1] for n in numbers)
    with pytest.raises(WorkerError, match="'a' arrived changed"):
        plan(good._replace(block_tables=tables, generations=numbers)).check_tables()


def test_a_table_grown_in_pieces_has_the_digest_of_the_whole() -> None:
    sequence = Sequence("a", 0, 1, [1], SamplingParams(), 0)
    for blocks in ((3,), (5, 6, 7), (1,)):
        sequence.grow((blocks, blocks), (tuple(b + 1 for b in blocks), blocks))
    assert list(sequence.block_tables[0]) == [3, 5, 6, 7, 1]
    assert sequence.blocks_held == 5
    assert sequence.table_digest.value == TableDigest.of(sequence.block_tables, sequence.generations)
    kept = sequence.block_tables
    sequence.grow(((9,), (9,)), ((1,), (1,)))
    assert len(kept[0]) == 5  # what a plan holds never changes
    sequence.drop_blocks()
    assert (sequence.blocks_held, sequence.table_digest.value) == (0, TableDigest.of((), ()))


def test_a_plan_is_digested_once() -> None:
    once = plan()
    assert once.digest() is once.digest()
