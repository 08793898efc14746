"""Who holds which CPUs of a node: its sets, the ledger, and the plan from what is observed to what is to be done. How CPUs are chosen within a machine is `pinning.allocation`."""
