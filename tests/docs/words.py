"""The words that no text of corepin has, because they hide who acts: see CONTRIBUTING.md."""

from __future__ import annotations

import re

WORDS = re.compile(
    r"\b(whoever|whomever|nobody|somebody|anybody|everybody|shall|told|meanwhile|those who)\b", re.IGNORECASE
)
