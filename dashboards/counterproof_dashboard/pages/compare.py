"""Compare: one study, or several side by side, named in the link (`?study=a&study=b`)."""

from __future__ import annotations

import streamlit as st

from counterproof_dashboard import cache, curve_panels, data, marks, panels, selection
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import count, plain


def page() -> None:
    """Draw the page."""
    store = data.store_of()
    names = data.study_names(store)
    asked = list(dict.fromkeys(st.query_params.get_all("study")))
    if not names and not asked:
        st.title("Compare", anchor=False)
        panels.empty_store(store)
        return
    unknown = [name for name in asked if name not in names]
    if unknown:
        selection.dead_link("Compare", unknown)
    _choose(names, asked)
    if not asked:
        st.title("Compare", anchor=False)
        st.info("Choose one study, or several to see them side by side.")
        return
    studies = [cache.study(name) for name in asked]
    believed = [study for study in studies if study.status != data.REFUSED]
    if not believed:
        st.title("Compare", anchor=False)
    for study in studies:
        if study.status == data.REFUSED:
            panels.refused(study)
    if not believed:
        st.stop()
    if len(believed) == 1:
        _one(believed[0])
    else:
        _several(believed)


def _choose(names: list[str], asked: list[str]) -> None:
    with st.expander("Choose studies", expanded=not asked, icon=":material/checklist:"):
        # The key follows the link, so that a new link is never overruled by an older choice.
        chosen = st.multiselect(
            "Studies",
            names,
            default=asked,
            key=f"chosen-{asked}",
            placeholder="one or more",
            label_visibility="collapsed",
        )
        if st.button("Show", disabled=not chosen or chosen == asked):
            st.switch_page("pages/compare.py", query_params={"study": chosen})


def _one(study: Study) -> None:
    st.title(plain(study.name), anchor=False)
    selection.links(study.name, "pages/compare.py")
    panels.opening(study)
    _details(study)


def _several(studies: list[Study]) -> None:
    st.title(f"{count(len(studies), 'study', 'studies')} side by side", anchor=False)
    for study in studies:
        st.subheader(plain(f"{study.name}{marks.label(study)}"), anchor=False)
        panels.opening(study)
    compared = [study for study in studies if study.compared]
    if compared:
        panels.forest(compared)
        st.subheader("What differs between the studies", anchor=False)
        curve_panels.between(compared)
        curve_panels.distributions(compared)
    st.divider()
    names = {study.name: study for study in studies}
    chosen = st.selectbox("Details of", list(names), key="details")
    if chosen is not None:
        _details(names[chosen], alone=False)


def _details(study: Study, *, alone: bool = True) -> None:
    if not study.compared:
        if study.status != data.OTHER_SCHEMA:
            panels.running(study)
        st.subheader("Configuration", anchor=False)
        curve_panels.configuration(study)
        return
    if alone:
        panels.forest([study])
    panels.answers(study)
    panels.blocks(study)
    if alone:
        st.subheader("Latency", anchor=False)
        curve_panels.distributions([study])
    st.subheader("Stages", anchor=False)
    panels.stages(study)
    st.subheader("Memory", anchor=False)
    curve_panels.memory(study)
    st.subheader("Cost", anchor=False)
    panels.cost(study)
    st.subheader("Configuration", anchor=False)
    curve_panels.configuration(study)
    panels.tables(study)
    panels.metrics(study)


page()
