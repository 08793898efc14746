"""Use of the page by keyboard, links and filters, in print, and with hostile texts."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from pinning.contract import STATUS_CPUS
from tests.dashboard.browser.seen import Seen
from tests.dashboard.documents import container, event, grid, node, owner, pod, pools, refused

pytestmark = pytest.mark.server

MACHINE = grid(2, 1, 1, 4)  # cores 0-7, siblings 8-15
OWNERS = {"shop/front/main": owner("1,9", smt="require"), "vms/db/main": owner("2", smt="isolate", idle="10")}
HOME = node("used", MACHINE, pools(MACHINE, OWNERS))
PODS = (
    pod("front", {"main": container("1,9", "require")}, "shop"),
    pod("db", {"main": container("2", "isolate", "10", drift=True)}, "vms"),
    pod("big", {"main": refused()}, "shop"),
    event("big", "Unpinnable", "NotEnoughCPUs: text", on="used", kind="Warning", namespace="shop"),
)
HOSTILE = '</script><img src=x onerror="window.hacked=1"><b>bold</b>{{7*7}}\u202egnp'


# Ids in aria-describedby and aria-labelledby without an element.
REFERENCES = """() => [...document.querySelectorAll('[aria-describedby], [aria-labelledby]')]
    .map(it => it.getAttribute('aria-describedby') ?? it.getAttribute('aria-labelledby'))
    .filter(id => !document.getElementById(id))"""


@pytest.fixture
def used(seen: Seen) -> Seen:
    """Return the dashboard with a node, two pods that hold CPUs and one that waits."""
    seen.dashboard.apply(HOME, *PODS)
    return seen


def focused(page: Page) -> str:
    """Return the CPU of the focused cell, or the text of another focused element."""
    found: str = page.evaluate(
        "() => document.activeElement.dataset.cpu ?? document.activeElement.textContent"
    )
    return found


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until `wanted` has the focus."""
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if reached[-1] == wanted:
            return
    raise AssertionError(f"{wanted} is not reached by Tab, but {reached}")


def test_everything_is_reached_by_keyboard(used: Seen) -> None:
    """The keyboard alone leads from all nodes to a node, over its CPUs, and to the page of a pod."""
    page = used.page
    used.open("/")
    page.wait_for_selector('tr[data-node="used"]')
    tab_to(page, "used")
    page.keyboard.press("Enter")
    used.wait_for_page("/nodes/used")
    used.wait_for_cell(1, "shop/front/main")
    tab_to(page, "0")
    reached = []
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "End", "Home", "ArrowLeft"):
        page.keyboard.press(key)
        reached.append(focused(page))
    assert reached == ["1", "9", "10", "2", "1", "15", "0", "0"]
    page.keyboard.press("ArrowRight")
    assert used.facts()["Pod"] == "shop/front"
    page.keyboard.press("Enter")
    expect(used.cell(1)).to_have_attribute("aria-pressed", "true")
    tab_to(page, "Why it has these CPUs")
    assert used.facts()["Pod"] == "shop/front"
    page.keyboard.press("Enter")
    used.wait_for_page("/pods/shop/front")
    expect(page.locator("main")).to_contain_text("cores of its own")


def test_details_are_let_go_by_escape(used: Seen) -> None:
    """Escape, or a second click, closes the details."""
    used.open("/nodes/used")
    used.wait_for_cell(1, "shop/front/main")
    used.cell(1).click()
    expect(used.cell(1)).to_have_attribute("aria-pressed", "true")
    used.page.keyboard.press("Escape")
    expect(used.cell(1)).to_have_attribute("aria-pressed", "false")


def test_screen_readers_get_whole_words(used: Seen) -> None:
    """Every cell has a name, and its owner's row of the legend as its description; nothing depends on a colour."""
    used.open("/nodes/used")
    used.wait_for_cell(10, "vms/db/main")
    assert (
        used.cell(9).get_attribute("aria-label") == "CPU 9 (thread 1 of core 1): shop/front/main, exclusive"
    )
    assert used.page.locator(".cpu:not([aria-label])").count() == 0
    described = used.cell(10).get_attribute("aria-describedby")
    expect(used.page.locator(f"#{described}")).to_contain_text(
        "some of its tasks may run outside of its CPUs"
    )
    assert used.page.locator("table:not(:has(caption))").count() == 0
    assert used.page.get_by_role("navigation").count() == 1
    assert used.page.get_by_role("main").count() == 1
    assert used.page.get_by_role("status").text_content() == "live"
    for path in ("/nodes/used", "/pods/shop/front"):
        used.open(path)
        used.wait_for_cell(1, "shop/front/main")
        assert used.page.evaluate(REFERENCES) == []


