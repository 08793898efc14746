"""What the page says while it knows nothing, or nothing new."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from dashboard.serve.stream import encode
from dashboard.view.filters import Filter
from dashboard.view.nodes import overview
from dashboard.view.pods import pods
from tests.dashboard.browser.seen import Seen
from tests.dashboard.clusters import cluster

pytestmark = pytest.mark.server

TROUBLES = ("nothing is listed",)


@pytest.fixture
def hung(seen: Seen) -> Iterator[Seen]:
    """Return a dashboard that the test may stop by SIGSTOP."""
    yield seen
    seen.dashboard.daemon.process.send_signal(signal.SIGCONT)


def test_a_silent_connection_is_not_live(hung: Seen) -> None:
    """A dashboard that hangs keeps its connections open: the page says that it has none, and finds it again."""
    page = hung.page
    page.clock.install()
    hung.open("/changes")
    state = page.get_by_role("status")
    expect(state).to_have_text("live")
    hung.dashboard.daemon.process.send_signal(signal.SIGSTOP)
    page.clock.run_for(45_000)
    expect(state).to_have_text("no connection, trying again")
    hung.dashboard.daemon.process.send_signal(signal.SIGCONT)
    page.clock.run_for(3_000)
    expect(state).to_have_text("live")


@pytest.mark.parametrize(
    ("path", "troubles", "text"),
    [
        ("/", (), "The cluster has no nodes."),
        ("/", TROUBLES, ""),
        ("/?node=x", (), "No node matches the filter."),
        ("/pods", (), "No container holds CPUs or waits for some."),
        ("/pods", TROUBLES, ""),
        ("/pods?pod=x", (), "No container matches the filter."),
    ],
)
def test_an_empty_page_says_why(seen: Seen, path: str, troubles: tuple[str, ...], text: str) -> None:
    """Without a filter an empty page does not blame one, and before everything is listed it says nothing."""
    view = (pods if "pods" in path else overview)(cluster(troubles=troubles), Filter())
    body = f"event: view\ndata: {encode(view).decode()}\n\n"
    seen.page.route("**/api/*", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    seen.open(path)
    expect(seen.page.locator("main > .note")).to_have_text(text)
    expect(seen.page.locator("#troubles")).to_have_text(
        f"What is shown may be old or incomplete: {TROUBLES[0]}" if troubles else ""
    )
