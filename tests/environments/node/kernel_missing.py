"""Check for usable kernel cgroups."""

from __future__ import annotations

from agent.errors import AgentError
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy


def cgroups_missing() -> str | None:
    """Return why the kernel's cgroups cannot be used here, or None."""
    try:
        return None if find_hierarchy(DEFAULT_ROOT).is_writable() else "cpuset cgroups need root"
    except AgentError as error:
        return str(error)
