"""Tests of `agent.kernel`."""
