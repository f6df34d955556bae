"""A packet forged as a whole, manifest included, whose parts do not fit together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from counterproof.measure.interval import log_ratios
from counterproof_review import commands
from counterproof_review.packet import judgement, layout
from counterproof_review.packet.build import Built
from counterproof_review.packet.verify import Verification

ESCAPE = "\x1b[2J\u202e\x9b1m\nVERDICT"


def arm_path(members: Any, arm: str) -> str:
    return layout.arm_path(json.loads(members.files[layout.RESULTS])["arms"][arm])


def set_engine(members: Any, arm: str, **values: Any) -> None:
    change = {key.replace("__", "."): value for key, value in values.items()}
    members.edit(arm_path(members, arm), lambda document: document["engine"].update(change))


# -- one variable -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "change"),
    [
        ("candidate", {"scheduler__max_running": 7}),
        ("candidate", {"kv_cache__enabled": False}),
        ("again", {"scheduler__max_running": 7}),
        ("slowed", {"inject__step_delay_us": 0}),
        ("slowed", {"inject__step_delay_us": 1}),
        ("slowed", {"scheduler__max_running": 7}),
        ("baseline", {"inject__step_delay_us": 500}),
    ],
)
def test_arms_that_differ_in_more_less_or_something_else(
    members: Any, arm: str, change: dict[str, Any]
) -> None:
    set_engine(members, arm, **change)
    assert members.refusal().code == "E_ARMS"


def test_an_arm_map_that_calls_the_baseline_the_candidate(members: Any) -> None:
    def swap(document: dict[str, Any]) -> None:
        arms, values = document["arms"], document["per_block"]
        arms["baseline"], arms["candidate"] = arms["candidate"], arms["baseline"]
        document["log_ratios"] = {
            arm: log_ratios(values[name], values[arms["baseline"]])
            for arm, name in arms.items()
            if arm != "baseline"
        }

    members.edit(layout.RESULTS, swap)
    assert members.refusal().code == "E_ARMS"


@pytest.mark.parametrize(
    "factor",
    [
        None,
        {"path": "engine.kv_cache.enabled"},
        {"path": "engine.scheduler.max_running", "baseline": 16, "candidate": 7},
        {"path": "engine.kv_cache.enabled", "baseline": True, "candidate": False},
        {"path": "engine.kv_cache.enabled", "baseline": 0, "candidate": 1},
        {"path": "workload.requests", "baseline": 4, "candidate": 8},
    ],
)
def test_a_factor_that_is_not_what_the_arms_differ_in(members: Any, factor: Any) -> None:
    members.edit(layout.RESULTS, lambda document: document.update(factor=factor))
    assert members.refusal().code == "E_ARMS"


def test_a_bundle_must_differ_as_a_whole(members: Any, verify_file: Callable[..., Verification]) -> None:
    bundle = ["engine.kv_cache.enabled", "engine.scheduler.max_running"]
    members.edit(layout.RESULTS, lambda document: document["factor"].update(bundle=bundle))
    assert members.refusal().code == "E_ARMS"
    set_engine(members, "candidate", scheduler__max_running=7)
    assert verify_file(members.pack()).checks[-1].status == "passed"


# -- documents --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "change", "code"),
    [
        (layout.RESULTS, lambda d: d["primary"].update(better="higher"), "E_STUDY"),
        (layout.PREREG, lambda d: d["primary"].update(metric="e2e_ms"), "E_STUDY"),
        (layout.PREREG, lambda d: d["primary"].update(statistic="mean"), "E_STUDY"),
        (layout.NOISE, lambda d: d.update(metric="e2e_ms"), "E_STUDY"),
        (layout.PREREG, lambda d: d.update(consistency_band=0.5), "E_SCHEMA"),
        (layout.PREREG, lambda d: d.update(min_blocks=1), "E_SCHEMA"),
        (layout.SCOPE, lambda d: d.update(model="sha256:" + "0" * 64), "E_STUDY"),
        (layout.SCOPE, lambda d: d.update(dtype="int3"), "E_STUDY"),
        (layout.SCOPE, lambda d: d.update(prompt_tokens=[1, 100_000]), "E_STUDY"),
        (layout.SCOPE, lambda d: d.update(output_tokens=[6]), "E_STUDY"),
        (layout.SCOPE, lambda d: d.update(concurrency=64), "E_STUDY"),
        (layout.RUN_LOCK, lambda d: d["workload"].update(concurrency=64), "E_STUDY"),
        (layout.RUN_LOCK, lambda d: d.update(target="os:system"), "E_SCHEMA"),
        (layout.RUN_LOCK, lambda d: d.update(target="../../x"), "E_SCHEMA"),
        (
            layout.MODELS_LOCK,
            lambda d: d["models"].append(
                {**d["models"][0], "sha256": d["models"][0]["sha256"][:16] + "1" * 48}
            ),
            "E_ARMS",
        ),
    ],
)
def test_documents_that_contradict_each_other(
    members: Any, path: str, change: Callable[[dict[str, Any]], Any], code: str
) -> None:
    members.edit(path, change)
    assert members.refusal().code == code


def test_ratios_of_a_metric_without_rows_follow_from_the_summaries_too(members: Any) -> None:
    for path in (layout.PREREG, layout.RESULTS):
        members.edit(path, lambda d: d["primary"].update(metric="startup_ms", statistic="total"))
    members.edit(layout.NOISE, lambda d: d.update(metric="startup_ms", statistic="total"))
    members.edit(
        layout.RESULTS, lambda d: d["log_ratios"].update(candidate=[-1.0] * len(d["log_ratios"]["again"]))
    )
    assert members.refusal().code == "E_ROWS"


def test_outputs_are_those_of_the_rows(members: Any) -> None:
    members.edit(layout.RESULTS, lambda d: d["runs"][0]["outputs_sha256"].__setitem__(0, "0" * 64))
    error = members.refusal()
    assert (error.code, error.path) == ("E_ROWS", layout.RESULTS)


# -- what the reader's screen is told ---------------------------------------------------------------------


def test_texts_of_a_packet_cannot_steer_the_terminal(
    members: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    members.edit(layout.PREREG, lambda d: d.update({ESCAPE: 1}))
    path = members.pack()
    for argv in (["verify", str(path)], ["show", str(path), layout.PREREG]):
        assert _run(argv) == 0
        shown = capsys.readouterr()
        assert "2J" in shown.out
        assert all(c.isprintable() or c == "\n" for c in shown.out + shown.err)
        assert not any(line.startswith("VERDICT") for line in shown.out.splitlines())


def test_a_critical_name_is_told_escaped(members: Any) -> None:
    members.edit(layout.PACKET, lambda d: d["critical"].append(ESCAPE))
    error = members.refusal()
    assert error.code == "E_SCHEMA_NEWER"
    assert str(error).isprintable()


def _run(argv: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    args = parser.parse_args(["packet", *argv])
    code: int = args.func(args)
    return code


# -- the answer -------------------------------------------------------------------------------------------


def test_evidence_that_was_never_judged_is_no_evidence(built: Built, members: Any) -> None:
    results = json.loads(members.files[layout.RESULTS])
    names = results["arms"]
    base = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02]
    again = [10.01, 10.09, 9.91, 10.04, 9.96, 10.01]
    values = {
        names["baseline"]: base,
        names["again"]: again,
        names["slowed"]: [v + 5 for v in base],
        names["candidate"]: [v / 2 for v in again],
    }
    results["log_ratios"]["candidate"] = log_ratios(values[names["candidate"]], base)
    expected = {True: "CONSISTENT", False: "INCONCLUSIVE", None: "INCONCLUSIVE"}
    for valid, verdict in expected.items():
        results["evidence_valid"] = valid
        answer, _ = judgement.judge(results, values, 0.05, same_hardware=True)
        assert answer.verdict == verdict, (valid, answer)
