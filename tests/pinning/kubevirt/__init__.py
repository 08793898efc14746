"""Tests of `pinning.kubevirt`."""
