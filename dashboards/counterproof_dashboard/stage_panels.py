"""The parts of the page Stages and memory."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from counterproof_dashboard import cache, panels, roofline, samples, stage_charts, stage_samples, theme
from counterproof_dashboard.data import Run, Study
from counterproof_dashboard.text import count, plain

_MIB = float(2**20)
# Column, source, unit's divisor, unit, title, column of the total.
_LINES = (
    ("rss_bytes", "sampler", _MIB, "MiB", "Resident memory", ""),
    ("gpu_allocated_bytes", "sampler", _MIB, "MiB", "GPU memory allocated", ""),
    ("gpu_reserved_bytes", "sampler", _MIB, "MiB", "GPU memory reserved", ""),
    ("kv_blocks_used", "engine", 1.0, "blocks", "KV blocks in use", "kv_blocks_total"),
)


def per_block(study: Study) -> None:
    """Stage times of every run, block by block."""
    frame, absent = cache.stages(study.name)
    if frame.empty:
        st.info("Stage times are not recorded in any run.")
        return
    present = [arm for arm in theme.ARM_ORDER if arm in set(frame["arm"])]
    usual = [arm for arm in ("baseline", "candidate") if arm in present] or present
    arms = st.pills("Arms", present, selection_mode="multi", default=usual, key="stage-arms")
    drawn = frame[frame["arm"].isin(arms)]
    if drawn.empty:
        st.info("Choose an arm.")
        return
    subtitle = [panels.counts(study), "mean wall time per successful request, by stage"]
    if absent:
        subtitle.append(f"not recorded in {count(len(absent), 'run')}: {', '.join(absent[:4])}")
    chart = stage_charts.stage_blocks(
        drawn, title="Stage times, block by block", subtitle=subtitle, mode=panels.mode()
    )
    panels.draw(chart)
    st.caption(
        "A step that several requests share counts whole for each of them, because each waits for all of it."
    )


def memory_detail(study: Study) -> None:
    """One block in detail: memory of each arm's run, in front of what it computed at that moment."""
    blocks = sorted({run.block for run in study.sealed() if run.block is not None})
    if not blocks:
        st.info("No sealed run has memory samples.")
        return
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    block = left.selectbox("Block", blocks, key="memory-block")
    runs = {run.arm: run for run in study.sealed() if run.block == block}
    present = [arm for arm in theme.ARM_ORDER if arm in runs]
    usual = [arm for arm in ("baseline", "candidate") if arm in present] or present[:1]
    arms = right.pills("Arms", present, selection_mode="multi", default=usual, key="memory-arms")
    for place, arm in zip(st.columns(max(len(arms), 1)), arms, strict=False):
        with place:
            _memory_of(runs[arm])


def _memory_of(run: Run) -> None:
    bands = stage_samples.phase_bands(run)
    drawn = []
    for column, source, divisor, unit, title, whole in _LINES:
        line = samples.run_line(run, column, source, divisor)
        if not line.empty:
            drawn.append(
                (line, unit, title, _highest(samples.run_line(run, whole, source)) if whole else None)
            )
    if not drawn:
        st.info(f"{plain(run.name)}: memory is not recorded.")
        return
    reach = (
        min(float(line["seconds"].min()) for line, *_ in drawn),
        max(float(line["seconds"].max()) for line, *_ in drawn),
    )
    for line, unit, title, total in drawn:
        used = float(line["value"].max())
        subtitle = [f"{run.name} · highest {used:,.4g} {unit}"]
        # A pool that is all but empty would press its curve flat: then its size is said, not drawn.
        near = total is not None and 0 < total <= 4 * used
        if total and not near:
            subtitle[0] += f" of {total:,.0f}"
        if bands.empty:
            subtitle.append("phases not recorded")
        panels.draw(
            stage_charts.over_phases(
                line,
                bands,
                arm=run.arm,
                title=f"{title}: {run.arm}",
                subtitle=subtitle,
                unit=unit,
                reach=reach,
                total=total if near else None,
                mode=panels.mode(),
            )
        )


def _highest(line: pd.DataFrame) -> float | None:
    return None if line.empty else float(line["value"].max())


def against_roofs(study: Study) -> None:
    """Both arms against the machine's roofs, and whether the stated bottleneck was the real one."""
    found = roofline.of_study(study)
    if not found.points:
        st.info(plain(found.verdict))
        return
    box = {True: st.success, False: st.error, None: st.info}[found.confirmed]
    box(plain(found.verdict))
    subtitle = [panels.counts(study), f"{found.phase or 'phase not recorded'}, as the engine counts its work"]
    panels.draw(
        roofline.chart(found, title="Against this machine's roofs", subtitle=subtitle, mode=panels.mode())
    )
    st.dataframe(roofline.table(found), hide_index=True)
