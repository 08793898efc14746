"""What the policies mean, in the words that plans and pages say to people."""

from __future__ import annotations

from typing import Final

from pinning.contract import NUMAPolicy, SMTPolicy

SMT_WORDS: Final = {
    SMTPolicy.PREFER: "whole cores first, a leftover may share one",
    SMTPolicy.REQUIRE: "cores of its own",
    SMTPolicy.ISOLATE: "one thread of each core, the siblings idle",
}
NUMA_WORDS: Final = {
    NUMAPolicy.PACKED: "on the fewest NUMA nodes",
    NUMAPolicy.DISTRIBUTED: "evenly over NUMA nodes",
    NUMAPolicy.SINGLE: "on one NUMA node",
}
