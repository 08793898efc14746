"""Which CPUs: the public face of allocation. Pure: no I/O, no clock; equal inputs give equal outputs.

`take_cpus` makes the kubelet's choices, `place` puts SMT and NUMA policies on top, `take_cores` serves CMK
claims, and `place_vcpus` gives the threads of a virtual machine their places among its CPUs. `docs/choices.md` tells users what is chosen and why.
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
