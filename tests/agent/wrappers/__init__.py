"""The agent's side of `cmk isolate`."""
