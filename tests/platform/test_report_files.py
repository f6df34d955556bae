"""The two reports: complete, offline, inert whatever the data say, and the same every time."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.decide.report import write
from counterproof.decide.rule import decide
from counterproof.errors import EvidenceError
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import atomic
from counterproof.record.journal import Journal

SMALL: dict[str, Any] = {"new_tokens": 6, "prompt_tokens": 16}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> | `rm` & \u202e"
SECTIONS = (
    "Three questions",
    "What moved",
    "Where the time went",
    "Memory",
    "Cost matrix",
    "What was changed",
    "Guardrails",
    "Is the evidence valid?",
    "How the decision was made",
    "Stop and roll back",
    "Scope, and what was not tested",
    "Check it yourself",
    "Environment",
)


def judge(folder: Path) -> tuple[str, str]:
    """Compare, decide, render; the HTML and the Markdown."""
    study = load_study(folder)
    comparison = compare(study)
    journal = Journal(folder / "journal.jsonl")
    journal.append("compared", sha256=atomic.write_json(folder / "comparison.json", comparison))
    decision = decide(study.plan, comparison)
    journal.append("decided", sha256=atomic.write_json(folder / "decision.json", decision))
    written = write(folder)
    return written.html.read_text(encoding="utf-8"), written.markdown.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reports(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    model = synthetic.StudyModel(prompt_text=HOSTILE, **SMALL)
    return judge(synthetic.build(tmp_path_factory.mktemp("report"), model))


class Structure(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed."""

    VOID = frozenset({"meta", "br", "line", "path", "circle", "rect", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID or tag in ("rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag


def parse(text: str) -> Structure:
    structure = Structure()
    structure.feed(text)
    assert structure.open == []
    return structure


def test_html_is_well_formed_and_loads_nothing(reports: tuple[str, str]) -> None:
    found = parse(reports[0])
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form", "audio"} & set(
        found.tags
    )
    names = {name for name, _ in found.attributes}
    assert not {n for n in names if n.startswith("on")} | (
        names & {"src", "href", "srcset", "action", "data"}
    )
    assert not re.search(r"https?:|//\w|@import|url\(", reports[0])
    assert "default-src 'none'" in reports[0]


def test_what_came_from_outside_is_inert(reports: tuple[str, str]) -> None:
    page, markdown = reports
    assert "<script" not in page
    assert html.escape(HOSTILE.split("|")[0].strip(), quote=False) in html.unescape(page).replace(
        HOSTILE, html.escape(HOSTILE, quote=False)
    )
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "<script" not in markdown
    assert "<img" not in markdown


@pytest.mark.parametrize("index", [0, 1])
def test_every_section_is_there(reports: tuple[str, str], index: int) -> None:
    for title in SECTIONS:
        assert title in reports[index], title


def test_the_page_draws_every_picture(reports: tuple[str, str]) -> None:
    page = reports[0]
    labels = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert "Ratios to the baseline with intervals" in labels
    assert "Stage waterfall from baseline to candidate" in labels
    assert sum(label.startswith("Distribution of") for label in labels) == 3
    assert sum(label.startswith("Ratio per block") for label in labels) == 1
    assert {"resident memory of the process", "KV cache in use"} <= set(labels)
    thin = re.findall(r'class="thin candidate"', page)
    assert len(thin) == 3 * 6 + 1  # one line per block in each distribution, and the line of block ratios


def test_the_page_says_what_the_decision_says(reports: tuple[str, str]) -> None:
    page, markdown = reports
    for text in (page, markdown):
        assert "HOLD" in text
        assert "A gain: time per output token (p50) is" in text
        assert "nobody else has replicated it" in text.lower()
        assert "compute / decode saves" in text
        assert "kv_cache.enabled=false" in text
        assert "not measured" in text
        assert "needs 662 samples, has 12" in text
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_markdown_tables_keep_their_columns(reports: tuple[str, str]) -> None:
    width = 0
    rows = 0
    for line in reports[1].splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1
        width = width or cells
        assert cells == width, line
        rows += 1
    assert rows > 60


def test_reports_are_the_same_every_time(build_study: Callable[..., Path]) -> None:
    folder = build_study(**SMALL)
    assert judge(folder) == judge(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"calibration": True}, "Calibration: on this machine two equal arms can differ by"),
        ({"identical_arms": True}, "The evidence is invalid"),
        ({"all_fail": True}, "The evidence is invalid"),
        ({"missing": ((5, "again"),)}, "Not finished: 5 of 6 blocks"),
        ({"blocks": 1, "missing": ((0, "candidate"),)}, "Not finished: 0 of 1 blocks"),
        ({"decode_ratio": 1.0}, "No gain is shown"),
        ({"decode_ratio": 2.0}, "A loss: time per output token (p50) is"),
        ({"wrong_requests": 1}, "Roll back"),
        ({"exploratory": True}, "an exploratory study can never claim"),
        ({"killed": ((1, "again"),)}, "01-again-1"),
        ({"candidate_failures": 1}, "points of failed requests"),
    ],
)
def test_every_kind_of_study_can_be_reported(
    build_study: Callable[..., Path], fields: dict[str, Any], words: str
) -> None:
    page, markdown = judge(build_study(**{**SMALL, **fields}))
    parse(page)
    assert words in html.unescape(page)
    assert len(markdown) > 3000
    for text in (page, markdown):
        assert not re.search(r"\b(nan|inf|None)\b", text), re.search(r".{40}\b(nan|inf|None)\b.{40}", text)


def test_where_nothing_is_detectable_the_page_says_what_stops_it(
    build_study: Callable[..., Path], reports: tuple[str, str]
) -> None:
    """Four per cent of noise between runs: A/A is too wide to judge in most such studies."""
    for text in map(html.unescape, judge(build_study(**SMALL, run_sd=0.04))):
        said = re.search(r"A/A lets ([\d.]+) % of 8,000 simulated studies with this noise pass", text)
        assert said and 0 < float(said[1]) < 50
        given = re.search(r"none \(([\d.]+) % if A/A passes\)", text)
        assert given and f"given that it passes, {given[1]} % is detected with 80 % power" in text
    for text in reports:
        assert re.search(r"by the whole rule, 80 % power, 6 blocks; A/A lets [\d.]+ % of", text)


def test_a_changed_record_has_no_report(build_study: Callable[..., Path]) -> None:
    folder = build_study(**SMALL)
    judge(folder)
    path = folder / "runs" / "03-slowed-1" / "tokens.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(EvidenceError, match="03-slowed-1"):
        write(folder)


def test_a_study_that_was_not_decided_has_no_report(build_study: Callable[..., Path]) -> None:
    with pytest.raises(EvidenceError, match=r"comparison\.json cannot be read"):
        write(build_study(blocks=1, **SMALL))
