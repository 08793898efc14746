"""Inside the guest: wait for a condition, by polls as well as by time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS: Final = 300.0  # time limit of actions that take one to ten seconds
POLLS: Final = 3000
REST_SECONDS: Final = 0.1
# Timeout of a server's answer; the host ends a machine with a hung server before it expires.
ANSWER_SECONDS: Final = 10 * SECONDS


def wait_until(is_so: Callable[[], object], rest: float = REST_SECONDS) -> bool:
    """Poll until a condition is true; return False after 300 seconds and 3000 polls.

    Polls are counted too, because the guest's clock advances while the host starves the machine.
    """
    deadline, left = time.monotonic() + SECONDS, POLLS
    while not is_so():
        left -= 1
        if left <= 0 and time.monotonic() > deadline:
            return False
        time.sleep(rest)
    return True
