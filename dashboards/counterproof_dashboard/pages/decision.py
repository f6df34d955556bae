"""Decision and rollback: how a study was decided, what to watch, how to go back, and what serves."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from counterproof_dashboard import data, deployments, findings, guardrails, panels, selection
from counterproof_dashboard.data import Study
from counterproof_dashboard.deployments import Ledger
from counterproof_dashboard.text import day, plain


def page() -> None:
    """Draw the page."""
    study = selection.one("Decision and rollback", "pages/decision.py")
    if not study.decision:
        panels.unusual(study)
        st.info("No decision is recorded yet.")
    else:
        panels.opening(study)
        _decided(study)
        _back(study)
    _deployed(study)


def _decided(study: Study) -> None:
    st.subheader("How it was decided", anchor=False)
    st.caption("The first rule that matches decides.")
    _table(deployments.trace(study), "The rule's trace is not recorded.")
    st.subheader("What promotion asks for", anchor=False)
    _table(deployments.conditions(study), "The conditions are not recorded.")
    st.subheader("Did anything get worse?", anchor=False)
    _table(guardrails.rows(study), "No guardrail is recorded.")


def _back(study: Study) -> None:
    st.subheader("How to stop and go back", anchor=False)
    answers = findings.answers(study)
    if answers.back_to:
        st.markdown(f"Go back to {plain(answers.back_to)}.")
    if lines := deployments.commands(study):
        st.code("\n".join(lines), language=None)
    _table(deployments.triggers(study), "No trigger is recorded.")
    if answers.reversal:
        st.markdown(f"**What would reverse it.** {plain(answers.reversal)}")
    if answers.expires:
        st.caption(f"The evidence expires on {plain(day(answers.expires))}.")


def _deployed(study: Study) -> None:
    now = datetime.now(UTC)
    found = deployments.ledger(data.store_of())
    if found.problem:
        st.error(f"**The ledger of deployments is refused:** {plain(found.problem)}")
        return
    st.subheader("Rollback drills", anchor=False)
    _table(
        deployments.drill_rows(found, study.name, now),
        "No rollback drill is recorded: counterproof drill STUDY makes one.",
    )
    st.subheader("What serves", anchor=False)
    _table(deployments.serving(found, now, study.name), "This study was never promoted.")
    _history(found, study)


def _history(found: Ledger, study: Study) -> None:
    rows = deployments.history(found, study.name)
    if rows:
        with st.expander("Every entry of the ledger about this study"):
            _table(rows, "")


def _table(rows: list[dict[str, str]], otherwise: str) -> None:
    if rows:
        escaped = [{key: plain(value) for key, value in row.items()} for row in rows]
        st.table(pd.DataFrame(escaped), border="horizontal", hide_index=True)
    else:
        st.info(otherwise)


page()
