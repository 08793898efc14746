"""Inside the guest: wait for a condition, by polls as well as by time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS: Final = 300.0  # time limit of actions that take one to ten seconds
POLLS: Final = 3000
REST_SECONDS: Final = 0.1
# Time limit of a server's answer; if one hangs, the host ends the machine earlier.
ANSWER_SECONDS: Final = 10 * SECONDS


def wait_until(is_so: Callable[[], object], rest: float = REST_SECONDS) -> bool:
    """Poll until a condition is true; return False after 300 seconds and 3000 polls.

    The guest's clock goes on while the host gives the machine no CPU. The machine then polls as rarely as it works.
    """
    deadline, left = time.monotonic() + SECONDS, POLLS
    while not is_so():
        left -= 1
        if left <= 0 and time.monotonic() > deadline:
            return False
        time.sleep(rest)
    return True
