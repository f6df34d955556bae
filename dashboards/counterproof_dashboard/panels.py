"""The parts of the Compare page: what is said, what is drawn, and the tables under it.

Text from records reaches the page only through `plain`, as chart data, or in a data-frame cell.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd
import streamlit as st
from counterproof.record.store import Store

from counterproof_dashboard import charts, data, findings, frames, headline, overview, theme
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import (
    NOT_RECORDED,
    count,
    interval,
    number,
    percent,
    plain,
    ratio,
    visible,
)
from counterproof_dashboard.words import metric_name

FIRST_STUDY = "counterproof run kv_cache"


def mode() -> str:
    """The reader's colour scheme."""
    return theme.DARK if st.context.theme.type == "dark" else theme.LIGHT


def draw(chart: alt.TopLevelMixin) -> None:
    """Put a chart on the page at full width."""
    st.altair_chart(chart, width="stretch")


def empty_store(store: Store) -> None:
    """What to do when nothing was recorded yet."""
    st.info(f"There is no study in {plain(store.root)} yet.", icon=":material/science:")
    st.markdown("Make the first one:")
    st.code(FIRST_STUDY, language="bash")
    st.markdown("Studies that lie elsewhere are shown with:")
    st.code("counterproof dashboard --store DIR", language="bash")


def counts(study: Study) -> str:
    """What stands behind every number of the study: `24 sealed runs in 6 blocks · 1 lost · 0 failed`."""
    sealed = study.sealed()
    blocks = len({run.block for run in sealed})
    lost, failed = study.in_state(data.LOST), study.in_state(data.FAILED)
    return (
        f"{count(len(sealed), 'sealed timed run')} in {count(blocks, 'block')}"
        f" · {lost} lost · {failed} failed · 0 left out"
    )


def opening(study: Study) -> None:
    """Headline, decision and what limits them."""
    said = headline.headline(study)
    box = {headline.GOOD: st.success, headline.BAD: st.error, headline.NEUTRAL: st.info}[said.tone]
    box(f"**{plain(said.sentence)}** {plain(said.detail)}".strip())
    lines = [f"**{plain(headline.decided(study))}**"] if study.status != data.RUNNING else []
    if study.plan.get("exploratory") is True:
        lines.append("Exploratory: this study can never be a claim.")
    lines.append(plain(counts(study)) + ".")
    st.markdown("  \n".join(lines))
    for problem in study.problems:
        st.warning(plain(problem))


def answers(study: Study) -> None:
    """The report's three answers, where the decision has them."""
    found = findings.get(study.decision, "answers")
    labels = {
        "gain_from": "Which step did the gain come from?",
        "cost_went": "Where did the cost go?",
        "stop_and_rollback": "How to stop and roll back?",
    }
    known = {label: findings.get(found, key) for key, label in labels.items() if findings.get(found, key)}
    if not known:
        return
    for column, (label, value) in zip(st.columns(len(known)), known.items(), strict=True):
        with column.container(border=True, height="stretch"):
            st.markdown(f"**{label}**")
            st.markdown(_sentences(value))


