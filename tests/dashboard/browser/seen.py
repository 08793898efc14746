"""The dashboard in a browser's tab, with methods that read its page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Locator, Page, Request

from tests.dashboard.running import Dashboard

CHROMIUM = "/usr/bin/chromium"
PICTURES = Path("build/dashboard")  # folder with screenshots of a run
PATIENCE_MS = 60_000  # time limit of a step, which takes a second on an idle machine


@dataclass
class Seen:
    """A tab that shows the dashboard."""

    dashboard: Dashboard
    page: Page
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Record the browser's console messages, script errors and failed requests."""
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", self._note_failure)

    def _note_failure(self, request: Request) -> None:
        # The browser itself aborts requests when another page is opened.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.url} {request.failure}")

    def open(self, path: str) -> None:
        """Open a path, and wait until its page is drawn."""
        self.page.goto(self.dashboard.url.rstrip("/") + path)
        self.wait_for_page(re.sub(r"\?.*", "", path))

    def wait_for_page(self, path: str) -> None:
        """Wait until a page is drawn."""
        self.page.wait_for_selector(f'body[data-shown="{path}"]')

    def cell(self, cpu: int) -> Locator:
        """Return the cell of a CPU."""
        return self.page.locator(f'.cpu[data-cpu="{cpu}"]')

    def wait_for_cell(self, cpu: int, owner: str) -> None:
        """Wait until a CPU is drawn with its owner."""
        self.page.wait_for_selector(f'.cpu[data-cpu="{cpu}"][data-owner="{owner}"]')

    def cells(self) -> dict[int, tuple[str, str, str]]:
        """Return use, owner and sign of every CPU that is drawn."""
        script = """all => all.map(it => [it.dataset.cpu, it.dataset.use, it.dataset.owner,
            it.querySelector('.cpu-sign').textContent])"""
        drawn = self.page.locator(".cpu").evaluate_all(script)
        assert len({cpu for cpu, *_ in drawn}) == len(drawn)
        return {int(cpu): (use, owner, sign) for cpu, use, owner, sign in drawn}

    def facts(self) -> dict[str, str]:
        """Return terms and texts of the details."""
        script = "all => all.map(it => [it.children[0].textContent, it.children[1].textContent])"
        return dict(self.page.locator(".details .facts > div").evaluate_all(script))

    def picture(self, name: str) -> None:
        """Save a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
