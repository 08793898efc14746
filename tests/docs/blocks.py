"""The code blocks and the chapters of a page."""

from __future__ import annotations

import re

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, *languages: str) -> list[str]:
    """Return the code blocks of these languages, in their order."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def chapter(page: str, title: str) -> str:
    """Return one chapter of a page."""
    assert f"\n## {title}\n" in page
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
