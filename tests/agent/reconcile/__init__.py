"""Tests of `agent.reconcile`."""
