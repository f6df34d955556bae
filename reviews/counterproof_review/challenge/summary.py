"""The report of a search: `report.json`, and the same for people as Markdown and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterproof.commands.console import percent
from counterproof.record import atomic
from counterproof_review.challenge.metamorphic import RELATIONS
from counterproof_review.challenge.search import cell_words

REPORT = "report.json"
MARKDOWN = "report.md"
PAGE = "report.html"

Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A heading, the names of columns, and rows."""


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Write all three files."""
    atomic.write_json(folder / REPORT, dict(report))
    atomic.write_bytes(folder / MARKDOWN, markdown(report).encode())
    atomic.write_bytes(folder / PAGE, page(report).encode())


def markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Search for counterexamples", "", f"**{report['says']}.**", "", *_facts(report)]
    for heading, columns, rows in sections(report):
        lines += ["", f"## {heading}", ""]
        if not rows:
            lines.append("none")
            continue
        lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def page(report: Mapping[str, Any]) -> str:
    """The report as one HTML page that needs nothing else."""
    parts = [f"<h1>Search for counterexamples</h1><p><b>{html.escape(report['says'])}.</b></p>"]
    parts.append(
        "<ul>" + "".join(f"<li>{html.escape(f.removeprefix('- '))}</li>" for f in _facts(report)) + "</ul>"
    )
    for heading, columns, rows in sections(report):
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        parts.append(f"<table><tr>{head}</tr>{body}</table>" if rows else "<p>none</p>")
    style = "body{font:15px sans-serif;max-width:72em;margin:2em auto}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Search for counterexamples</title>'
        f"<style>{style}</style>{''.join(parts)}</html>\n"
    )


def sections(report: Mapping[str, Any]) -> list[Section]:
    """Tables: what was confirmed, what looked worst, relations, and what was not tried."""
    confirmed = [
        (
            cell_words(one["cell"]),
            "overturns the claim" if one["flip"] else "does not",
            "inside" if one["inside"] else "outside",
            _gain(one["gain"]),
            one["why"],
            _needs(one),
            _left(one),
        )
        for one in report["confirmed"]
    ]
    worst = [(cell_words(w["cell"]), _gain(w["gain"]), str(w["wrong"]), w["note"]) for w in report["worst"]]
    return [
        (
            "Measured afresh",
            ("cell", "outcome", "scope", "gain", "why", "needs", "what is left of the scope"),
            confirmed,
        ),
        ("Worst cells that were probed", ("cell", "gain", "wrong", "note"), worst),
        ("Relations", ("relation", "arm", "cells", "compared", "broken"), _relations(report["metamorphic"])),
        ("Not tried", ("what",), [(line,) for line in _not_tried(report)]),
    ]


def _facts(report: Mapping[str, Any]) -> list[str]:
    claim, phases = report["claim"], report["by_phase"]
    tried = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    counts = report["counts"]
    found = [
        f"- claim: {claim['statistic']} of {claim['metric']}, {claim['better']} is better"
        + (", outputs unchanged" if claim["lossless"] else ""),
        f"- {report['cells_tried']} cells tried ({tried}), {report['cells_inside']} of them inside the scope; "
        f"{len(report['confirmed'])} measured afresh, those inside first",
        f"- {report['seconds']:.0f} s of measuring, {report['minutes']:g} min allowed; {counts['loads']} loads, "
        f"{counts['requests']} requests on warm engines",
        f"- seed {report['seed']}; packet root {report['root']}",
    ]
    if counts["rounding"]:
        found.append(
            f"- {counts['rounding']} outputs differed in fast mode and not in invariant mode: rounding"
        )
    if report["cut_off"] or report["recalled"]:
        found.append(
            f"- {report['recalled']} measurements from before an interruption, {report['cut_off']} cut off"
        )
    return found


def _not_tried(report: Mapping[str, Any]) -> list[str]:
    found = [f"{report['corners_not_tried']} corners of the space"]
    left = report["cells_planned"] - sum(report["by_phase"][p] for p in ("corner", "boundary", "sobol"))
    if left > 0:
        found.append(f"{left} cells that were planned, for want of time")
    if report["nominated_not_confirmed"]:
        found.append(
            f"{report['nominated_not_confirmed']} nominated cells were not measured afresh, "
            f"{report['nominated_inside_not_confirmed']} of them inside the scope"
        )
    if report["cells_without_value"]:
        found.append(f"{report['cells_without_value']} cells gave no value of the metric")
    return found + list(report["out_of_reach"])


def _relations(checks: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows = []
    for name in RELATIONS:
        for arm in ("baseline", "candidate"):
            seen = [c["found"][arm][name] for c in checks if name in c["found"].get(arm, {})]
            compared, broken = sum(s["compared"] for s in seen), sum(s["broken"] for s in seen)
            rows.append((name, arm, str(len(seen)), str(compared), str(broken)))
    reasons = {c["found"][arm]["why"] for c in checks for arm in c["found"] if "why" in c["found"][arm]}
    return [*rows, *(("not compared", why, "", "", "") for why in sorted(reasons))]


def _gain(value: float | None) -> str:
    return "no value" if value is None else percent(1 + value)


def _needs(one: Mapping[str, Any]) -> str:
    untested = ", ".join(one.get("untested", ()))
    return ", ".join(filter(None, (*one["needed"], f"not tried without: {untested}" if untested else "")))


def _left(one: Mapping[str, Any]) -> str:
    if "left_of_scope" not in one:
        return ""
    left = one["left_of_scope"]
    return "nothing" if left is None else ", ".join(f"{name} {_span(value)}" for name, value in left.items())


def _span(value: Any) -> str:
    return f"{value[0]} to {value[1]}" if isinstance(value, list) else f"at most {value}"
