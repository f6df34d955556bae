"""The parts of the Compare page that show single requests, memory over time and configurations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from counterproof_dashboard import cache, curves, differences, findings, panels, samples, theme
from counterproof_dashboard.data import Study
from counterproof_dashboard.differences import Difference
from counterproof_dashboard.samples import ArmCount
from counterproof_dashboard.text import count, number, plain, size, visible
from counterproof_dashboard.words import METRIC_HELP, METRIC_NAMES


def distributions(studies: Sequence[Study]) -> None:
    """The latency of every request of the selected studies, one chart a study, one metric for all."""
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    metric = left.selectbox(
        "Latency",
        samples.LATENCIES,
        format_func=lambda name: METRIC_NAMES[name],
        key="latency",
        bind="query-params",
    )
    present = [arm for arm in theme.ARM_ORDER if any(study.sealed(arm) for study in studies)]
    usual = [arm for arm in ("baseline", "candidate") if arm in present]
    arms = right.pills("Arms", present, selection_mode="multi", default=usual, key="arms")
    st.caption(METRIC_HELP[metric])
    found = [(study, *cache.latencies(study.name, metric)) for study in studies]
    drawn = [samples_[samples_["arm"].isin(arms)] for _, samples_, _ in found]
    finite = [frame.loc[np.isfinite(frame["value"]), "value"] for frame in drawn]
    # One axis for all studies, so that their curves can be compared by eye.
    reach = [
        bound for values in finite if len(values) for bound in (float(values.min()), float(values.max()))
    ]
    for (study, _, counted), frame in zip(found, drawn, strict=True):
        title = f"{METRIC_NAMES[metric]}: every {_noun(metric)}"
        title = f"{title} · {visible(study.name)}" if len(studies) > 1 else title
        _distribution(frame, [_counted(c, _noun(metric)) for c in counted if c.arm in arms], title, reach)
    st.caption(
        "Thin: one block. Thick: all blocks of the arm. The shaded band (DKW, 95 %) treats requests as independent "
        "and is therefore optimistic; claims rest on blocks. A curve that ends below 100 % has failed requests."
    )


def _noun(metric: str) -> str:
    return "gap" if metric == "itl_ms" else "request"


def _distribution(frame: pd.DataFrame, lines: list[str], title: str, reach: list[float]) -> None:
    if not np.isfinite(frame["value"].to_numpy(float)).any():
        st.info(plain(f"{title}: nothing to show. {'; '.join(lines) or 'No sealed run has these arms'}."))
        return
    curve, band = curves.ecdf_frames(frame)
    panels.draw(curves.ecdf(curve, band, title=title, subtitle=lines, reach=reach, mode=panels.mode()))


def _counted(found: ArmCount, noun: str) -> str:
    parts = [f"{count(found.runs, 'run')}, {count(found.blocks, 'block')}", count(found.values, noun)]
    parts.append(f"{found.failed} failed")
    if found.missing:
        parts.append(f"{found.missing} without a time")
    if found.unrecorded:
        parts.append(f"not recorded in {count(len(found.unrecorded), 'run')}")
    return f"{visible(found.arm)}: {', '.join(parts)}"


def memory(study: Study) -> None:
    """Resident memory and KV bytes of every run over time."""
    columns = (
        ("rss_bytes", "sampler", "Resident memory of the process"),
        ("kv_bytes_used", "engine", "KV-cache bytes in use"),
    )
    for place, (column, source, title) in zip(st.columns(2), columns, strict=True):
        with place:
            frame, absent = cache.memory(study.name, column, source)
            note = f" · not recorded in {count(len(absent), 'run')}" if absent else ""
            if frame.empty:
                st.info(f"{title}: not recorded.")
                continue
            shown = count(frame["run"].nunique(), "run")
            subtitle = [f"{shown}, one line each{note}", panels.counts(study)]
            chart = curves.timeline(frame, title=title, subtitle=subtitle, unit="MiB", mode=panels.mode())
            panels.draw(chart)
    _predicted(study)


def _predicted(study: Study) -> None:
    """The KV bytes that the plan's arithmetic predicts beside those that were measured."""
    lines = []
    for arm in theme.ARM_ORDER:
        facts = findings.get(study.comparison, "memory", "arms", arm)
        predicted, measured = (
            _highest(findings.get(facts, f"{k}_kv_bytes")) for k in ("predicted", "measured")
        )
        if predicted is not None or measured is not None:
            lines.append(f"{arm}: predicted {size(predicted)}, measured {size(measured)}")
    if lines:
        st.caption(plain(f"Highest KV-cache bytes of a block. {'; '.join(lines)}."))


def _highest(values: object) -> float | None:
    known = [number(value) for value in values] if isinstance(values, list) else []
    return max((value for value in known if value is not None), default=None)


def configuration(study: Study) -> None:
    """The arms' configuration difference: red unless exactly one key, the declared factor, differs."""
    diff = differences.arm_diff(study)
    box = {True: st.success, False: st.error, None: st.info}[diff.holds]
    box(f"**{plain(diff.verdict)}**" if diff.holds is not None else plain(diff.verdict))
    everything = (
        st.toggle(f"Show all {len(diff.leaves)} keys", key=f"keys-{study.name}") if diff.leaves else False
    )
    leaves = diff.leaves if everything else tuple(diff.differing)
    if leaves:
        _differences(leaves)
    surprising = differences.undeclared(study)
    if surprising:
        st.error(f"Moved without being declared: {plain(', '.join(surprising))}")
    kinds = {
        "effective": "What the engine says it really ran",
        "environment": "Environment",
    }
    for kind, label in kinds.items():
        found = differences.recorded_differences(study, kind)
        if found:
            with st.expander(f"{label}: {count(len(found), 'difference')}"):
                _differences(found)
    work_done(study)


def work_done(study: Study) -> None:
    """Work counters that differ between the arms in every block, and in no repetition of the baseline."""
    found = differences.recorded_differences(study, "counters")
    if found:
        with st.expander(f"Work done, by the engine's counters: {count(len(found), 'difference')}"):
            _differences(found)


def _differences(leaves: Sequence[Difference]) -> None:
    rows = [
        {
            "Key": visible(leaf.path),
            "Baseline": leaf.baseline,
            "Candidate": leaf.candidate,
            "": "differs" if leaf.differs else "same",
        }
        for leaf in leaves
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True)


def between(studies: Sequence[Study]) -> None:
    """What differs between the baselines of several studies: their ratios compare only as far as these agree."""
    configs = {study.name: study.plan.get("arms", {}).get("baseline", {}).get("config") for study in studies}
    flat = {name: differences.flatten(config) for name, config in configs.items() if isinstance(config, dict)}
    paths = sorted({path for leaves in flat.values() for path in leaves})
    rows = []
    for path in paths:
        values = {visible(n): differences.value_of(leaves, path) for n, leaves in flat.items()}
        if len(set(values.values())) > 1:
            rows.append({"Key": visible(path), **values})
    if len(flat) < len(studies):
        st.warning(
            f"{count(len(studies) - len(flat), 'study has', 'studies have')} no configuration recorded."
        )
    if not rows:
        st.success(f"The baselines of the {len(flat)} studies have the same configuration.")
        return
    st.warning(f"The baselines differ in {count(len(rows), 'key')}: compare their ratios with that in mind.")
    st.dataframe(pd.DataFrame(rows), hide_index=True)
