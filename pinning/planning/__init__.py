"""Who holds which CPUs of a node: its sets, the ledger, and the plan from what is observed to what is done.

How CPUs are chosen within a machine is `pinning.allocation`; what a pod asks for is `pinning.pods`.
"""
