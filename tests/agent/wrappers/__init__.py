"""Tests of `cmk isolate` on the agent's side."""
