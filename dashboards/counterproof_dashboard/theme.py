"""Colours and common settings of the charts.

An arm keeps its colour on every chart, whichever arms are shown beside it. The palette is Okabe and Ito's, which
stays distinct for all common kinds of colour blindness; shapes and words repeat whatever a colour says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import altair as alt

LIGHT = "light"
DARK = "dark"

ARM_ORDER = ("baseline", "candidate", "again", "slowed")

_ARMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        LIGHT: {"baseline": "#0072B2", "candidate": "#D55E00", "again": "#56B4E9", "slowed": "#8C8C8C"},
        DARK: {"baseline": "#56B4E9", "candidate": "#E69F00", "again": "#9AD0F5", "slowed": "#A8A8A8"},
    }
)
_VERDICTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        LIGHT: {"gain": "#007A5A", "loss": "#B2342B", "no claim": "#6B7280", "not measured": "#9CA3AF"},
        DARK: {"gain": "#2BC79A", "loss": "#FF8B7E", "no claim": "#B6BCC6", "not measured": "#8B929E"},
    }
)
VERDICT_SHAPES: Mapping[str, str] = MappingProxyType(
    {"gain": "circle", "loss": "square", "no claim": "diamond", "not measured": "cross"}
)
_BANDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        LIGHT: {"margin": "#F0A884", "noise": "#9AA7B8", "rule": "#3F4652"},
        DARK: {"margin": "#B5622F", "noise": "#64748B", "rule": "#D5DAE3"},
    }
)
# Paul Tol's muted colours: told apart by all common kinds of colour blindness, and none is an arm's.
_STAGES: Mapping[str, str] = MappingProxyType(
    {
        "input": "#999933",
        "state": "#AA4499",
        "compute: prefill": "#117733",
        "compute: decode": "#44AA99",
        "compute: draft": "#882255",
        "compute: verify": "#CC6677",
        "output": "#DDCC77",
    }
)
_OTHER_STAGE = "#8C8C8C"
PHASE_ORDER = ("prefill", "decode", "prefill and decode in one step", "draft", "verify")
_PHASES = ("#117733", "#88CCEE", "#DDCC77", "#882255", "#CC6677")


def _mode(mode: str) -> str:
    return DARK if mode == DARK else LIGHT


def arm_colour(arm: str, mode: str = LIGHT) -> str:
    """The colour of an arm; an arm of an unknown name gets the neutral one."""
    return _ARMS[_mode(mode)].get(arm, "#8C8C8C")


def arm_scale(mode: str = LIGHT) -> alt.Scale:
    """The colour scale over all arms, so that hiding one arm never recolours another."""
    return alt.Scale(domain=list(ARM_ORDER), range=[arm_colour(arm, mode) for arm in ARM_ORDER])


def verdict_colour(verdict: str, mode: str = LIGHT) -> str:
    """The colour of a verdict."""
    return _VERDICTS[_mode(mode)].get(verdict, _VERDICTS[_mode(mode)]["not measured"])


def verdict_scale(mode: str = LIGHT) -> alt.Scale:
    """Colour scale over every verdict."""
    colours = _VERDICTS[_mode(mode)]
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def verdict_shapes() -> alt.Scale:
    """Shape scale over every verdict: colour is never the only sign."""
    return alt.Scale(domain=list(VERDICT_SHAPES), range=list(VERDICT_SHAPES.values()))


def band(name: str, mode: str = LIGHT) -> str:
    """The colour of the margin band, the noise band or a reference rule."""
    return _BANDS[_mode(mode)][name]


def stage_place(name: str) -> int:
    """Where a stage stands in a stacked bar: the order in which a request passes them, unknown ones last."""
    return list(_STAGES).index(name) if name in _STAGES else len(_STAGES)


def stage_scale(names: Iterable[str]) -> alt.Scale:
    """The colour scale over all known stages and those of `names`; a stage keeps its colour everywhere."""
    found = [*_STAGES, *sorted({name for name in names if name not in _STAGES})]
    return alt.Scale(domain=found, range=[_STAGES.get(name, _OTHER_STAGE) for name in found])


def phase_scale() -> alt.Scale:
    """The colour scale over the phases of a run."""
    return alt.Scale(domain=list(PHASE_ORDER), range=list(_PHASES))


def titled(text: str, subtitle: list[str], mode: str = LIGHT) -> alt.TitleParams:
    """A chart's title with its counts below it, left-aligned, readable on the reader's background."""
    return alt.TitleParams(
        text=text,
        subtitle=subtitle,
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=14,
        limit=900,
        subtitleColor=_BANDS[_mode(mode)]["rule"],
        subtitlePadding=4,
    )
