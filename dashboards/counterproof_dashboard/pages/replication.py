"""Replication: what a reviewer who took no part found, in which order it happened, and whether the ledgers hold."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from counterproof_dashboard import cache, data, panels, replication, replication_charts
from counterproof_dashboard.replication import Outcome, Review
from counterproof_dashboard.text import NOT_RECORDED, count, day, interval, percent, plain, ratio, visible

GROWS = "REPLICATED"
AGAINST = ("NOT_REPLICATED", "REPLICATED_SMALLER", "INVALID")


def page() -> None:
    """Draw the page."""
    st.title("Replication", anchor=False)
    folder = replication.folder_of(data.store_of())
    names = replication.review_names(folder)
    asked = st.query_params.get("review")
    if asked is not None and asked not in names:
        st.error(f"There is no review **{plain(asked)}** in {plain(folder)}. Nothing else is shown instead.")
        return
    if not names:
        st.info(
            f"There is no review in {plain(folder)}. As long as nobody who took no part has replayed a claim, it is not "
            "replicated."
        )
        return
    chosen = st.selectbox(
        "Review", names, index=names.index(asked) if asked else 0, key=f"review-{asked}", format_func=visible
    )
    found = cache.review(str(folder / str(chosen)))
    if found.problem:
        st.error(f"**{plain(found.name)} is refused:** {plain(found.problem)}")
        return
    _verdict(found)
    _frozen(found)
    _timeline(found)
    _ledgers(found)


def _verdict(found: Review) -> None:
    if not found.opened:
        st.info(
            "The results are under seal. This page holds neither the author's numbers nor which arm is which, and shows "
            "them only after the reveal."
        )
        return
    outcome = found.outcome
    if outcome is None:
        st.warning(plain(found.note))
        return
    box = st.success if outcome.verdict == GROWS else st.error if outcome.verdict in AGAINST else st.info
    box(f"**{plain(outcome.verdict)}**: {plain(outcome.reason)}")
    for fault in outcome.faults:
        st.error(plain(fault))
    _intervals(outcome)
    for sentence in filter(None, (outcome.stall, outcome.outputs, outcome.challenge)):
        st.caption(plain(f"{sentence[:1].upper()}{sentence[1:]}."))


def _intervals(outcome: Outcome) -> None:
    frame = replication_charts.gains(outcome)
    if frame.empty:
        st.info("No gain was measured on either side.")
        return
    words = [
        f"{row.label}: {ratio(_known(row.ratio))} ({interval(_known(row.low), _known(row.high))})"
        for row in frame.itertuples()
    ]
    least = None if outcome.sesoi is None else 1 + outcome.sesoi
    panels.draw(
        replication_charts.intervals(
            frame,
            title="What the author sealed, and what the replication found",
            subtitle=[*words, f"dotted: smallest gain of interest, {percent(outcome.sesoi)}"],
            axis="gain (log scale, 1× = none, more is better)",
            line=least,
            mode=panels.mode(),
        )
    )
    other = replication_charts.difference(outcome)
    if other.empty:
        return
    band = None if outcome.band is None else (1 / (1 + outcome.band), 1 + outcome.band)
    row = other.iloc[0]
    panels.draw(
        replication_charts.intervals(
            other,
            title="Do they agree?",
            subtitle=[
                f"{ratio(row['ratio'])} ({interval(_known(row['low']), _known(row['high']))})",
                f"grey: equivalent, ±{percent(outcome.band)}, registered before; no noise widens it",
            ],
            axis="gain of the replication ÷ gain of the author (log scale)",
            band=band,
            mode=panels.mode(),
        )
    )
    st.caption("Intervals are 90 %: each end is a one-sided bound of 95 %, as two one-sided tests need it.")


def _known(value: object) -> float | None:
    return float(value) if isinstance(value, float) and value == value else None


def _frozen(found: Review) -> None:
    if not found.pairs:
        return
    with st.expander(
        "What was frozen before the seal was opened, under opaque names", expanded=not found.opened
    ):
        rows = [
            {
                "Arm": visible(pair.numerator),
                "over": visible(pair.denominator),
                "Ratio": ratio(pair.ratio),
                "95 % interval": interval(pair.low, pair.high),
                "Blocks": NOT_RECORDED if pair.blocks is None else str(pair.blocks),
            }
            for pair in found.pairs
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True)


def _timeline(found: Review) -> None:
    st.subheader("What happened, in order", anchor=False)
    if not found.steps:
        st.info("No step was taken yet.")
        return
    rows = []
    for number, step in enumerate(found.steps, 1):
        row = {
            "": str(number),
            "Step": step.kind.upper(),
            "By": step.role,
            "About": visible(step.about),
            "Entry": f"{step.role} {step.seq}",
            "Envelope": step.sha256[:16],
        }
        if found.opened:
            row["Clock"] = day(step.time_utc)
        rows.append(row)
    st.dataframe(pd.DataFrame(rows), hide_index=True, height="content")
    st.caption(
        "Order follows from what each party had seen of the others' ledgers, not from clocks."
        + (
            ""
            if found.opened
            else " Clock times are not shown before the reveal: they would tell who ran when."
        )
    )


def _ledgers(found: Review) -> None:
    st.subheader("Do the ledgers hold?", anchor=False)
    entries = len(found.steps) + found.witnessed
    st.success(
        f"Every signature, role and link of {count(entries, 'entry', 'entries')} was checked; "
        f"{count(found.witnessed, 'head')} that other parties had seen {'is' if found.witnessed == 1 else 'are'} still in "
        f"place."
    )
    st.markdown("The registry was signed by this steward. Compare the id with what the steward told you:")
    st.code(found.steward, language=None, wrap_lines=True)
    rows = [{"Name": visible(name), "Role": role, "Key": key[:16]} for name, role, key in found.people]
    st.dataframe(pd.DataFrame(rows), hide_index=True)


page()
