"""Text contrast of the pages: at least 4.5 to 1, as WCAG 2 level AA requires for small text."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.dashboard.browser.seen import Seen
from tests.dashboard.documents import container, event, grid, node, owner, pod, pools, refused

pytestmark = pytest.mark.server

MACHINE = grid(2, 2, 1, 8)  # cores 0-31, siblings 32-63
LEAST = 4.5
# The background of a text is that of the nearest element with one; each colour of a pattern is checked. A canvas
# converts the browser's computed colours to RGB.
MEASURE = r"""() => {
  const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const linear = (part) => part <= 10.31 ? part / 255 / 12.92 : ((part / 255 + .055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const pattern = style.backgroundImage.match(/(?:rgba?|oklch|oklab|color)\([^()]*\)/g) ?? [];
      const found = [...pattern, style.backgroundColor].map(rgba).filter((colour) => colour[3] > 250);
      if (found.length) return found;
    }
    return [rgba('white')];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const bad = {};
  let count = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true}) || element.closest('.dim, option, noscript')) continue;
    count += 1;
    const text = rgba(getComputedStyle(element).color);
    const least = Math.min(...behind(element).map((colour) => ratio(text, colour)));
    if (least < LEAST) bad[`${element.tagName}.${element.className} in ${element.parentElement.className}`] = Math.round(least * 100) / 100;
  }
  return {bad, count};
}""".replace("LEAST", str(LEAST))


def measured(page: Page) -> tuple[dict[str, float], int]:
    """Return the elements with too little contrast, and the number of all texts."""
    found = page.evaluate(MEASURE)
    return found["bad"], found["count"]


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_every_text_can_be_read(seen: Seen) -> None:
    """Every text has enough contrast in both colour schemes: cells of all hues, health, tables, notes, controls."""
    owners = {f"team/hue-{at}/main": owner(str(at + 1), smt="isolate", idle=str(at + 33)) for at in range(12)}
    owners |= {f"team/share-{at}/main": owner(str(at + 13), policy="share") for at in range(12)}
    topology = MACHINE.with_online(MACHINE.online - type(MACHINE.online)([63]))
    seen.dashboard.apply(
        node("colours", topology, pools(topology, owners, setAside="30-31")),
        node("no-agent"),
        node("sees", MACHINE, pools(MACHINE, observes=True)),
        node("broken", MACHINE, {"x": 1}),
        pod("hue-0", {"main": container("1", "isolate", "33")}, "team"),
        pod("hue-1", {"main": container("2", drift=True)}, "team"),
        pod("waits", {"main": refused()}, "team"),
        event("waits", "Unpinnable", "text", on="colours", kind="Warning", namespace="team"),
    )
    for path in (
        "/",
        "/nodes/colours",
        "/pods",
        "/pods/team/waits",
        "/pods/team/hue-0",
        "/changes",
        "/nodes/broken",
    ):
        seen.open(path)
        bad, count = measured(seen.page)
        assert count > 10
        assert bad == {}, path
    scheme = seen.page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    seen.open("/nodes/colours")
    seen.picture(f"node-colours-{scheme}")
    seen.open("/")
    seen.picture(f"nodes-{scheme}")
