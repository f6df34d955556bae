"""Experiments: every study of the store with its verdict, decision and age."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from counterproof_dashboard import cache, data, overview, panels
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import count, plain

# Wide enough for `kv_cache-20260102-030405` and for `0.306× (0.277× to 0.338×)`: the table would cut them.
_STUDY_PIXELS = 190
_RATIO_PIXELS = 180


def page() -> None:
    """Draw the page."""
    st.title("Experiments", anchor=False)
    store = data.store_of()
    names = data.study_names(store)
    if not names:
        panels.empty_store(store)
        return
    studies = overview.newest_first([cache.study(name) for name in names])
    st.caption(overview.summary(studies))
    shown = _filtered(studies)
    if not shown:
        st.info(f"None of the {count(len(studies), 'study', 'studies')} fits the filter.")
        return
    _table(shown)
    _explain(shown)


def _filtered(studies: list[Study]) -> list[Study]:
    words, status = st.columns([2, 3], vertical_alignment="bottom")
    wanted = words.text_input("Filter", placeholder="study, experiment, verdict or decision", key="filter")
    present = [name for name in data.STATUSES if any(study.status == name for study in studies)]
    states = status.pills("Status", present, selection_mode="multi", key="status")
    return [s for s in studies if (not states or s.status in states) and overview.fits(s, wanted)]


def _table(studies: list[Study]) -> None:
    frame = overview.table(studies, datetime.now(UTC))
    chosen = st.dataframe(
        frame,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        key="studies",
        placeholder="not recorded",
        column_config={
            "study": st.column_config.TextColumn("Study", width=_STUDY_PIXELS),
            "open": st.column_config.LinkColumn("Compare", display_text="open", width="small"),
            "experiment": st.column_config.TextColumn("Experiment"),
            "status": st.column_config.TextColumn("Status", help="What the study's folder says"),
            "evidence": st.column_config.TextColumn(
                "Evidence", help="Invalid evidence speaks for neither side"
            ),
            "metric": st.column_config.TextColumn("Primary metric"),
            "effect": st.column_config.TextColumn(
                "Ratio (95 % interval)", width=_RATIO_PIXELS, help="Candidate ÷ baseline; 1× = no change"
            ),
            "verdict": st.column_config.TextColumn("Verdict"),
            "decision": st.column_config.TextColumn("Decision"),
            "age": st.column_config.TextColumn("Age"),
            "kind": st.column_config.TextColumn(
                "Kind",
                help="Only a registered study can ever make a claim. Extended: reserve blocks were called up, as registered",
            ),
        },
    )
    picked = [studies[row].name for row in chosen.selection.rows if row < len(studies)]
    label = (
        f"Compare {count(len(picked), 'study', 'studies')}" if picked else "Select rows to compare studies"
    )
    if st.button(label, type="primary", disabled=not picked, icon=":material/balance:"):
        st.switch_page("pages/compare.py", query_params={"study": picked})


def _explain(studies: list[Study]) -> None:
    unusual = [study for study in studies if study.status != data.COMPLETE]
    if not unusual:
        return
    with st.expander(f"Why {count(len(unusual), 'study is', 'studies are')} not complete", expanded=False):
        for study in unusual:
            st.markdown(f"**{plain(study.name)}**: {plain(overview.why(study))}")


page()
