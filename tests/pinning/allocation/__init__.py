"""Tests of `pinning.allocation`."""
