"""Poll for conditions that send no notification."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
SECONDS: Final = 180.0  # a second or two on an idle machine, a minute for a kubelet beside a load of 20
_POLL_SECONDS: Final = 0.05


def until(what: str, look: Callable[[], Found | None], seconds: float = SECONDS) -> Found:
    """Return what `look` finds as soon as it is true; fail with what was seen last."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not after {seconds:.0f} s; last seen: {found!r}"
        time.sleep(_POLL_SECONDS)
    return found


def until_equal(what: str, look: Callable[[], Found], wanted: Found, seconds: float = SECONDS) -> None:
    """Return as soon as `look` returns what is wanted; fail with what was seen last."""
    deadline = time.monotonic() + seconds
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"{what}: after {seconds:.0f} s {found!r} and not {wanted!r}"
        time.sleep(_POLL_SECONDS)
