"""Tests of `pinning.machine`."""
