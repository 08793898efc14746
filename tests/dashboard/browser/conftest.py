"""A browser, a dashboard and an API server for all tests of this folder.

Playwright keeps an event loop running in this thread, so the tests of this folder must not use asyncio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard.browser.seen import CHROMIUM, Seen
from tests.dashboard.running import Dashboard, dashboard, install_account
from tests.environments.server.start import start_servers


@pytest.fixture(scope="package")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Return a dashboard with an API server for these tests alone."""
    with start_servers(directory=tmp_path_factory.mktemp("browser-")) as server:
        for name in ("batch", "shop", "team", "vms"):
            server.create_namespace(name)
        with dashboard(server, install_account(server)) as found:
            yield found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium; without it the tests are skipped, and fail in CI."""
    if not Path(CHROMIUM).exists():
        problem = f"there is no {CHROMIUM}: apt-get install chromium"
        raise FileNotFoundError(problem) if os.environ.get("CI") == "true" else SkipTest(problem)
    with sync_playwright() as playwright:
        # Chromium's sandbox does not run as root; the tests open only pages of their own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["light"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Return an empty tab, in the light colour scheme unless the test sets another one."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme=request.param, locale="en-GB", timezone_id="UTC"
    )
    yield context.new_page()
    context.close()


@pytest.fixture
def seen(shown: Dashboard, page: Page) -> Iterator[Seen]:
    """Return the dashboard in a tab; fail the test if the browser has logged a message or an error."""
    found = Seen(shown, page)
    yield found
    assert found.complaints == []
