"""Tests of the package pinning."""
