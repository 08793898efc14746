"""Tests of `agent.nri`."""
