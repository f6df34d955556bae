"""Entry point of the Streamlit application: two file pages under one navigation."""

from __future__ import annotations

import streamlit as st

st.set_page_config(page_title="Counterproof", page_icon="⚖️", layout="wide")
st.navigation(
    [
        st.Page("pages/experiments.py", title="Experiments", icon=":material/list_alt:", default=True),
        st.Page("pages/compare.py", title="Compare", icon=":material/balance:", url_path="compare"),
    ],
    position="top",
).run()
