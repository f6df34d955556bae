"""Stages and memory: where a study's time, memory and cost went, and how near the machine's roofs its arms came."""

from __future__ import annotations

import streamlit as st

from counterproof_dashboard import curve_panels, data, panels, selection, stage_panels


def page() -> None:
    """Draw the page."""
    study = selection.one("Stages and memory", "pages/stages.py")
    st.caption(panels.counts(study))
    if not study.compared:
        if study.status != data.OTHER_SCHEMA:
            panels.running(study)
        st.info(
            "Stages, memory and cost of this study are not recorded: it was not compared by this version."
        )
        return
    panels.unusual(study)
    st.subheader("Where did the time go?", anchor=False)
    panels.stages(study)
    stage_panels.per_block(study)
    st.subheader("How near is the machine's limit?", anchor=False)
    stage_panels.against_roofs(study)
    st.subheader("Memory over time", anchor=False)
    stage_panels.memory_detail(study)
    st.markdown("**All runs together**")
    curve_panels.memory(study)
    st.subheader("Where did the cost go?", anchor=False)
    panels.cost(study)


page()
