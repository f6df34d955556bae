"""The parts of a search without an engine: loads, space, relations, journal, report, and what a command refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from counterproof.cli import main
from counterproof.errors import EvidenceError, InputError
from counterproof.measure.percentile import floor_count
from counterproof_review.challenge import declared, metamorphic, summary, texts
from counterproof_review.challenge.compare import difference
from counterproof_review.challenge.journaled import JOURNAL, Journaled
from counterproof_review.challenge.reach import Reach
from counterproof_review.challenge.search import Budget, Outcome, search
from counterproof_review.challenge.workload import Builder, Load

SCOPE = {"prompt_tokens": [10, 48], "output_tokens": [24, 24], "concurrency": 4}
REACH = Reach(longest=512, least_outputs=2, pool=4096, keeps=True)


def encode(text: str) -> list[int]:
    """One token a byte, after one that begins every text."""
    return [1, *text.encode()]


@pytest.fixture(scope="module")
def builder() -> Builder:
    return Builder(texts.Texts(encode, 300), "p50", REACH)


# -- loads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", texts.KINDS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 340])
def test_every_kind_gives_prompts_of_exactly_the_length_asked_for(
    builder: Builder, kind: str, size: int
) -> None:
    load = builder.load({"prompt_tokens": size, "output_tokens": 3, "entropy": kind}, 7, 0)
    assert {len(r.token_ids) for r in load.requests} == {size}
    assert all(r.token_ids[0] == 1 and max(r.token_ids) < 300 for r in load.requests)
    assert len(load.requests) == floor_count(0.5)
    again = builder.load({"prompt_tokens": size, "output_tokens": 3, "entropy": kind}, 7, 0)
    assert again == load
    if size > 20:
        assert builder.load({"prompt_tokens": size, "entropy": kind}, 8, 0).requests != load.requests
        assert builder.load({"prompt_tokens": size, "entropy": kind}, 7, 1).requests != load.requests


def test_a_prefix_is_shared_as_far_as_asked_and_no_further(builder: Builder) -> None:
    for overlap, common in ((0.0, 1), (0.5, 51), (1.0, 101)):
        cell = {"prompt_tokens": 101, "prefix_overlap": overlap, "entropy": "random"}
        prompts = [r.token_ids for r in builder.load(cell, 3, 0).requests]
        assert {p[:common] for p in prompts} == {prompts[0][:common]}
        assert len(set(prompts)) == (1 if overlap == 1.0 else len(prompts))


def test_crowds_bursts_mixes_and_full_caches(builder: Builder) -> None:
    crowd = builder.load({"concurrency": 12, "burstiness": "burst"}, 1, 0, gap_ns=50)
    assert len(crowd.requests) == 24
    assert [r.arrival_ns for r in crowd.requests] == [0] * 12 + [50] * 12
    assert {r.arrival_ns for r in builder.load({"concurrency": 12}, 1, 0).requests} == {None}
    mixed = builder.load({"prompt_tokens": 80, "output_tokens": 40, "lengths": "mixed"}, 1, 0).requests
    assert [(len(r.token_ids), r.max_new_tokens) for r in mixed[:2]] == [(80, 40), (10, 10)]
    full = builder.load({"cache": "full"}, 1, 0).warmup
    assert sum(len(r.token_ids) for r in full) >= REACH.pool
    assert len({r.token_ids for r in full}) == len(full)
    assert len(builder.load({"cache": "fresh"}, 1, 0).warmup) == 1
    doubled = builder.load({"output_tokens": 5}, 1, 0, stretch=2).requests
    assert {r.max_new_tokens for r in doubled} == {10}


# -- space and scope ----------------------------------------------------------------------------------------


def test_a_mix_inside_the_scope_sends_nothing_from_outside(builder: Builder) -> None:
    """A claim about prompts of 84 to 160 tokens says nothing of prompts of 16, which a mix around 128 would send."""
    scoped = replace(builder, least=(84, 12))
    for prompt, output, short in (
        (128, 12, (84, 12)),
        (84, 40, (84, 12)),
        (200, 80, (84, 20)),
        (80, 8, (80, 8)),
    ):
        cell = {"prompt_tokens": prompt, "output_tokens": output, "lengths": "mixed"}
        sent = scoped.load(cell, 1, 0).requests
        assert [(len(r.token_ids), r.max_new_tokens) for r in sent[:2]] == [(prompt, output), short]


def test_the_space_is_cut_to_what_can_be_tried() -> None:
    wide = {"prompt_tokens": [10, 4000], "output_tokens": [24, 900], "concurrency": 4}
    space = {d.name: d for d in declared.space_of(wide, None, REACH).dimensions}
    assert space["prompt_tokens"].high + space["output_tokens"].high <= 512
    assert space["output_tokens"].low == 2  # a time between tokens needs two
    assert {15, 16, 17} <= set(space["prompt_tokens"].boundaries)
    plain = {name: one.plainest for name, one in space.items()}
    assert (plain["prompt_tokens"], plain["concurrency"]) == (10, 1)
    assert declared.inside(
        SCOPE, {d.name: d.plainest for d in declared.space_of(SCOPE, None, REACH).dimensions}
    )
    assert space["cache"].choices == ("fresh", "full")
    assert "unicode" in space["entropy"].choices
    small = {d.name: d for d in declared.space_of(SCOPE, None, Reach(512, 1)).dimensions}
    assert small["cache"].choices == ("fresh",)
    assert small["output_tokens"].low == 1


def test_a_scope_is_cut_around_a_counterexample_at_its_largest() -> None:
    cell = {"prompt_tokens": 16, "output_tokens": 24, "concurrency": 3, "entropy": "code"}
    assert declared.cut(SCOPE, [cell], ["concurrency"]) == {**SCOPE, "concurrency": 2}
    assert declared.cut(SCOPE, [cell], ["prompt_tokens"]) == {**SCOPE, "prompt_tokens": [10, 15]}
    assert declared.cut(SCOPE, [{**cell, "prompt_tokens": 40}], ["prompt_tokens"]) == {
        **SCOPE,
        "prompt_tokens": [10, 39],
    }
    assert declared.cut(SCOPE, [cell], ["entropy"]) is None
    assert declared.cut(SCOPE, [{**cell, "concurrency": 1}], ["concurrency"]) is None
    assert declared.cut(SCOPE, [cell], ["output_tokens"]) is None  # the scope holds one length only


def test_what_is_left_of_a_scope_holds_neither_the_smallest_cell_nor_the_one_it_was_found_at() -> None:
    small = {"prompt_tokens": 16, "output_tokens": 24, "concurrency": 4, "burstiness": "closed"}
    bursts = {**small, "concurrency": 2, "burstiness": "burst"}
    assert declared.cut(SCOPE, [small], ["concurrency"]) == {**SCOPE, "concurrency": 3}
    assert declared.cut(SCOPE, [small, bursts], ["concurrency"]) == {**SCOPE, "concurrency": 1}
    longer = {**small, "prompt_tokens": 44}
    assert declared.cut(SCOPE, [small, longer], ["prompt_tokens"]) == {**SCOPE, "prompt_tokens": [10, 15]}
    far = {**small, "prompt_tokens": 400}  # outside the scope, where nothing has to be cut
    assert declared.cut(SCOPE, [small, far], ["prompt_tokens"]) == {**SCOPE, "prompt_tokens": [10, 15]}


def test_failures_count_before_other_tokens() -> None:
    ok, bad = {"status": "ok", "output_sha256": "a"}, {"status": "error", "output_sha256": "b"}
    other = {"status": "ok", "output_sha256": "c"}
    found = difference([ok, ok, bad, ok, bad], [ok, bad, ok, other, bad])
    assert (found.failed, found.changed) == (1, 1)


# -- relations ----------------------------------------------------------------------------------------------


class FakeEngines:
    """Engines whose tokens are arithmetic, with one fault in the candidate."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def exact(self, role: str) -> str | None:
        return None

    def run(self, role: str, load: Load, mode: str | None) -> Any:
        fault = self.fault if role == "candidate" else ""
        answers, seen = [], set()
        for index, request in enumerate(load.requests):
            salt = {"order": index, "size": len(load.requests), "length": request.max_new_tokens}.get(
                fault, 0
            )
            salt += fault == "memory" and request.token_ids in seen
            seen.add(request.token_ids)
            answers.append(tuple(hash((request.token_ids, salt, n)) for n in range(request.max_new_tokens)))
        tokens = sum(len(answer) for answer in answers)
        seconds = 1 / tokens if fault == "time" else float(tokens)
        return SimpleNamespace(texts=lambda: answers, seconds=seconds)


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("", set()),
        ("order", {"permuted", "repeated", "appended", "split"}),
        ("size", {"repeated", "appended", "split"}),
        ("length", {"longer"}),
        ("memory", {"repeated"}),
        ("time", {"time"}),
    ],
)
def test_every_relation_can_be_broken(builder: Builder, fault: str, wanted: set[str]) -> None:
    engines: Any = FakeEngines(fault)
    found = metamorphic.check(engines, builder, {"prompt_tokens": 40, "entropy": "random"}, 5)
    assert set(metamorphic.broken(found)) == wanted
    assert all(
        found["baseline"][name] == {"compared": found["baseline"][name]["compared"], "broken": 0}
        for name in metamorphic.RELATIONS
    )
    assert min(found["candidate"][name]["compared"] for name in metamorphic.RELATIONS) > 0


