"""`python -m bench.dashboard`: first paint, live change and memory of the dashboard, by cluster size.

A real kube-apiserver with nodes of 256 CPUs on which 20 containers each hold some, `corepin dashboard` as a process of
its own with the rights of its component, and Debian's Chromium. The baseline of every figure is the same of 5 nodes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

from pinning.machine.cpuset import CPUSet
from tests.dashboard.browser.seen import CHROMIUM
from tests.dashboard.documents import Document, container, grid, node, owner, pod, pools
from tests.dashboard.running import Dashboard, dashboard, install_account
from tests.environments.server.start import start_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

MACHINE: Final = grid(2, 4, 4, 4)  # 128 cores of two threads
OWNERS: Final = 20  # of each node, of two cores each
ROUNDS: Final = 5
SMALL: Final = 5
# Milliseconds from the start of the navigation until all rows exist, by the page's clock.
UNTIL_DRAWN: Final = """count => new Promise(done => {
  const look = () => document.querySelectorAll('tr[data-node]').length >= count ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""
FIRST_PAINT: Final = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
SEEN: Final = """name => new Promise(done => {
  const look = () => document.querySelector(`.cpu[data-owner="${name}"]`) ? done() : requestAnimationFrame(look);
  look();
})"""


@dataclass(frozen=True)
class Measured:
    """Cost of one cluster's dashboard; times in milliseconds, memory in MB."""

    listed: float  # from the start of the process until it has listed everything
    server: float
    first_paint: float
    all_rows: float
    node_page: float  # until the 256 CPUs of a node are drawn
    change: float  # from the API server's response to a changed annotation until the cell has changed
    page_heap: float
    page_resident: float  # of the renderer process


def documents(count: int) -> Iterator[Document]:
    """Yield the nodes of a cluster and the pods on them."""
    for number in range(count):
        owners: dict[str, Document] = {}
        for place in range(OWNERS):
            cpus = CPUSet([2 + 2 * place, 3 + 2 * place, 130 + 2 * place, 131 + 2 * place])
            owners[f"team/job-{number}-{place}/main"] = owner(str(cpus), smt="require")
            yield pod(f"job-{number}-{place}", {"main": container(str(cpus), "require")}, "team")
        yield node(f"node-{number}", MACHINE, pools(MACHINE, owners))


@contextmanager
def running(count: int) -> Iterator[tuple[Dashboard, float]]:
    """Run a dashboard with a filled API server; yield it with the duration of its first lists."""
    with (
        tempfile.TemporaryDirectory(prefix="corepin-bench-") as folder,
        start_servers(directory=Path(folder)) as server,
    ):
        server.create_namespace("team")
        kubeconfig = install_account(server)
        with server.client() as admin:
            for document in documents(count):
                space = "namespaces/team/" if document["kind"] == "Pod" else ""
                created = admin.post(f"/api/v1/{space}{document['kind'].lower()}s", json=document)
                created.raise_for_status()
        began = time.monotonic()
        with dashboard(server, kubeconfig) as shown:
            yield shown, (time.monotonic() - began) * 1000


def measure(count: int, browser: Browser) -> Measured:
    """Measure the dashboard of a cluster with this many nodes."""
    with running(count) as (shown, listed):
        pages = [drawn(shown, browser, count) for _ in range(ROUNDS)]
        first, rows, heap, resident = (median(column) for column in zip(*pages, strict=True))
        on_node = [of_node(shown, browser, at) for at in range(ROUNDS)]
        node_page, change = (median(column) for column in zip(*on_node, strict=True))
        server = resident_mb(shown.daemon.process.pid)
    return Measured(listed, server, first, rows, node_page, change, heap, resident)


def drawn(shown: Dashboard, browser: Browser, count: int) -> tuple[float, float, float, float]:
    """Open the page of all nodes in a new tab; return first paint, all rows, heap and memory of the page."""
    with tab(browser) as page:
        page.goto(shown.url)
        rows = page.evaluate(UNTIL_DRAWN, count)
        first = page.evaluate(FIRST_PAINT)
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
        return first, rows, heap, renderer_mb(browser)


def of_node(shown: Dashboard, browser: Browser, number: int) -> tuple[float, float]:
    """Open a node's page, then change the node; return the times until both were drawn."""
    with tab(browser) as page:
        page.goto(f"{shown.url}nodes/node-{number}")
        page.evaluate(SEEN, f"team/job-{number}-0/main")
        opened = page.evaluate("() => performance.now()")
        name = f"team/fresh-{number}/main"
        shown.apply(node(f"node-{number}", MACHINE, pools(MACHINE, {name: owner("100")})))
        began = time.monotonic()
        page.evaluate(SEEN, name)
        return opened, (time.monotonic() - began) * 1000


@contextmanager
def tab(browser: Browser) -> Iterator[Page]:
    """Yield a new tab without a cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        yield context.new_page()
    finally:
        context.close()


def renderer_mb(browser: Browser) -> float:
    """Return the resident memory of the largest renderer process."""
    found: list[dict[str, Any]] = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")[
        "processInfo"
    ]
    return max(resident_mb(it["id"]) for it in found if it["type"] == "renderer")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(small: Measured, large: Measured, count: int) -> Iterator[str]:
    """Yield a line for each figure: both clusters and the ratio."""
    yield f"{'':<16}{f'{SMALL} nodes':>14}{f'{count} nodes':>14}{'ratio':>10}"
    for field in fields(Measured):
        one, other = getattr(small, field.name), getattr(large, field.name)
        yield f"{field.name.replace('_', ' '):<16}{one:>14.1f}{other:>14.1f}{other / one:>9.1f}x"


def main() -> None:
    """Measure both clusters and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500, help="nodes of the large cluster (default: 500)")
    count = parser.parse_args().nodes
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        small, large = measure(SMALL, browser), measure(count, browser)
        browser.close()
    print("milliseconds and MB")
    print("\n".join(table(small, large, count)))


if __name__ == "__main__":
    main()
