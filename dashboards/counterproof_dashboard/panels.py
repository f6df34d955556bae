"""The parts of the Compare page: what is said, what is drawn, and the tables under it.

Text from records reaches the page only through `plain`, as chart data, or in a data-frame cell.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd
import streamlit as st

from counterproof.record.store import Store
from counterproof_dashboard import charts, data, findings, frames, guardrails, headline, marks, theme
from counterproof_dashboard import cost as costs
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import (
    NOT_RECORDED,
    count,
    day,
    number,
    plain,
    visible,
)
from counterproof_dashboard.words import check_name

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
    """What stands behind every number: `24 sealed timed runs in 6 blocks · 1 lost · 0 failed · all compared`."""
    sealed = study.sealed()
    blocks = len({run.block for run in sealed})
    lost, failed = study.in_state(data.LOST), study.in_state(data.FAILED)
    line = f"{count(len(sealed), 'sealed timed run')} in {count(blocks, 'block')} · {lost} lost · {failed} failed"
    listed = study.comparison.get("runs")
    if not isinstance(listed, list):
        return line
    compared = {findings.text(row.get("run")) for row in findings.rows(listed)}
    outside = [run.name for run in sealed if run.name not in compared]
    return f"{line} · {f'{len(outside)} outside complete blocks' if outside else 'all compared'}"


def opening(study: Study) -> None:
    """Headline, decision and what limits them."""
    said = headline.headline(study)
    box = {headline.GOOD: st.success, headline.BAD: st.error, headline.NEUTRAL: st.info}[said.tone]
    box(f"**{plain(said.sentence)}** {plain(said.detail)}".strip())
    lines = [f"**Decision:** {plain(headline.decided(study))}"] if study.status != data.RUNNING else []
    # The headline has said already that the evidence is invalid, and why.
    lines += [plain(mark.sentence) for mark in marks.marks(study) if mark.word != marks.INVALID]
    lines.append(plain(counts(study)) + ".")
    st.markdown("  \n".join(lines))
    for problem in study.problems:
        st.warning(plain(problem))


def unusual(study: Study) -> None:
    """What limits the study's word, said on every page that shows its numbers."""
    for mark in marks.marks(study):
        box = st.error if mark.word == marks.INVALID else st.info
        box(f"**{plain(mark.word)}**: {plain(mark.sentence)}")


def answers(study: Study) -> None:
    """The report's three answers, where the decision has them."""
    found = findings.answers(study)
    if not (found.gain_from or found.cost_went or found.command):
        return
    gain, cost_, stop = (column.container(border=True, height="stretch") for column in st.columns(3))
    gain.markdown(f"**Which step did the gain come from?**  \n{plain(found.gain_from or NOT_RECORDED)}")
    cost_.markdown(f"**Where did the cost go?**  \n{plain(found.cost_went or NOT_RECORDED)}")
    stop.markdown(f"**How to stop and roll back?**  \nGo back to {plain(found.back_to or NOT_RECORDED)}.")
    if found.command:
        stop.code(visible(found.command), language=None, wrap_lines=True)
    if found.expires:
        stop.caption(f"The evidence expires on {plain(day(found.expires))}.")
    with st.expander("When to stop, what would overturn this, and what was not tested"):
        _bullets("Stop and go back when", found.triggers)
        _bullets("This would overturn the decision", (found.reversal,) if found.reversal else ())
        _bullets("Not tested", found.not_tested)


def _bullets(label: str, items: Sequence[str]) -> None:
    lines = "\n".join(f"- {plain(item)}" for item in items) if items else f"- {NOT_RECORDED}"
    st.markdown(f"**{label}**\n\n{lines}")


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
            "Detectable",
            help="Smallest improvement that such a study claims with 80 % power, or why there is none",
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
                f"Not resolved: {reason}."
                if reason
                else "Not resolved: the residual is larger than the noise"
            )
        )
    elif reason:
        st.caption(plain(f"{reason[:1].upper()}{reason[1:]}."))


def cost(study: Study) -> None:
    """The stage by resource matrix."""
    frame = costs.table(study)
    if frame.empty:
        st.info("The cost matrix is not recorded.")
        return
    styles = costs.styles(study, mode())
    st.dataframe(frame.style.apply(lambda _: styles, axis=None), hide_index=True)
    st.caption(
        "Baseline → candidate (ratio); coloured where the interval leaves no doubt that it got better or worse. "
        "`not measured` is an answer: no cell is left blank or guessed."
    )
    silent = costs.silences(study)
    if not silent.empty:
        with st.expander(f"Why {count(len(silent), 'cell was', 'cells were')} not measured"):
            st.dataframe(silent, hide_index=True)


def tables(study: Study) -> None:
    """Validity checks and guardrails."""
    st.subheader("Is the evidence valid?", anchor=False)
    marks = {True: "✓\u00a0passed", False: "✗\u00a0failed", None: "?\u00a0not\u00a0judged"}
    found = [*findings.broken_limits(study), *findings.checks(study)]
    rows = [
        {
            "Check": plain(check_name(c.name)),
            "Result": marks[c.passed],
            "What was seen": plain(c.detail),
        }
        for c in found
    ]
    _table(rows, "No validity check is recorded.")
    st.subheader("Did anything get worse?", anchor=False)
    _table(_escaped(guardrails.rows(study)), "No guardrail is recorded.")
    if quality := guardrails.quality_rows(study):
        st.subheader("How far did the outputs move?", anchor=False)
        _table(_escaped(quality), "")


def _escaped(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: plain(value) for key, value in row.items()} for row in rows]


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
