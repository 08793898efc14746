"""NRI features of container runtimes, by name and version: one table for doctor, guard and docs. Pure.

NRI does not report its version to plugins, so the features of a release are taken from its go.mod.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

Version = tuple[int, ...]


class Support(NamedTuple):
    """The first versions of one runtime with each part of NRI."""

    title: str  # the runtime's official name
    nri: Version  # first version whose NRI lets plugins set a container's CPUs before it starts
    nri_default: Version  # first version with NRI on by default
    # First version with NRI 0.10: plugins can refuse changes of other plugins, as the guard does.
    validators: Version
    pid: Version  # first version that shows plugins the process of a starting container; (): all versions do


SUPPORT: Final = {
    "containerd": Support("containerd", (1, 7), (2, 0), (2, 2), ()),
    "cri-o": Support("CRI-O", (1, 26), (1, 30), (1, 34), (1, 36)),
}
GUARDING: Final = " or ".join(f"{it.title} {'.'.join(map(str, it.validators))}" for it in SUPPORT.values())


def parsed(runtime: str) -> tuple[str, Version]:
    """Return the lower-case name, and major and minor version, of e.g. "containerd v2.4.2"; (): unreadable."""
    name, _, version = runtime.partition(" ")
    numbers = re.match(r"v?(\d{1,6})\.(\d{1,6})(?!\d)", version)
    return name.lower(), tuple(map(int, numbers.groups())) if numbers else ()


def has_validators(runtime: str) -> bool | None:
    """Return whether a runtime supports validating plugins, by its version; None if that is unknown."""
    name, version = parsed(runtime)
    return version >= SUPPORT[name].validators if name in SUPPORT and version else None


def names_process(runtime: str) -> bool:
    """Return whether a runtime shows plugins the process of a container that starts; True if it is unknown."""
    name, version = parsed(runtime)
    return name not in SUPPORT or version >= SUPPORT[name].pid
