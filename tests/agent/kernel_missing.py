"""Whether the kernel's cgroups can be used here."""

from __future__ import annotations

from agent.errors import AgentError
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy


def cgroups_missing() -> str | None:
    """Say why the kernel's cgroups cannot be used here."""
    try:
        return None if find_hierarchy(DEFAULT_ROOT).is_writable() else "cpuset cgroups need root"
    except AgentError as error:
        return str(error)