def test_filter_is_a_link(used: Seen) -> None:
    """The filter is in the URL, which shows the same page again, with other CPUs dimmed."""
    page = used.page
    used.open("/nodes/used")
    used.wait_for_cell(1, "shop/front/main")
    page.get_by_label("Namespace").fill("shop")
    page.wait_for_url("**/nodes/used?namespace=shop")
    expect(used.cell(2)).to_have_class("cpu use-exclusive hue-1 dim alarm")
    used.open("/nodes/used?policy=isolate")
    expect(page.get_by_label("Policy")).to_have_value("isolate")
    expect(page.get_by_label("Namespace")).to_have_value("")
    expect(used.cell(1)).to_have_class("cpu use-exclusive hue-0 dim")
    used.open("/?namespace=shop&pod=front")
    expect(page.locator("tr[data-node]")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    page.wait_for_url(used.dashboard.url)
    used.picture("nodes-light")


def test_back_leads_back(used: Seen) -> None:
    """The browser's back button returns to the pages that were shown."""
    used.open("/pods")
    used.page.get_by_role("link", name="shop/front/main").click()
    used.wait_for_page("/pods/shop/front")
    assert used.page.title() == "pods/shop/front | corepin"
    used.page.go_back()
    used.wait_for_page("/pods")
    used.page.go_forward()
    used.wait_for_page("/pods/shop/front")


def test_pod_that_waits_says_why(used: Seen) -> None:
    """A waiting pod shows its reason on its page and its node's page, and is first in the list of pods."""
    used.open("/pods/shop/big")
    expect(used.page.locator(".why")).to_contain_text("Waits (NotEnoughCPUs): Wanted 64 wholly free cores")
    expect(used.page.locator("main")).to_contain_text("Node used has")
    used.picture("pod-waits")
    used.open("/nodes/used")
    expect(used.page.locator(".waiting")).to_contain_text("shop/big/main")
    used.open("/pods?namespace=shop")
    expect(used.page.locator("tr[data-pod]").first).to_contain_text("shop/big/main")
    used.picture("pods-light")


def test_what_is_not_there_says_so(used: Seen) -> None:
    """The page of a missing node or pod shows that it does not exist."""
    used.open("/nodes/gone")
    expect(used.page.locator("h1")).to_have_text("No such node")
    used.open("/pods/shop/gone")
    expect(used.page.locator("h1")).to_have_text("No such pod")


def test_theme_is_kept(used: Seen) -> None:
    """The viewer's theme overrides the system's, also on the next page."""
    used.open("/changes")
    button = used.page.get_by_role("button", name="Theme")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = used.page.evaluate(background)
    button.click()
    assert (button.text_content(), used.page.evaluate(background)) == ("Theme: light", light)
    button.click()
    assert button.text_content() == "Theme: dark"
    used.open("/pods")
    assert used.page.evaluate(background) != light
    used.picture("pods-dark")


def test_paper_has_what_matters(used: Seen) -> None:
    """Printed pages have machine and legend in light colours, without navigation, filter and details."""
    used.open("/nodes/used")
    used.wait_for_cell(1, "shop/front/main")
    used.page.emulate_media(media="print", color_scheme="dark")
    expect(used.page.locator(".machine")).to_be_visible()
    expect(used.page.locator(".legend")).to_be_visible()
    for hidden in ("nav", "#filter", ".details", "#theme"):
        expect(used.page.locator(hidden)).to_be_hidden()
    assert (
        used.page.evaluate("() => getComputedStyle(document.querySelector('main')).color")
        == "rgb(29, 35, 45)"
    )
    used.picture("node-print")


def test_hostile_texts_stay_texts(used: Seen) -> None:
    """Names and messages that contain HTML are shown as text; no script runs and nothing is loaded."""
    status = {
        "containers": {
            HOSTILE: refused(HOSTILE),
            "main": container("3", intruders=[HOSTILE], memory=HOSTILE, memoryNote=HOSTILE),
        }
    }
    bad = pod(
        "bad",
        None,
        "shop",
        annotations={STATUS_CPUS: json.dumps(status), "cpu-manager.corepin.io/pod": HOSTILE},
    )
    owners = {"shop/bad/main": owner("3"), f"{HOSTILE}/x/y": owner("4", smt=HOSTILE), "": owner("5")}
    used.dashboard.apply(
        node("hostile", MACHINE, pools(MACHINE, owners)),
        bad,
        event("bad", "Unpinnable", HOSTILE, on="hostile", namespace="shop"),
    )
    for path in ("/nodes/hostile", "/pods/shop/bad", "/pods", "/changes", "/", f"/?pod={HOSTILE[:20]}"):
        used.open(path)
        assert used.page.evaluate("() => window.hacked") is None
        assert used.page.locator("main img, main script, main b").count() == 0
    used.open("/nodes/hostile")
    expect(used.page.locator(".waiting")).to_contain_text("<b>bold</b>{{7*7}}")
    # A right-to-left override would reverse the text after it.
    assert "\u202e" not in used.page.locator("body").inner_text()
    used.cell(4).hover()
    assert used.facts()["Policy"].startswith("exclusive, smt </script><img src=x")
    used.picture("node-hostile")


@pytest.mark.parametrize("path", ["/", "/nodes/used", "/pods", "/pods/shop/front", "/changes"])
def test_page_is_as_wide_as_a_phone(used: Seen, path: str) -> None:
    """On a phone's screen only wide parts such as tables scroll sideways, and the page does not."""
    used.page.set_viewport_size({"width": 390, "height": 844})
    used.open(path)
    used.picture(f"phone{path.replace('/', '-')}")
    assert used.page.evaluate("document.documentElement.scrollWidth") == 390
