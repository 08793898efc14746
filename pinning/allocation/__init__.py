"""Which CPUs: the public face of allocation. Pure: no I/O, no clock; equal inputs give equal outputs.

`take_cpus` makes the kubelet's choices, `place` puts SMT and NUMA policies on top, and `take_cores`
serves CMK claims. `docs/choices.md` tells users what is chosen and why.
"""

from __future__ import annotations

from pinning.allocation.packed import Sort
from pinning.allocation.placement import Placement, place
from pinning.allocation.static_policy import take_cpus
from pinning.allocation.whole_cores import take_cores

__all__ = ["Placement", "Sort", "place", "take_cores", "take_cpus"]
