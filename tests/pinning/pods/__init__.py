"""Tests of `pinning.pods`."""
