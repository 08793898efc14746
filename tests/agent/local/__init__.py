"""Tests of `agent.local`."""
