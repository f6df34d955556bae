"""The pages in a real headless Chromium: what a link opens, what stays, and that the console is clean."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterproof_dashboard.commands import arguments

pytestmark = [pytest.mark.browser, pytest.mark.slow]

GAIN, KILLED = "20260102-030405-kv_cache", "20260103-000000-kv_cache"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = "[data-testid=stApp][data-test-script-state=notRunning]"
DEADLINE_MS = 60_000
# Below a page's own path Streamlit's client first looks for the server there, and only then at the root.
LOOKS_FOR_SERVER = ("/compare/_stcore/health", "/compare/_stcore/host-config")


@pytest.fixture(scope="module")
def server(gallery: Path) -> Iterator[str]:
    """The pages of the gallery, served on a free port; ends with the module."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "counterproof_dashboard.server", *arguments("127.0.0.1", port, True)]
    environment = {**os.environ, "COUNTERPROOF_STORE": str(gallery)}
    process = subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_health(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_for_health(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended before it answered"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                if answer.read() == b"ok":
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail("the server gave no answer within its deadline")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the module."""
    if CHROMIUM is None:
        pytest.skip("needs a chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


class Tab:
    """A page of its own context that remembers what went wrong in it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": 1300, "height": 1000})
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.requested: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requested.append(request.url))

    def _console(self, message: Any) -> None:
        where = (message.location or {}).get("url", "")
        if message.type == "error" and not where.endswith(LOOKS_FOR_SERVER):
            self.faults.append(f"{message.text} {where}")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}{path}", timeout=DEADLINE_MS)
        self.settle()

    def settle(self) -> None:
        """Wait until the script has run and the page has its heading."""
        self.page.wait_for_selector(READY, timeout=DEADLINE_MS)
        self.page.wait_for_selector("h1", timeout=DEADLINE_MS)
        self.page.wait_for_selector(READY, timeout=DEADLINE_MS)

    def heading(self, expected: str) -> None:
        self.page.wait_for_function(
            "expected => document.querySelector('h1')?.innerText.trim() === expected",
            arg=expected,
            timeout=DEADLINE_MS,
        )

    def wait_for_charts(self, at_least: int) -> int:
        script = (
            "n => document.querySelectorAll('[data-testid=stVegaLiteChart] :is(canvas, svg)').length >= n"
        )
        self.page.wait_for_function(script, arg=at_least, timeout=DEADLINE_MS)
        return int(self.page.locator("[data-testid=stVegaLiteChart] :is(canvas, svg)").count())


@pytest.fixture
def tab(browser: Any, server: str) -> Iterator[Tab]:
    opened = Tab(browser, server)
    yield opened
    opened.context.close()


def test_a_link_opened_first_shows_the_study_in_its_frame_with_all_charts(tab: Tab) -> None:
    tab.open(f"/compare?study={GAIN}")
    tab.heading(GAIN)
    text = tab.page.inner_text("[data-testid=stMain]")
    assert "Gain: Time per output token, p50 is 0.5" in text
    assert "Exactly one key differs: engine.kv_cache.enabled" in text
    assert tab.wait_for_charts(6) >= 6
    # The application's own navigation, not a list of files.
    frame = tab.page.inner_text("[data-testid=stApp]")
    assert "Experiments" in frame
    assert tab.page.locator("[data-testid=stSidebarNav]").count() == 0
    assert tab.faults == []


def test_reload_and_back_keep_the_study(tab: Tab) -> None:
    tab.open(f"/compare?study={GAIN}")
    tab.heading(GAIN)
    tab.page.reload(timeout=DEADLINE_MS)
    tab.settle()
    tab.heading(GAIN)
    tab.open(f"/compare?study={KILLED}")
    tab.heading(KILLED)
    tab.page.go_back(timeout=DEADLINE_MS)
    tab.settle()
    tab.heading(GAIN)
    assert tab.page.url.endswith(f"?study={GAIN}")
    tab.page.go_forward(timeout=DEADLINE_MS)
    tab.settle()
    tab.heading(KILLED)
    assert tab.faults == []


def test_two_tabs_do_not_share_what_they_show(tab: Tab, browser: Any, server: str) -> None:
    other = Tab(browser, server)
    try:
        tab.open(f"/compare?study={GAIN}")
        other.open(f"/compare?study={KILLED}")
        tab.heading(GAIN)
        other.heading(KILLED)
        tab.page.reload(timeout=DEADLINE_MS)
        tab.settle()
        tab.heading(GAIN)
    finally:
        other.context.close()


def test_an_unknown_study_is_an_error_and_shows_no_chart(tab: Tab) -> None:
    tab.open("/compare?study=deleted")
    tab.page.get_by_text("There is no study", exact=False).wait_for(timeout=DEADLINE_MS)
    assert tab.page.locator("[data-testid=stVegaLiteChart]").count() == 0
    assert GAIN not in tab.page.inner_text("[data-testid=stMain]")


def test_the_list_opens_and_nothing_is_fetched_from_elsewhere(tab: Tab) -> None:
    tab.open("/")
    tab.heading("Experiments")
    tab.page.get_by_text("5 studies: 4 complete, 1 lost.").wait_for(timeout=DEADLINE_MS)
    tab.page.locator("[data-testid=stDataFrame] canvas").first.wait_for(timeout=DEADLINE_MS)
    outside = [url for url in tab.requested if not url.startswith((tab.url, "data:", "blob:"))]
    assert len(tab.requested) > 5
    assert outside == []
    assert tab.faults == []