def _sentences(value: object) -> str:
    if isinstance(value, dict):
        return "  \n".join(f"{plain(key)}: {_sentences(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "  \n".join(_sentences(inner) for inner in value)
    return plain(NOT_RECORDED if value is None else value)


def forest(studies: Sequence[Study]) -> None:
    """Ratios of the registered metrics; all others one click away."""
    subtitle = (
        [counts(studies[0])] if len(studies) == 1 else [f"{visible(s.name)}: {counts(s)}" for s in studies]
    )
    frame = frames.forest_frame(studies)
    if frame.empty:
        st.info("No effect on a registered metric is recorded.")
    else:
        draw(charts.forest(frame, title="What moved", subtitle=subtitle, mode=mode()))
        st.caption(
            "Point and line: the ratio with its 95 % interval over blocks. Grey band: the noise floor, what two equal "
            "arms of this study can show. Orange band: how far a guardrail may get worse, or how far the primary "
            "metric must get before it matters."
        )
    others = frames.forest_frame(studies, registered=False)
    if others.empty:
        return
    with st.expander(
        f"{count(len(others), 'metric')} that were measured but not registered: they describe, they never claim"
    ):
        draw(charts.forest(others, title="Not registered", subtitle=subtitle, mode=mode()))


def metrics(study: Study) -> None:
    """Every compared metric as a table."""
    frame = frames.metric_table(study)
    names = {
        "metric": "Metric",
        "role": "Role",
        "baseline": "Baseline",
        "candidate": "Candidate",
        "change": "Change",
        "ratio": "Ratio",
        "interval": "95 % interval",
        "floor": st.column_config.TextColumn(
            "Noise floor", help="What two equal arms of this study can show"
        ),
        "mde": st.column_config.TextColumn(
            "Detectable", help="Smallest improvement that this study would have claimed"
        ),
        "verdict": "Verdict",
        "why": "Why",
    }
    with st.expander(f"All {count(len(frame), 'number')} of the comparison"):
        st.dataframe(frame, hide_index=True, column_config=names)
        st.caption(
            "Baseline and candidate are the mean over blocks of each run's value (geometric where positive)."
        )


def blocks(study: Study) -> None:
    """Every block of the primary metric, with the controls."""
    effect = findings.primary_effect(study) or findings.primary_effect(study, "again")
    if effect is None:
        return
    dots, means = frames.block_frames(study, effect)
    if dots.empty:
        return
    title = f"Block by block: {effect.name}"
    draw(charts.blocks(dots, means, title=title, subtitle=[counts(study)], mode=mode()))
    st.caption(
        "Hollow: one block. Filled with a line: all blocks with the 95 % interval. `again` is the baseline once more "
        "and should lie at 1×; `slowed` is the baseline with a known delay and shows that a change would be seen."
    )


def stages(study: Study) -> None:
    """The stage waterfall with its residual."""
    recorded = study.comparison.get("stages")
    frame = frames.waterfall_frame(study)
    if frame.empty:
        reason = findings.text(findings.get(recorded, "reason")) or NOT_RECORDED
        st.info(f"Stage times: {plain(reason)}")
        return
    subtitle = [counts(study), "mean per request, candidate minus baseline"]
    draw(charts.waterfall(frame, title="Which stage it came from", subtitle=subtitle, mode=mode()))
    resolved, reason = (
        findings.flag(findings.get(recorded, "resolved")),
        findings.text(findings.get(recorded, "reason")),
    )
    if resolved is False:
        st.warning(
            plain(
                f"Not resolved. {reason}" if reason else "Not resolved: the residual is larger than the noise"
            )
        )
    elif reason:
        st.caption(plain(f"{reason[:1].upper()}{reason[1:]}."))


def cost(study: Study) -> None:
    """The stage by resource matrix."""
    frame = frames.cost_table(study)
    if frame.empty:
        st.info("The cost matrix is not recorded.")
        return
    st.dataframe(frame, hide_index=True)
    st.caption("Baseline → candidate (ratio). `not measured` is an answer: no cell is left blank or guessed.")


def tables(study: Study) -> None:
    """Validity checks and guardrails."""
    left, right = st.columns(2)
    with left:
        st.subheader("Is the evidence valid?", anchor=False)
        marks = {True: "✓ passed", False: "✗ failed", None: "? not judged"}
        found = [*findings.broken_limits(study), *findings.checks(study)]
        rows = [
            {"Check": plain(c.name), "Result": marks[c.passed], "What was seen": plain(c.detail)}
            for c in found
        ]
        _table(rows, "No validity check is recorded.")
    with right:
        st.subheader("Did anything get worse?", anchor=False)
        _table(
            [_guardrail(row) for row in findings.rows(study.decision.get("guardrails"))],
            "No guardrail is recorded.",
        )


def _guardrail(row: dict[str, object]) -> dict[str, str]:
    marks = {"PASS": "✓ PASS", "HARM": "✗ HARM", "UNPROVEN": "? UNPROVEN"}
    low, high = number(row.get("ci_low")), number(row.get("ci_high"))
    margin = number(row.get("margin"))
    name = metric_name(findings.text(row.get("metric")), findings.text(row.get("statistic")))
    status = findings.text(row.get("status"))
    return {
        "Guardrail": plain(name),
        "Result": marks.get(status, plain(status or NOT_RECORDED)),
        "Ratio": plain(ratio(number(row.get("ratio")))),
        "95 % interval": plain(interval(low, high)),
        "Margin": percent(margin),
        "Why": plain(findings.text(row.get("reason"))),
    }


def _table(rows: list[dict[str, str]], otherwise: str) -> None:
    if rows:
        st.table(pd.DataFrame(rows), border="horizontal", hide_index=True)
    else:
        st.info(otherwise)


def refused(study: Study) -> None:
    """A study that is not believed: which file, and no numbers."""
    lines = "\n".join(f"- {plain(problem)}" for problem in study.problems)
    st.error(f"**{plain(study.name)} is refused:** none of its numbers is shown.\n\n{lines}")


def running(study: Study) -> None:
    """How far a running or lost study has come."""
    planned = number(study.plan.get("blocks"))
    arms = study.plan.get("arms")
    runs = int(planned) * len(arms) if planned is not None and isinstance(arms, dict) else None
    done = len(study.sealed())
    if runs:
        st.progress(min(done / runs, 1.0), text=f"{done} of {runs} timed runs sealed")
    else:
        st.caption(f"{done} timed runs sealed; the plan's size is {NOT_RECORDED}")
    if study.status == data.LOST:
        st.caption(plain(overview.why(study)))