# -- journal ------------------------------------------------------------------------------------------------


HEADER = {"schema": "x", "seed": 1}


def loss(cell: Any, blocks: int, seed: int) -> Outcome:
    return Outcome(
        tuple(-0.2 - 0.001 * ((seed + b) % 7) for b in range(blocks)), 0, (0.0, 0.001) * 4, "noted"
    )


def test_a_search_that_was_killed_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    space = declared.space_of(SCOPE, None, REACH)
    budget = Budget(cells=20, confirm=2)
    whole = search(space, loss, budget, 9).report()
    measured: list[int] = []

    def dies(cell: Any, blocks: int, seed: int) -> Outcome:
        if len(measured) in (7, 15):
            measured.append(-1)
            raise KeyboardInterrupt
        measured.append(seed)
        return loss(cell, blocks, seed)

    for number in range(3):
        journal = Journaled(tmp_path / "search", HEADER)
        probe = journal.probe("probe", dies)
        if number < 2:
            with pytest.raises(KeyboardInterrupt):
                search(space, probe, budget, 9)
            with (tmp_path / "search" / JOURNAL).open("ab") as stream:
                stream.write(b'{"kind":"beg')  # a line that was being written
            continue
        assert search(space, probe, budget, 9).report() == whole
    assert (journal.recalled, journal.cut_off) == (14, 2)
    real = [seed for seed in measured if seed >= 0]
    assert len(real) == len(set(real)) == 22


