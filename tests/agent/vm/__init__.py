"""Tests of `agent.vm`."""
