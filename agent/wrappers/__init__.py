"""The agent's part of `cmk isolate`: identify the process, lease cores of its container to it, and reclaim them."""
