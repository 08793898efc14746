"""Generate the match conditions of manifests/base/registration.yaml from the families of annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pinning.contract import FAMILIES

FILE: Final = Path("manifests/base/registration.yaml")
A_LINE: Final = 3  # prefix tests per line
_TEST: Final = r"k\.startsWith\('[a-z0-9.-]+\.corepin\.io/'\)"
_TESTS: Final = re.compile(rf"^( +){_TEST}(?:\s+\|\|\s+{_TEST})*", re.MULTILINE)


def with_families(text: str) -> str:
    """Return the manifest with a condition for every family, in each place that tests keys of families."""
    return _TESTS.sub(lambda found: _tests(found[1]), text)


def _tests(indent: str) -> str:
    tests = [f"k.startsWith('{family}/')" for family in FAMILIES]
    lines = (" || ".join(tests[at : at + A_LINE]) for at in range(0, len(tests), A_LINE))
    return indent + f" ||\n{indent}".join(lines)


if __name__ == "__main__":
    FILE.write_text(with_families(FILE.read_text(encoding="utf-8")), encoding="utf-8")
