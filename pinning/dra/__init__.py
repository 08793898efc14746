"""CPUs as claims of Dynamic Resource Allocation: the parsed ResourceClaim, and the devices of a node.

`pinning.planning.claim_grants` decides which CPUs a claim gets, together with all other holders of CPUs.
"""
