"""The screenshot docs/pictures/page.png of the README."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.seen import Seen
from tests.pictures import NODE, documents

pytestmark = pytest.mark.server


def test_picture_of_the_readme(seen: Seen) -> None:
    """Pointing at a pod's CPU shows its owner and the kernel's proof beside the machine."""
    seen.page.set_viewport_size({"width": 1200, "height": 720})
    seen.dashboard.apply(*documents())
    seen.open(f"/nodes/{NODE}")
    seen.cell(17).hover()
    assert seen.facts()["Pod"] == "shop/web"
    seen.picture("readme")
