"""Sizes of a release's files, and their change since the previous release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from scripts.release.image import compressed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PULLED: Final = "what a node pulls"  # the image's compressed layers
_VERSION: Final = re.compile(r"-\d+\.\d+\.\d+")
_MB: Final = 1e6


def sizes(dist: Path) -> dict[str, int]:
    """Return the bytes of each file of a release, by name without the version, and of the image's pull."""
    found = {_VERSION.sub("", path.name, count=1): path.stat().st_size for path in sorted(dist.iterdir())}
    pulled = [sum(compressed(image)) for image in dist.glob("*-image.tar")]
    return found | dict.fromkeys([PULLED] if pulled else [], sum(pulled))


def compared(now: Mapping[str, int], before: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each size, with its change since the previous release in the folder."""
    for name, size in now.items():
        change = f"{(size - before[name]) / _MB:+.2f} MB" if name in before else "no earlier release here"
        yield f"{size / _MB:9.2f} MB  {name} ({change})"
