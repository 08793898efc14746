"""Whether the kernel's cgroups can be used here."""

from __future__ import annotations

from agent.errors import AgentError
from agent.kernel.cpusets import KernelCgroups


def cgroups_missing() -> str | None:
    """Say why the kernel's cgroups cannot be used here."""
    try:
        return None if KernelCgroups().writable else "cpuset cgroups need root"
    except AgentError as error:
        return str(error)
