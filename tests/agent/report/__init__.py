"""Tests of `agent.report`."""
