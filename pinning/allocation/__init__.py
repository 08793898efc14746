"""CPU allocation within a machine. Pure: no I/O, no clock; equal inputs give equal outputs.

`take_cpus` makes the kubelet's choices, `place` adds SMT and NUMA policies, `take_cores` serves CMK claims, and
`place_vcpus` assigns CPUs to the threads of a virtual machine. `docs/choices.md` explains the choices to users.
"""

from __future__ import annotations

from pinning.allocation.packed import Sort
from pinning.allocation.placement import Placement, place
from pinning.allocation.static_policy import take_cpus
from pinning.allocation.vcpus import GuestTopology, VCPUPlacement, place_vcpus
from pinning.allocation.whole_cores import take_cores

__all__ = [
    "GuestTopology",
    "Placement",
    "Sort",
    "VCPUPlacement",
    "place",
    "place_vcpus",
    "take_cores",
    "take_cpus",
]
