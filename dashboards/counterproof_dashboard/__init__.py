"""counterproof_dashboard: the Streamlit comparison dashboard, a reader of sealed records."""
