"""The Failures page: what was recorded is shown, what was not is said, and nothing of it is code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from counterproof_dashboard.commands import APP

FAULT = {
    "fault": "kill_run",
    "what": "<script>alert(1)</script>",
    "outcome": "recovered",
    "detected_after_s": 0.1,
    "recovered_after_s": 2.5,
    "requests_lost": 3,
    "tokens_recomputed": None,
    "outputs_identical": True,
    "detail": "repeated",
}
ROW = {
    "outcome": "refused",
    "error_type": "empty_prompt",
    "companion_identical": True,
    "companion_gap_ms": 1.5,
    "undisturbed_gap_ms": 1.0,
}


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], AppTest]:
    """`show(folder)` opens the page of one study."""

    def run(folder: Path) -> AppTest:
        monkeypatch.setenv("COUNTERPROOF_STORE", str(folder.parents[1]))
        app = AppTest.from_file(str(APP), default_timeout=60)
        app.run()
        app.switch_page("pages/failures.py")
        app.query_params["study"] = folder.name
        app.run()
        assert not app.exception, [e.value for e in app.exception]
        return app

    return run


def test_faults_attempts_and_abnormal_inputs_are_shown(
    judged: Callable[..., Path], rewrite: Callable[..., None], show: Callable[[Path], AppTest], tmp_path: Path
) -> None:
    folder = judged(tmp_path / "store", new_tokens=8, killed=((1, "candidate"),))

    def add(comparison: dict[str, Any]) -> None:
        comparison["failures"] = [FAULT, {**FAULT, "fault": "ruin", "outcome": "not recovered"}]
        arms = {"baseline": ROW, "candidate": None}
        comparison["abnormal"] = [{"case": "empty", "expected": "refused", "arms": arms}]

    rewrite(folder, "comparison", add)
    app = show(folder)
    lost, faults, abnormal = (frame.value for frame in app.dataframe)
    assert (lost["run"][0], lost["ended"][0]) == ("01-candidate-1", "lost")
    assert faults["what happened"][0] == "<script>alert(1)</script>"  # a cell of text, not markup
    assert faults["requests lost"][0] == 3
    assert faults["tokens recomputed"].isna().all()
    assert [e.value.replace("\\", "") for e in app.error] == ["Not recovered from 1 fault: ruin"]
    assert abnormal["outcome"].tolist()[0] == "refused"
    assert abnormal["outcome"].isna().tolist() == [False, True]
    assert abnormal["other request"][0] == "same answer"


def test_a_study_without_any_says_so_and_how_to_have_some(
    judged: Callable[..., Path], show: Callable[[Path], AppTest], tmp_path: Path
) -> None:
    folder = judged(tmp_path / "store", new_tokens=8)
    app = show(folder)
    assert not app.dataframe
    assert app.success[0].value == "Every attempt was sealed."
    assert f"counterproof faults {folder.name}" in [code.value for code in app.code]
    assert "No abnormal input was sent" in app.info[1].value
