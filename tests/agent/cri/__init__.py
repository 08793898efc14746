"""Tests of `agent.cri`."""
