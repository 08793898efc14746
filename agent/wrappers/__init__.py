"""The node's side of `cmk isolate`: identifies the caller, leases it cores of its container, and reclaims them."""
