"""Configuration diff: what differs between two arms of a study, in what was asked for, what ran, and where."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from counterproof_dashboard import curve_panels, data, panels, selection, theme, three_diffs
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import count, plain, visible
from counterproof_dashboard.three_diffs import Diff

HEADINGS = {
    three_diffs.CONFIGURATION: "Configuration: what was asked for",
    three_diffs.EFFECTIVE: "Effective: what the engine says it ran",
    three_diffs.ENVIRONMENT: "Environment: where it ran",
}


def page() -> None:
    """Draw the page."""
    study = selection.one("Configuration diff", "pages/configuration.py")
    panels.unusual(study)
    arms = [arm for arm in theme.ARM_ORDER[1:] if arm in (study.plan.get("arms") or {})]
    if study.status == data.OTHER_SCHEMA or not arms:
        st.info("The arms' configurations are not recorded in a form that this version reads.")
        return
    arm, block = _choices(study, arms)
    runs = {run.arm: run for run in study.sealed() if run.block == block}
    diffs = three_diffs.three(study, arm, runs.get("baseline"), runs.get(arm))
    everything = st.toggle("Show keys that are the same, too", key="all-keys")
    for diff in diffs:
        _diff(diff, arm, everything)
    _counters(study, arm)


def _choices(study: Study, arms: list[str]) -> tuple[str, int | None]:
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    arm = left.segmented_control("Baseline against", arms, default=arms[0], required=True, key="diff-arm")
    blocks = sorted({run.block for run in study.sealed() if run.block is not None})
    block = right.selectbox("Block", blocks, key="diff-block") if blocks else None
    return str(arm), block


def _diff(diff: Diff, arm: str, everything: bool) -> None:
    st.subheader(HEADINGS[diff.kind], anchor=False)
    box = {True: st.success, False: st.error, None: st.info}[diff.holds]
    box(f"**{plain(diff.verdict)}**" if diff.holds is not None else plain(diff.verdict))
    leaves = diff.leaves if everything else diff.differing
    if leaves:
        rows = [
            {
                "Key": visible(leaf.path),
                "Baseline": leaf.baseline,
                arm.capitalize(): leaf.other,
                "": leaf.standing,
            }
            for leaf in leaves
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True)
    same = len(diff.leaves) - len(diff.differing)
    parts = [] if everything or not diff.leaves else [f"{count(same, 'key is', 'keys are')} the same"]
    still = sorted(set(diff.excepted) - {leaf.path for leaf in diff.differing})
    if still:
        parts.append(f"declared to follow, but the same here: {', '.join(still)}")
    if parts:
        st.caption(plain("; ".join(parts) + "."))


def _counters(study: Study, arm: str) -> None:
    if arm == "candidate" and study.compared:
        curve_panels.work_done(study)


page()
