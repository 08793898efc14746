"""CPU assignments of one node: its CPU sets, the ledger, and the plan that turns observations into actions.

How CPUs are chosen within a machine is `pinning.allocation`; what a pod asks for is `pinning.pods`.
"""
