"""The page "Decision and rollback": the rule's trace, guardrails, triggers, drills and what serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from counterproof.record import canonical
from counterproof.record.deployment_ledger import FILE_NAME, DeploymentLedger
from counterproof_dashboard.commands import APP

GAIN, UNFINISHED = "20260102-030405-kv_cache", "20260106-000000-lost"
DEADLINE = 60
HOSTILE = "<script>alert(1)</script> ![x](y)"


@pytest.fixture
def open_decision(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """`open_decision(store, study)` runs the page without errors and returns it."""

    def run(store: Path, study: str) -> AppTest:
        monkeypatch.setenv("COUNTERPROOF_STORE", str(store))
        app = AppTest.from_file(str(APP), default_timeout=DEADLINE)
        app.run()
        app.switch_page("pages/decision.py")
        app.query_params["study"] = study
        app.run()
        assert not app.exception, [e.value for e in app.exception]
        return app

    return run


def tables(app: AppTest) -> list[list[dict[str, str]]]:
    """Every table of the page as rows without Markdown's backslashes."""
    return [
        [{k: str(v).replace("\\", "") for k, v in row.items()} for row in table.value.to_dict("records")]
        for table in app.table
    ]


def drilled(root: Path, **fields: Any) -> dict[str, Any]:
    usual = {
        "study": GAIN,
        "passed": True,
        "reason": "",
        "seconds": 1.25,
        "drained_seconds": 1.5,
        "requests": 40,
        "failed": 0,
        "latency": "equivalent to 5 %",
    }
    return DeploymentLedger(root).append("drilled", **{**usual, **fields})


def promoted(root: Path) -> dict[str, Any]:
    configs = {"config": {"kv_cache.enabled": True}, "baseline_config": {"kv_cache.enabled": False}}
    return DeploymentLedger(root).append(
        "promoted",
        scope="chat",
        study=GAIN,
        box={"prompt_tokens": [16, 48], "hardware": {"cpu_model": "x"}},
        config_sha256=canonical.sha256_json(configs["config"]),
        baseline_sha256=canonical.sha256_json(configs["baseline_config"]),
        evidence_expires_utc="2026-02-01T00:00:00Z",
        ends_utc=None,
        checked_utc="2026-01-05T00:00:00Z",
        **configs,
    )


def test_the_page_shows_how_it_was_decided_and_what_to_watch(
    open_decision: Callable[..., AppTest], gallery: Path
) -> None:
    app = open_decision(gallery, GAIN)
    trace, conditions, guardrails, triggers = tables(app)[:4]
    assert [row["Rule"][0] for row in trace] == ["1", "2", "3", "4", "5", "6"]
    (decided,) = [row for row in trace if "decided" in row["Decision"]]
    assert decided["Rule"] == "6 hold"
    met = {row["Condition"]: row["Met"] for row in conditions}
    assert (met["replicated"], met["all blocks done"], met["rollback drill fresh"]) == ("✗", "✓", "✗")
    assert len(guardrails) == len(triggers) == 6
    assert all(row["Then"] and row["Over"] for row in triggers)
    code = "\n".join(element.value for element in app.code)
    assert "counterproof rollback kv_cache" in code
    assert f"counterproof drill {GAIN}" in code
    said = "\n".join(str(e.value) for e in app.info)
    assert "No rollback drill is recorded" in said
    assert "never promoted" in said


def test_drills_and_deployments_come_from_the_ledger(
    open_decision: Callable[..., AppTest], own: Callable[..., Path]
) -> None:
    root = own(GAIN)
    drilled(root, passed=False, reason=HOSTILE)
    drilled(root)
    event = promoted(root)
    app = open_decision(root, GAIN)
    drills, serving, history = tables(app)[4:7]
    assert [row["Result"].split("\u00a0")[1] for row in drills] == ["passed", "failed"]  # newest first
    assert (drills[0]["Back after"], drills[0]["Requests"]) == ("1.25 s", "40, 0 failed")
    assert "<script>" not in app.table[4].value.to_dict("records")[1]["Why"]
    assert [(row["Scope"], row[""], row["Study"]) for row in serving] == [
        ("chat", "champion", f"{GAIN}/candidate"),
        ("chat", "previous", f"{GAIN}/baseline"),
    ]
    assert serving[0]["Evidence until"] == "2026-02-01 (expired)"
    assert serving[0]["Where it holds"] == "prompt_tokens [16, 48]"
    assert [row["What"] for row in history] == ["promoted", "drilled", "drilled"]
    assert history[0]["Entry"] == str(event["seq"])


@pytest.mark.parametrize("harm", ["edited", "cut off"])
def test_a_ledger_that_cannot_be_believed_shows_no_row(
    open_decision: Callable[..., AppTest], own: Callable[..., Path], harm: str
) -> None:
    root = own(GAIN)
    drilled(root)
    promoted(root)
    path = root / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        lines[0] if harm == "cut off" else b"".join(lines).replace(b'"seconds":1.25', b'"seconds":0.25')
    )
    app = open_decision(root, GAIN)
    assert "The ledger of deployments is refused" in app.error[-1].value
    assert len(app.table) == 4  # the decision's own


def test_a_study_without_a_decision_says_so(open_decision: Callable[..., AppTest], gallery: Path) -> None:
    app = open_decision(gallery, UNFINISHED)
    assert any("No decision is recorded yet" in e.value for e in app.info)
    assert not app.table
