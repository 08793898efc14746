"""Size and time limits of the kubelet's answers about devices, and the reasons and metric labels of failed calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.errors import TooLarge, Unavailable
from pinning.truncate import truncate

if TYPE_CHECKING:
    from agent.errors import AgentError

ANSWER_BYTES: Final = 4 * 2**20  # longest answer, gRPC's usual limit: about 80,000 devices
# Longest wait for an answer: the kubelet of a starved machine takes some seconds. No pass waits for it.
ANSWER_SECONDS: Final = 10.0
# After this time an answer counts as late, and the wait for it is a reason that pods show.
SLOW_SECONDS: Final = 2.0
SLOW: Final = f"the kubelet does not name devices: no answer in {SLOW_SECONDS:.0f} s"
LATER: Final = "later"  # result of a failed call that may succeed when repeated
HIGHEST_NODE: Final = 1023  # highest number of a NUMA node; the kernel's own limit is lower
LONGEST_REASON: Final = (
    300  # characters of an error, which come from the socket and go to pods' status and events
)
PCI: Final = re.compile(
    "[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]"
)  # an address; it becomes part of a path


def result_of(error: AgentError) -> tuple[str, str]:
    """Return the result of a failed call as the metric counts it, and the reason."""
    if isinstance(error, TooLarge):
        return "too_large", f"the kubelet's list of devices exceeds {ANSWER_BYTES >> 20} MiB"
    result = LATER if isinstance(error, Unavailable) else "refused"
    return result, f"the kubelet does not name devices: {truncate(str(error), LONGEST_REASON)}"
