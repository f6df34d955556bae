"""Failures: attempts that ended early, faults that were injected, and what abnormal inputs did."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from counterproof_dashboard import data, failures, panels, selection
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import count, plain


def page() -> None:
    """Draw the page."""
    study = selection.one("Failures", "pages/failures.py")
    if study.status == data.OTHER_SCHEMA or not study.compared:
        st.info("This study has no comparison yet, so its failures were not gathered.")
        return
    panels.unusual(study)
    _attempts(study)
    _injected(study)
    _abnormal(study)


def _attempts(study: Study) -> None:
    st.subheader("Attempts that ended early", anchor=False)
    frame = failures.attempts(study)
    if frame.empty:
        st.success("Every attempt was sealed.")
        return
    st.caption("They are kept in the study's folder and counted nowhere.")
    _table(frame, "attempts")


def _injected(study: Study) -> None:
    st.subheader("Faults that were injected", anchor=False)
    frame = failures.injected(study)
    if frame.empty:
        why = failures.not_injected(study)
        st.info(plain(f"Not measured: {why}. Strike small copies of this study with:"))
        st.code(f"counterproof faults {study.name}", language="bash")
        return
    if lost := failures.not_survived(study):
        st.error(plain(f"Not recovered from {count(len(lost), 'fault')}: {', '.join(lost)}"))
    _table(frame, "injected")


def _abnormal(study: Study) -> None:
    st.subheader("Abnormal inputs", anchor=False)
    frame = failures.abnormal(study)
    if frame.empty:
        st.info(
            "No abnormal input was sent: the study was registered without probes, or they are still to come."
        )
        return
    st.caption(
        "Each was sent while another request was being answered; the last three columns say what that did to it."
    )
    _table(frame, "abnormal")


def _table(frame: pd.DataFrame, key: str) -> None:
    st.dataframe(frame, hide_index=True, key=key, placeholder="not recorded")


page()
