"""The node's side of `cmk isolate`: who asks, which cores it gets, and for how long it has them."""
