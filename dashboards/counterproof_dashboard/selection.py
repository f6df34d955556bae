"""Which study a page shows: the one that its link names (`?study=a`), or a choice; never another one instead."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from counterproof_dashboard import cache, data, panels
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import plain, visible

EXPERIMENTS = "pages/experiments.py"
# Pages that show one study: path, label, icon.
OF_ONE_STUDY = (
    ("pages/compare.py", "Compare", ":material/balance:"),
    ("pages/stages.py", "Stages and memory", ":material/stacked_bar_chart:"),
    ("pages/configuration.py", "Configuration diff", ":material/difference:"),
    ("pages/decision.py", "Decision and rollback", ":material/gavel:"),
    ("pages/misses.py", "Prefix misses", ":material/troubleshoot:"),
    ("pages/failures.py", "Failures", ":material/report:"),
)


def one(title: str, path: str) -> Study:
    """The study of a page called `title` whose file is `path`. Where there is none to show the page ends here."""
    store = data.store_of()
    names = data.study_names(store)
    asked = list(dict.fromkeys(st.query_params.get_all("study")))
    unknown = [name for name in asked if name not in names]
    if unknown:
        dead_link(title, unknown)
    st.title(title, anchor=False)
    if not names:
        panels.empty_store(store)
        st.stop()
    if len(asked) > 1:
        st.error("This page shows one study, and the link names several. Choose one.")
    _choose(names, asked, path)
    if len(asked) != 1:
        if not asked:
            st.info("Choose a study.")
        st.stop()
    study = cache.study(asked[0])
    links(study.name, path)
    if study.status == data.REFUSED:
        panels.refused(study)
        st.stop()
    return study


def _choose(names: Sequence[str], asked: Sequence[str], path: str) -> None:
    index = names.index(asked[0]) if len(asked) == 1 else None
    # The key follows the link, so that a new link is never overruled by an older choice.
    chosen = st.selectbox(
        "Study",
        names,
        index=index,
        key=f"study-{path}-{asked}",
        placeholder="choose a study",
        format_func=visible,
    )
    if chosen is not None and [chosen] != list(asked):
        st.switch_page(path, query_params={"study": chosen})


def dead_link(title: str, unknown: Sequence[str]) -> None:
    """Never show another study instead: say what is missing and stop."""
    st.title(title, anchor=False)
    for name in unknown:
        st.error(
            f"There is no study **{plain(name)}** in {plain(data.store_of().root)}.",
            icon=":material/link_off:",
        )
    st.markdown(
        "It may have been deleted, or the link was made for another store. Nothing else is shown instead."
    )
    st.page_link(EXPERIMENTS, label="See all studies", icon=":material/list_alt:")
    st.stop()


def links(name: str, here: str) -> None:
    """Links to the other pages of the same study."""
    with st.container(horizontal=True):
        for path, label, icon in OF_ONE_STUDY:
            if path != here:
                st.page_link(path, label=label, icon=icon, query_params={"study": name})
