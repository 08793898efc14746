"""Tests of `agent.doctor`."""
