"""Refusals of Prepare for a ResourceClaim: the cause as a metric's label, and the text of the pod's event."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Cause of a refused Prepare, as a label of the metric."""

    GONE = "Gone"  # the API server has no such claim, or has another claim of that name
    UNREADABLE = "Unreadable"  # the API server does not answer, or refuses the read
    INVALID = "Invalid"  # the claim, or the kubelet's request, cannot be served
    NO_ROOM = "NoRoom"  # other containers hold the CPUs
    NOT_READY = "NotReady"  # the agent does not know the pods and containers of the node yet
    GIVEN_BACK = "GivenBack"  # the kubelet called Unprepare for the claim in the meantime
    CDI_FILE = "CDIFile"  # the CDI file cannot be written
    TOO_MANY = "TooMany"  # the request has more claims than are served


class RefusedPrepare(NamedTuple):
    """One refused Prepare."""

    cause: Cause
    message: str