def test_a_folder_of_another_search_or_a_changed_journal_is_refused(tmp_path: Path) -> None:
    Journaled(tmp_path / "a", HEADER).probe("probe", loss)({"n": 1}, 2, 3)
    with pytest.raises(InputError, match="differs in seed"):
        Journaled(tmp_path / "a", {**HEADER, "seed": 2})
    with pytest.raises(InputError, match="holds no search"):
        Journaled(tmp_path, HEADER)
    journal = tmp_path / "a" / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b"-0.2", b"0.2"))
    with pytest.raises(EvidenceError, match="was changed"):
        Journaled(tmp_path / "a", HEADER)


# -- report and commands ------------------------------------------------------------------------------------


def test_the_report_escapes_what_it_shows_and_says_what_was_not_tried(tmp_path: Path) -> None:
    found = search(declared.space_of(SCOPE, None, REACH), loss, Budget(cells=20, confirm=1), 2).report()
    for one in found["confirmed"]:
        one |= {"needed": [], "inside": True, "left_of_scope": None, "why": "<b>|"}
    counts = {"loads": 1, "requests": 2, "rounding": 3}
    report = {
        **found,
        "claim": {"metric": "tpot_ms", "statistic": "p50", "better": "lower", "lossless": True},
        "metamorphic": [],
        "out_of_reach": ["sampling"],
        "counts": counts,
        "minutes": 2.0,
        "seconds": 3.0,
        "root": "ab",
        "recalled": 1,
        "cut_off": 2,
    }
    summary.write(tmp_path, report)
    page, text = (tmp_path / summary.PAGE).read_text(), (tmp_path / summary.MARKDOWN).read_text()
    assert "&lt;b&gt;|" in page and "<b>|" not in page
    assert "<b>\\|" in text
    for words in (
        "corners of the space",
        "nominated cells were not measured afresh",
        "sampling",
        "2 cut off",
    ):
        assert words in page and words in text, words
    assert json.loads((tmp_path / summary.REPORT).read_text())["cells_tried"] == 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--minutes", "0"], "--minutes must be positive"),
        (["--cells", "0"], "--cells must be between"),
        (["--confirm-blocks", "5"], "--confirm-blocks must be between 6"),
        (["--nonce", "xy"], "no nonce"),
    ],
)
def test_bad_options_are_named_before_anything_runs(
    challenge_packet: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    says: str,
) -> None:
    packet = challenge_packet.build(tmp_path)
    assert main(["packet", "challenge", str(packet), "--dir", str(tmp_path / "s"), *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
