"""Tests of `pinning.planning`."""
