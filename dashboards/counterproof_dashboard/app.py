"""Entry point of the Streamlit application: file pages under one navigation."""

from __future__ import annotations

import streamlit as st

from counterproof_dashboard.selection import OF_ONE_STUDY

st.set_page_config(page_title="Counterproof", page_icon="⚖️", layout="wide")
st.navigation(
    [
        st.Page("pages/experiments.py", title="Experiments", icon=":material/list_alt:", default=True),
        st.Page("pages/compare.py", title="Compare", icon=":material/balance:", url_path="compare"),
        *(
            st.Page(path, title=label, icon=icon, url_path=path.split("/")[-1].removesuffix(".py"))
            for path, label, icon in OF_ONE_STUDY[1:]
        ),
        st.Page("pages/replication.py", title="Replication", icon=":material/group:", url_path="replication"),
    ],
    position="top",
).run()
