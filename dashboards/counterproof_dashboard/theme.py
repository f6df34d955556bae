"""Colours and common settings of the charts.

An arm keeps its colour on every chart, whichever arms are shown beside it. The palette is Okabe and Ito's, which
stays distinct for all common kinds of colour blindness; shapes and words repeat whatever a colour says.
"""

from __future__ import annotations

from collections.abc import Mapping
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
