"""Tests of `agent.nri.wire`."""
