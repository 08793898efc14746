"""Tests of `agent.serve`."""
