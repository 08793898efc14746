"""CPUs as claims of Dynamic Resource Allocation: what is read of a ResourceClaim, and the devices of a node.

What a claim is granted is decided beside everything else that holds CPUs, in `pinning.planning.claim_grants`.
"""
